/* Which loop folds what, and in what blocks. The loops themselves are in loops.h.
 *
 * Every processor gives the same bits: no operation is contracted or reordered, and of NaNs there
 * is one (quiet, positive, without payload), because whose payload survives would depend on the
 * order in which a compiler puts the operands.
 */
#include "kernels/kernels.h"

#include <stdint.h>
#include <string.h>

#include "kernels/copy.h"

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
#define INDEPENDENT_FOR(i, count) INDEPENDENT for (size_t i = 0; i < count; i++)

/* ---- what is done to one element ---- */

#define AS_IS(x) (x)
#define IS_TRUE_u8(x) ((u8)((x) != 0))
#define IS_TRUE_u16(x) ((u16)((x) != 0))
#define IS_TRUE_u32(x) ((u32)((x) != 0))
#define IS_TRUE_u64(x) ((u64)((x) != 0))
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
/* One condition a line is what compilers turn into vector code. */
#define CHOICE(NAME, TYPE, BEFORE)                                                                 \
    INLINE TYPE NAME(TYPE a, TYPE b) {                                                             \
        const TYPE chosen = a BEFORE b ? a : b; /* b where either is NaN */                        \
        return a == a ? chosen : a;                                                                \
    }
CHOICE(least_f32, f32, <)
CHOICE(least_f64, f64, <)
CHOICE(greatest_f32, f32, >)
CHOICE(greatest_f64, f64, >)

INLINE c64 product_of_c64(c64 a, c64 b) {
    return (c64){quiet_f32(a.re * b.re - a.im * b.im), quiet_f32(a.re * b.im + a.im * b.re)};
}
INLINE c128 product_of_c128(c128 a, c128 b) {
    return (c128){quiet_f64(a.re * b.re - a.im * b.im), quiet_f64(a.re * b.im + a.im * b.re)};
}

INLINE bool is_power_of_two(size_t n) { return (n & (n - 1)) == 0; }

#include "kernels/small_floats.h"

/* ---- the loops, and who can run which ---- */

typedef void fold_loop(void *out, const void *const in[], size_t count);
typedef void divide_loop(void *out, const void *sums, size_t count, size_t divisor);

/* The loops of one operation on one type: [the first operand is wide][the result is wide][there
 * are four operands, not two], where wide means float32 for narrower floats, for others nothing. */
typedef struct {
    fold_loop *loop[2][2][2];
} fold;

typedef struct {
    fold folds[AH_OPS][AH_TYPES];  /* none of AVG: it is SUM, then `divide` */
    divide_loop *divide[AH_TYPES]; /* from wide sums */
} loops;

#define TARGET
#define NAMED(NAME) NAME##_baseline
#include "kernels/loops.h"
#undef TARGET
#undef NAMED

#if defined(__x86_64__)
#include "kernels/half_floats_avx2.h"
#define NAMED(NAME) NAME##_avx2
#include "kernels/loops.h"
#undef TARGET
#undef NAMED
#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* Not by __builtin_cpu_supports: with some compilers' libraries (zig's) that is always false. */
static bool has_avx2_and_f16c(void) {
    const unsigned saved_by_system = bit_OSXSAVE | bit_AVX | bit_F16C;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & saved_by_system) != saved_by_system) return false;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    const unsigned vectors = 6; /* their lower and upper halves */
    return (low & vectors) == vectors && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}
#endif

static const loops *loops_of_this_processor = &loops_baseline;

/* Once: where the processor is a virtual one, asking it takes microseconds. */
__attribute__((constructor)) static void find_loops(void) {
#if defined(__x86_64__)
    if (has_avx2_and_f16c()) loops_of_this_processor = &loops_avx2;
#endif
}

bool ah_has_avx2(void) { return loops_of_this_processor != &loops_baseline; }

const char *ah_instructions(void) { return ah_has_avx2() ? "avx2" : "baseline"; }

/* ---- past the caches ---- */

/* Bytes from which a copy that will not be read soon is made past the caches. Targets that are in
 * no cache gain from 16 KiB on, by half; below, the fence at the end costs as much. */
enum { COPY_PAST = 16 << 10 };
/* Bytes from which a result is that is no operand: so large that its beginning has left the caches
 * by its end. From two operands in memory this takes a fifth off the time, from four a tenth. */
enum { FOLD_PAST = 16 << 20 };
enum { LINE = 64 };

/* Whole lines, to an address that is a multiple of LINE. The stores are ordered by nothing but
 * `publish_past`. ThreadSanitizer does not see these stores, so it gets others. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
static const bool can_store_past = true;
static void store_past(void *to, const void *from, size_t nbytes) {
    __m128i *out = to;
    const __m128i *in = from;
    for (const __m128i *end = in + nbytes / sizeof *in; in < end; in += 4, out += 4) {
        _mm_prefetch((const char *)in + 2048, _MM_HINT_T0); /* past the end it does nothing */
        const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
}
static void publish_past(void) { _mm_sfence(); }
#else
static const bool can_store_past = false;
static void store_past(void *to, const void *from, size_t nbytes) { memcpy(to, from, nbytes); }
static void publish_past(void) {}
#endif

static size_t bytes_to_line(const void *address) { return -(uintptr_t)address % LINE; }

