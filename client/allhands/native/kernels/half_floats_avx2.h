/* The loops of halves for x86-64 processors with AVX2 and F16C, in place of those of loops.h, which
 * compilers do not turn into good vector code.
 *
 * Sixteen elements at a time, as two vectors of float32. Wide operands and results (see kernels.c)
 * are whole sixteens too, each as its two vectors, so they are in an order of their own, and what
 * is past `count` in them is of no account.
 */
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c")))
#define INLINE_AVX2 TARGET static inline __attribute__((always_inline))

typedef struct {
    __m256 a, b;
} sixteen;

INLINE_AVX2 sixteen sixteen_wide(const void *from, size_t at) {
    const f32 *x = (const f32 *)from + at;
    return (sixteen){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}
INLINE_AVX2 void put_wide(void *to, size_t at, sixteen x) {
    f32 *out = (f32 *)to + at;
    _mm256_storeu_ps(out, x.a);
    _mm256_storeu_ps(out + 8, x.b);
}

/* Most vectors have no NaN, and one comparison tells of two: that, not the sum, is the dear part.
 */
INLINE_AVX2 sixteen quieted(sixteen x) {
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q)), 0)) {
        const __m256 nan = _mm256_set1_ps(__builtin_nanf(""));
        x.a = _mm256_blendv_ps(x.a, nan, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q));
        x.b = _mm256_blendv_ps(x.b, nan, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q));
    }
    return x;
}

