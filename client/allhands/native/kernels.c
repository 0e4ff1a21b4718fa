/* Which loop folds what, and in what blocks. The loops themselves are in loops.h.
 *
 * Every processor gives the same bits: no operation is contracted or reordered, and of NaNs there
 * is one (quiet, positive, without payload), because whose payload survives would depend on the
 * order in which a compiler puts the operands.
 */
#include "kernels.h"

#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;

/* Elements as they lie in the memory of callers: at any address, declared as whatever there. */
#define ANYWHERE __attribute__((may_alias, aligned(1)))
typedef u8 any_u8 ANYWHERE;
typedef u16 any_u16 ANYWHERE;
typedef u32 any_u32 ANYWHERE;
typedef u64 any_u64 ANYWHERE;
typedef i8 any_i8 ANYWHERE;
typedef i16 any_i16 ANYWHERE;
typedef i32 any_i32 ANYWHERE;
typedef i64 any_i64 ANYWHERE;
typedef f32 any_f32 ANYWHERE;
typedef f64 any_f64 ANYWHERE;
typedef struct {
    f32 re, im;
} __attribute__((may_alias, packed)) c64, any_c64;
typedef struct {
    f64 re, im;
} __attribute__((may_alias, packed)) c128, any_c128;

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- what is done to one element ---- */

#define AS_IS(x) (x)
#define IS_TRUE(x) ((u8)((x) != 0))
#define QUIET(x) _Generic((x), f32: quiet_f32, f64: quiet_f64)(x)

#define SUM(TYPE, a, b) ((TYPE)((a) + (b)))
#define PRODUCT(TYPE, a, b) ((a) * (b))
#define UNSIGNED_PRODUCT(TYPE, a, b) ((TYPE)(1u * (a) * (b))) /* u16 * u16 would be int: no */
#define LEAST(TYPE, a, b) ((a) < (b) ? (a) : (b))
#define GREATEST(TYPE, a, b) ((a) > (b) ? (a) : (b))
#define AND(TYPE, a, b) ((TYPE)((a) & (b)))
#define OR(TYPE, a, b) ((TYPE)((a) | (b)))
#define XOR(TYPE, a, b) ((TYPE)((a) ^ (b)))
/* NaN where either is; of two zeros the second, as NumPy has it. */
#define FLOAT_LEAST(TYPE, a, b) _Generic((TYPE)0, f32: least_f32, f64: least_f64)(a, b)
#define FLOAT_GREATEST(TYPE, a, b) _Generic((TYPE)0, f32: greatest_f32, f64: greatest_f64)(a, b)
#define c64_product(TYPE, a, b) product_of_c64(a, b)
#define c128_product(TYPE, a, b) product_of_c128(a, b)

INLINE f32 quiet_f32(f32 x) { return x == x ? x : __builtin_nanf(""); }
INLINE f64 quiet_f64(f64 x) { return x == x ? x : __builtin_nan(""); }
INLINE f32 least_f32(f32 a, f32 b) { return a < b || a != a ? a : b; }
INLINE f64 least_f64(f64 a, f64 b) { return a < b || a != a ? a : b; }
INLINE f32 greatest_f32(f32 a, f32 b) { return a > b || a != a ? a : b; }
INLINE f64 greatest_f64(f64 a, f64 b) { return a > b || a != a ? a : b; }

INLINE c64 product_of_c64(c64 a, c64 b) {
    return (c64){quiet_f32(a.re * b.re - a.im * b.im), quiet_f32(a.re * b.im + a.im * b.re)};
}
INLINE c128 product_of_c128(c128 a, c128 b) {
    return (c128){quiet_f64(a.re * b.re - a.im * b.im), quiet_f64(a.re * b.im + a.im * b.re)};
}

INLINE bool is_power_of_two(size_t n) { return (n & (n - 1)) == 0; }

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

/* bfloat16 is the upper half of a float32. */
INLINE f32 bf16_to_f32(u16 half) { return of_bits((u32)half << 16); }
INLINE u16 f32_to_bf16(f32 x) {
    const u32 bits = bits_of(x);
    const u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (u16)(x == x ? rounded : 0x7fc0);
}

/* float16 has 10 bits of fraction for float32's 23, and exponents from 2^-14 to 2^15. */
INLINE f32 f16_to_f32(u16 half) {
    const u32 magnitude = (u32)(half & 0x7fff) << 13;
    const u32 sign = (u32)(half & 0x8000) << 16;
    /* Both exponents are biased, by 15 and by 127. A product, not a sum of bits, since that also
     * makes normal what is subnormal in float16. */
    const f32 finite = of_bits(magnitude) * 0x1p112f;
    const u32 bits = magnitude < 0x7c00u << 13 ? bits_of(finite) : magnitude | 0x7f800000;
    return of_bits(sign | bits);
}
INLINE u16 f32_to_f16(f32 x) {
    const u32 sign = bits_of(x) >> 16 & 0x8000;
    const u32 magnitude = bits_of(x) & 0x7fffffff;
    const u32 normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* Next to 0.5 a float32 is spaced as float16's subnormal numbers are: the sum rounds to that. */
    const u32 subnormal = bits_of(of_bits(magnitude) + 0.5f) - bits_of(0.5f);
    const u32 infinite = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    const u32 half = magnitude < 113u << 23   ? subnormal
                     : magnitude < 143u << 23 ? normal /* it may carry into 0x7c00, infinity */
                                              : infinite;
    return (u16)(magnitude > 0x7f800000 ? half : sign | half);
}