void ah_copy(void *to, const void *from, size_t nbytes, bool once) {
    if (nbytes == 0) return;
    if (!can_store_past || !once || nbytes < COPY_PAST) {
        ah_copy_bytes(to, from, nbytes);
        return;
    }
    const size_t head = bytes_to_line(to);
    const size_t lines = (nbytes - head) / LINE * LINE;
    memcpy(to, from, head);
    store_past((char *)to + head, (const char *)from + head, lines);
    memcpy((char *)to + head + lines, (const char *)from + head + lines, nbytes - head - lines);
    publish_past();
}

/* ---- the interface ---- */

enum { BLOCK = 4096 }; /* bytes of an intermediate result: a fraction of any L1 cache */

size_t ah_type_size(ah_type type) {
    static const u8 sizes[AH_TYPES] = {
        [AH_BOOL] = 1,        [AH_INT8] = 1,      [AH_INT16] = 2,       [AH_INT32] = 4,
        [AH_INT64] = 8,       [AH_UINT8] = 1,     [AH_UINT16] = 2,      [AH_UINT32] = 4,
        [AH_UINT64] = 8,      [AH_FLOAT16] = 2,   [AH_BFLOAT16] = 2,    [AH_FLOAT32] = 4,
        [AH_FLOAT64] = 8,     [AH_COMPLEX64] = 8, [AH_COMPLEX128] = 16, [AH_FLOAT8_E4M3FN] = 1,
        [AH_FLOAT8_E5M2] = 1,
    };
    return sizes[type];
}

bool ah_supports(ah_op op, ah_type type) {
    if ((unsigned)op >= AH_OPS || (unsigned)type >= AH_TYPES) return false;
    if (op == AH_AVG) return loops_baseline.divide[type] != NULL;
    return loops_baseline.folds[op][type].loop[0][0][0] != NULL;
}

/* Whether it is folded in float32. */
static bool is_narrow(ah_type type) {
    return type == AH_FLOAT16 || type == AH_BFLOAT16 || type == AH_FLOAT8_E4M3FN ||
           type == AH_FLOAT8_E5M2;
}

static bool is_logical(ah_op op) { return op == AH_LAND || op == AH_LOR || op == AH_LXOR; }

static bool is_complex(ah_type type) { return type == AH_COMPLEX64 || type == AH_COMPLEX128; }

/* Fold `count` elements of every operand from byte `at` on; the result is wide if `wide` says so.
 * `scratch` holds `count` wide elements, and may be `out`. */
static void fold_block(const fold *how, void *out, bool wide, void *scratch, const void *const in[],
                       int n, size_t at, size_t count) {
    const void *group[4];
    bool begun = false;
    for (int taken = 0; taken < n;) {
        int width = 0;
        if (begun) group[width++] = scratch;
        const int capacity = n - taken >= 4 - width ? 4 : 2;
        while (width < capacity) group[width++] = (const char *)in[taken++] + at;
        const bool last = taken == n;
        how->loop[begun][last ? wide : true][capacity == 4](last ? out : scratch, group, count);
        begun = true;
    }
}

static bool goes_past(const void *out, const void *const in[], int n, size_t size, size_t count) {
    if (!can_store_past || count < FOLD_PAST / size || (uintptr_t)out % size != 0) return false;
    for (int i = 0; i < n; i++)
        if (out == in[i]) return false; /* its lines are in the cache, having been read */
    return true;
}

void ah_fold(ah_op op, ah_type type, void *out, const void *const in[], int n, size_t count,
             size_t divisor) {
    const size_t size = ah_type_size(type);
    if (count == 0) return;
    if (n == 1 && op != AH_AVG && !is_logical(op)) {
        if (out != in[0]) ah_copy_bytes(out, in[0], count * size);
        return;
    }
    const loops *set = loops_of_this_processor;
    const fold *how = &set->folds[op == AH_AVG ? AH_SUM : op][type];
    /* Sums of complex numbers are sums of their parts. */
    const size_t lanes = is_complex(type) && op != AH_PRODUCT ? 2 : 1;
    const bool past = goes_past(out, in, n, size, count);
    if (op != AH_AVG && (n == 2 || n == 4) && !past) {
        how->loop[0][0][n == 4](out, in, count * lanes);
        return;
    }
    /* Of one operand there is no sum; its maximum with itself is itself, but wide. It and itself
     * are as true as it is. */
    const void *const twice[] = {in[0], in[0]};
    if (n == 1 && is_logical(op)) {
        set->folds[AH_LAND][type].loop[0][0][0](out, twice, count);
        return;
    }
    if (n == 1) {
        const ah_type part = type == AH_COMPLEX64    ? AH_FLOAT32
                             : type == AH_COMPLEX128 ? AH_FLOAT64
                                                     : type;
        how = &set->folds[AH_MAX][part];
        in = twice;
        n = 2;
    }
    _Alignas(LINE) u8 scratch[BLOCK], finished[BLOCK];
    const size_t block = BLOCK / (is_narrow(type) ? sizeof(f32) : size);
    size_t some = past ? bytes_to_line(out) / size : block; /* then all others begin a line */
    for (size_t done = 0; done < count; done += some, some = block) {
        if (some > count - done) some = count - done;
        u8 *const there = (u8 *)out + done * size;
        u8 *const result = past && some == block ? finished : there;
        fold_block(how, op == AH_AVG ? scratch : result, op == AH_AVG, scratch, in, n, done * size,
                   some * lanes);
        if (op == AH_AVG) set->divide[type](result, scratch, some, divisor);
        if (result == finished) store_past(there, finished, some * size);
    }
    if (past) publish_past();
}