INLINE_AVX2 sixteen sixteen_f16(const void *from, size_t at) {
    const __m128i *x = (const void *)((const any_u16 *)from + at);
    return (sixteen){_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x + 1))};
}
INLINE_AVX2 void put_f16(void *to, size_t at, sixteen x) {
    const sixteen y = quieted(x);
    __m128i *out = (void *)((any_u16 *)to + at);
    _mm_storeu_si128(out, _mm256_cvtps_ph(y.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(out + 1, _mm256_cvtps_ph(y.b, _MM_FROUND_TO_NEAREST_INT));
}

/* Vector `a` has the elements at even places, which only need a shift; `b` the others. */
INLINE_AVX2 sixteen sixteen_bf16(const void *from, size_t at) {
    const __m256i x = _mm256_loadu_si256((const void *)((const any_u16 *)from + at));
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    return (sixteen){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                     _mm256_castsi256_ps(_mm256_and_si256(x, upper))};
}
/* The rounded bits are in the upper half of each element. */
INLINE_AVX2 __m256i rounded_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_add_epi32(bits, up);
}
INLINE_AVX2 void put_bf16(void *to, size_t at, sixteen x) {
    const sixteen y = quieted(x);
    const __m256i even = _mm256_srli_epi32(rounded_bf16(y.a), 16);
    const __m256i halves = _mm256_blend_epi16(even, rounded_bf16(y.b), 0xaa);
    _mm256_storeu_si256((void *)((any_u16 *)to + at), halves);
}

INLINE_AVX2 __m256 least_8(__m256 a, __m256 b) {
    const __m256 chosen = _mm256_min_ps(a, b); /* b where either is NaN, or both are zero */
    return _mm256_blendv_ps(chosen, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
INLINE_AVX2 __m256 greatest_8(__m256 a, __m256 b) {
    const __m256 chosen = _mm256_max_ps(a, b);
    return _mm256_blendv_ps(chosen, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
#define SIXTEEN(NAME, FUNCTION)                                                                    \
    INLINE_AVX2 sixteen NAME(sixteen x, sixteen y) {                                               \
        return (sixteen){FUNCTION(x.a, y.a), FUNCTION(x.b, y.b)};                                  \
    }
SIXTEEN(sum_16, _mm256_add_ps)
SIXTEEN(product_16, _mm256_mul_ps)
SIXTEEN(min_16, least_8)
SIXTEEN(max_16, greatest_8)
SIXTEEN(quotient_16, _mm256_div_ps)

/* Fold the last elements, fewer than 16, in memory where there are 16. */
static void fold_rest(fold_loop *loop, bool first_wide, bool result_wide, void *out,
                      const void *const in[], int n, size_t at, size_t count) {
    u16 copies[4][16] = {0}, result[16];
    const void *group[4];
    for (int i = 0; i < n; i++) {
        memcpy(copies[i], (const any_u16 *)in[i] + at, first_wide && i == 0 ? 0 : count * 2);
        group[i] = first_wide && i == 0 ? (const void *)((const f32 *)in[0] + at) : copies[i];
    }
    loop(result_wide ? (void *)((f32 *)out + at) : result, group, 16);
    if (!result_wide) memcpy((any_u16 *)out + at, result, count * 2);
}

#define LOOP_16(NAME, FIRST_WIDE, RESULT_WIDE, GET_FIRST, GET, OP, PUT)                            \
    TARGET static void NAME##_2_avx2(void *out, const void *const in[], size_t count) {            \
        const void *a = in[0], *b = in[1];                                                         \
        size_t i = 0;                                                                              \
        for (; i + 16 <= count; i += 16) PUT(out, i, OP(GET_FIRST(a, i), GET(b, i)));              \
        if (i < count)                                                                             \
            fold_rest(NAME##_2_avx2, FIRST_WIDE, RESULT_WIDE, out, in, 2, i, count - i);           \
    }                                                                                              \
    TARGET static void NAME##_4_avx2(void *out, const void *const in[], size_t count) {            \
        const void *a = in[0], *b = in[1], *c = in[2], *d = in[3];                                 \
        size_t i = 0;                                                                              \
        for (; i + 16 <= count; i += 16)                                                           \
            PUT(out, i, OP(OP(OP(GET_FIRST(a, i), GET(b, i)), GET(c, i)), GET(d, i)));             \
        if (i < count)                                                                             \
            fold_rest(NAME##_4_avx2, FIRST_WIDE, RESULT_WIDE, out, in, 4, i, count - i);           \
    }
#define LOOPS_16(NAME, TYPE, OP)                                                                   \
    LOOP_16(NAME, false, false, sixteen_##TYPE, sixteen_##TYPE, OP, put_##TYPE)                    \
    LOOP_16(NAME##_open, false, true, sixteen_##TYPE, sixteen_##TYPE, OP, put_wide)                \
    LOOP_16(NAME##_more, true, true, sixteen_wide, sixteen_##TYPE, OP, put_wide)                   \
    LOOP_16(NAME##_close, true, false, sixteen_wide, sixteen_##TYPE, OP, put_##TYPE)

/* What loops.h takes instead of its own. */
#define HALF_LOOPS(TYPE)                                                                           \
    LOOPS_16(sum_##TYPE, TYPE, sum_16)                                                             \
    LOOPS_16(product_##TYPE, TYPE, product_16)                                                     \
    LOOPS_16(min_##TYPE, TYPE, min_16)                                                             \
    LOOPS_16(max_##TYPE, TYPE, max_16)                                                             \
    TARGET static void divide_##TYPE##_avx2(void *out, const void *sums, size_t count,             \
                                            size_t divisor) {                                      \
        const bool is_exact = is_power_of_two(divisor); /* then a product has the same bits */     \
        const __m256 by = _mm256_set1_ps(is_exact ? 1 / (f32)divisor : (f32)divisor);              \
        const sixteen both = {by, by};                                                             \
        for (size_t i = 0; i < count; i += 16) {                                                   \
            const sixteen sum = sixteen_wide(sums, i);                                             \
            const sixteen quotient = is_exact ? product_16(sum, both) : quotient_16(sum, both);    \
            if (count - i >= 16) {                                                                 \
                put_##TYPE(out, i, quotient);                                                      \
            } else {                                                                               \
                u16 rest[16];                                                                      \
                put_##TYPE(rest, 0, quotient);                                                     \
                memcpy((any_u16 *)out + i, rest, (count - i) * 2);                                 \
            }                                                                                      \
        }                                                                                          \
    }