/* ---- the loops, and who can run which ---- */

typedef void fold_loop(void *out, const void *const in[], size_t count);
typedef void divide_loop(void *out, const void *sums, size_t count, size_t divisor);

/* The loops of one operation on one type: [the first operand is wide][the result is wide][there
 * are four operands, not two], where wide means float32 for halves and nothing else for others. */
typedef struct {
    fold_loop *loop[2][2][2];
} fold;

typedef struct {
    fold folds[AH_OPS][AH_TYPES]; /* none of AVG: it is SUM, then `divide` */
    divide_loop *divide[AH_TYPES]; /* from wide sums */
} loops;

#define TARGET
#define NAMED(NAME) NAME##_baseline
#include "loops.h"
#undef TARGET
#undef NAMED

static const loops *loops_of_this_processor(void) { return &loops_baseline; }

/* ---- the interface ---- */

enum { BLOCK = 4096 }; /* bytes of an intermediate result: a fraction of any L1 cache */

size_t ah_type_size(ah_type type) {
    static const u8 sizes[AH_TYPES] = {
        [AH_BOOL] = 1,    [AH_INT8] = 1,      [AH_INT16] = 2,    [AH_INT32] = 4,
        [AH_INT64] = 8,   [AH_UINT8] = 1,     [AH_UINT16] = 2,   [AH_UINT32] = 4,
        [AH_UINT64] = 8,  [AH_FLOAT16] = 2,   [AH_BFLOAT16] = 2, [AH_FLOAT32] = 4,
        [AH_FLOAT64] = 8, [AH_COMPLEX64] = 8, [AH_COMPLEX128] = 16,
    };
    return sizes[type];
}

bool ah_supports(ah_op op, ah_type type) {
    if ((unsigned)op >= AH_OPS || (unsigned)type >= AH_TYPES) return false;
    if (op == AH_AVG) return loops_baseline.divide[type] != NULL;
    return loops_baseline.folds[op][type].loop[0][0][0] != NULL;
}

static bool is_half(ah_type type) { return type == AH_FLOAT16 || type == AH_BFLOAT16; }

static bool is_complex(ah_type type) { return type == AH_COMPLEX64 || type == AH_COMPLEX128; }

/* Fold `count` elements of every operand from byte `at` on; the result is wide if `wide` says so.
 * `scratch` holds `count` wide elements, and may be `out`. */
static void fold_block(const fold *fold, void *out, bool wide, void *scratch,
                       const void *const in[], int n, size_t at, size_t count) {
    const void *group[4];
    bool begun = false;
    for (int taken = 0; taken < n;) {
        int width = 0;
        if (begun) group[width++] = scratch;
        const int capacity = n - taken >= 4 - width ? 4 : 2;
        while (width < capacity) group[width++] = (const char *)in[taken++] + at;
        const bool last = taken == n;
        fold->loop[begun][last ? wide : true][capacity == 4](last ? out : scratch, group, count);
        begun = true;
    }
}

void ah_fold(ah_op op, ah_type type, void *out, const void *const in[], int n, size_t count,
             size_t divisor) {
    const size_t size = ah_type_size(type);
    if (count == 0) return;
    if (op != AH_AVG && n == 1) {
        if (out != in[0]) memcpy(out, in[0], count * size);
        return;
    }
    const loops *loops = loops_of_this_processor();
    const fold *fold = &loops->folds[op == AH_AVG ? AH_SUM : op][type];
    /* Sums of complex numbers are sums of their parts. */
    const size_t lanes = is_complex(type) && op != AH_PRODUCT ? 2 : 1;
    if (op != AH_AVG && (n == 2 || n == 4)) {
        fold->loop[0][0][n == 4](out, in, count * lanes);
        return;
    }
    /* Of one operand there is no sum; its maximum with itself is itself, but wide. */
    const void *const twice[] = {in[0], in[0]};
    if (n == 1) {
        const ah_type part = type == AH_COMPLEX64    ? AH_FLOAT32
                             : type == AH_COMPLEX128 ? AH_FLOAT64
                                                     : type;
        fold = &loops->folds[AH_MAX][part];
        in = twice;
        n = 2;
    }
    _Alignas(64) u8 scratch[BLOCK];
    const size_t block = BLOCK / (is_half(type) ? sizeof(f32) : size);
    for (size_t done = 0; done < count; done += block) {
        const size_t some = count - done < block ? count - done : block;
        u8 *result = (u8 *)out + done * size;
        fold_block(fold, op == AH_AVG ? scratch : result, op == AH_AVG, scratch, in, n, done * size,
                   some * lanes);
        if (op == AH_AVG) loops->divide[type](result, scratch, some, divisor);
    }
}

void ah_copy(void *to, const void *from, size_t nbytes, bool once) {
    (void)once;
    if (nbytes != 0) memcpy(to, from, nbytes);
}
