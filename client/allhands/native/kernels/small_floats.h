/* Floats narrower than float32: to it and back, rounded to the nearest, ties to even.
 *
 * Of NaNs there is one of each type, quiet and positive. kernels.c includes this file.
 */

INLINE u32 bits_of(f32 x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
INLINE f32 of_bits(u32 bits) {
    f32 x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* By masks of signed integers: anything else compilers may make branches of. */
INLINE i32 choose(bool condition, i32 yes, i32 no) {
    const i32 mask = -(i32)condition;
    return (yes & mask) | (no & ~mask);
}

/* bfloat16 is the upper half of a float32. */
INLINE f32 bf16_to_f32(u16 half) { return of_bits((u32)half << 16); }
INLINE u16 f32_to_bf16(f32 x) {
    const u32 bits = bits_of(x);
    const u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (u16)choose((i32)(bits & 0x7fffffff) <= 0x7f800000, (i32)rounded, 0x7fc0);
}

#if defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
/* Every such processor converts. */
INLINE f32 f16_to_f32(u16 half) {
    __fp16 x;
    memcpy(&x, &half, sizeof x);
    return x;
}
INLINE u16 f32_to_f16(f32 x) {
    const __fp16 rounded = (__fp16)x;
    u16 half;
    memcpy(&half, &rounded, sizeof half);
    return (u16)choose(x == x, half, 0x7e00);
}
#else
/* float16 has 10 bits of fraction for float32's 23, and its exponent is biased by 15, not 127. */
INLINE f32 f16_to_f32(u16 half) {
    const i32 magnitude = (half & 0x7fff) << 13;
    const u32 sign = (half & 0x8000u) << 16;
    /* A product, not a sum of bits, since it also makes normal what is subnormal in float16. */
    const i32 finite = (i32)bits_of(of_bits((u32)magnitude) * 0x1p112f);
    return of_bits(sign | (u32)choose(magnitude < 0x7c00 << 13, finite, magnitude | 0x7f800000));
}
INLINE u16 f32_to_f16(f32 x) {
    const i32 sign = (i32)(bits_of(x) >> 16 & 0x8000);
    const i32 magnitude = (i32)(bits_of(x) & 0x7fffffff);
    const i32 normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* From 0.5 on float32 is spaced as float16's subnormal numbers are: the sum rounds to that. */
    const i32 tiny = (i32)(bits_of(of_bits((u32)magnitude) + 0.5f) - bits_of(0.5f));
    const i32 finite = choose(magnitude < 113 << 23, tiny, normal); /* may carry into infinity */
    const i32 number = choose(magnitude < 143 << 23, finite, 0x7c00) | sign;
    return (u16)choose(magnitude <= 0x7f800000, number, 0x7e00);
}
#endif

/* float8_e5m2 is the upper half of a float16. */
INLINE f32 e5m2_to_f32(u8 narrow) { return f16_to_f32((u16)(narrow << 8)); }
INLINE u8 f32_to_e5m2(f32 x) {
    const i32 sign = (i32)(bits_of(x) >> 24 & 0x80);
    const i32 magnitude = (i32)(bits_of(x) & 0x7fffffff);
    const i32 normal = (magnitude - (112 << 23) + 0xfffff + (magnitude >> 21 & 1)) >> 21;
    /* From 128 on float32 is spaced as subnormal numbers are here. */
    const i32 tiny = (i32)(bits_of(of_bits((u32)magnitude) + 128.0f) - bits_of(128.0f));
    const i32 finite = choose(magnitude < 113 << 23, tiny, normal); /* may carry into infinity */
    const i32 number = choose(magnitude < 143 << 23, finite, 0x7c) | sign;
    return (u8)choose(magnitude <= 0x7f800000, number, 0x7e);
}

/* float8_e4m3fn has 3 bits of fraction and an exponent biased by 7; of all its bits ones are NaN,
 * which also stands for infinity and whatever is too large. */
INLINE f32 e4m3fn_to_f32(u8 narrow) {
    const i32 magnitude = (narrow & 0x7f) << 20;
    const u32 sign = (narrow & 0x80u) << 24;
    const i32 finite = (i32)bits_of(of_bits((u32)magnitude) * 0x1p120f);
    return of_bits(sign | (u32)choose(magnitude < 0x7f << 20, finite, 0x7fc00000));
}
INLINE u8 f32_to_e4m3fn(f32 x) {
    const i32 sign = (i32)(bits_of(x) >> 24 & 0x80);
    const i32 magnitude = (i32)(bits_of(x) & 0x7fffffff);
    const i32 normal = (magnitude - (120 << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    const i32 tiny = (i32)(bits_of(of_bits((u32)magnitude) + 0x1p14f) - bits_of(0x1p14f));
    const i32 finite = choose(magnitude < 121 << 23, tiny, normal);
    return (u8)choose((magnitude < 136 << 23) & (finite < 0x7f), finite | sign, 0x7f);
}
