/* The loops over elements, for one instruction set. kernels.c includes this file once for each,
 * with TARGET (the attribute of its functions) and NAMED (the suffix of their names) defined.
 *
 * Plain loops that compilers turn into vector code. No iteration reads what another has written,
 * also where `out` is one of the operands: that is what INDEPENDENT_FOR tells the compiler.
 */

/* NAME_2 and NAME_4: fold two or four operands, the first of which may be of another type. */
#define LOOP(NAME, ACC, FIRST, REST, OUT, GET_FIRST, GET, OP, PUT)                                 \
    TARGET static void NAMED(NAME##_2)(void *out_, const void *const in[], size_t count) {         \
        OUT *out = out_;                                                                           \
        const FIRST *a = in[0];                                                                    \
        const REST *b = in[1];                                                                     \
        INDEPENDENT_FOR (i, count) {                                                               \
            const ACC ab = OP(ACC, GET_FIRST(a[i]), GET(b[i]));                                    \
            out[i] = PUT(ab);                                                                      \
        }                                                                                          \
    }                                                                                              \
    TARGET static void NAMED(NAME##_4)(void *out_, const void *const in[], size_t count) {         \
        OUT *out = out_;                                                                           \
        const FIRST *a = in[0];                                                                    \
        const REST *b = in[1], *c = in[2], *d = in[3];                                             \
        INDEPENDENT_FOR (i, count) {                                                               \
            const ACC ab = OP(ACC, GET_FIRST(a[i]), GET(b[i]));                                    \
            const ACC abc = OP(ACC, ab, GET(c[i]));                                                \
            const ACC abcd = OP(ACC, abc, GET(d[i]));                                              \
            out[i] = PUT(abcd);                                                                    \
        }                                                                                          \
    }

#define SAME_LOOP(NAME, TYPE, GET, OP, PUT)                                                        \
    LOOP(NAME, TYPE, any_##TYPE, any_##TYPE, any_##TYPE, GET, GET, OP, PUT)

/* Integers: sums, products, bits and what is true do not depend on the sign. */
#define UNSIGNED_LOOPS(TYPE)                                                                       \
    SAME_LOOP(sum_##TYPE, TYPE, AS_IS, SUM, AS_IS)                                                 \
    SAME_LOOP(product_##TYPE, TYPE, AS_IS, UNSIGNED_PRODUCT, AS_IS)                                \
    SAME_LOOP(min_##TYPE, TYPE, AS_IS, LEAST, AS_IS)                                               \
    SAME_LOOP(max_##TYPE, TYPE, AS_IS, GREATEST, AS_IS)                                            \
    SAME_LOOP(and_##TYPE, TYPE, AS_IS, AND, AS_IS)                                                 \
    SAME_LOOP(or_##TYPE, TYPE, AS_IS, OR, AS_IS)                                                   \
    SAME_LOOP(xor_##TYPE, TYPE, AS_IS, XOR, AS_IS)                                                 \
    SAME_LOOP(land_##TYPE, TYPE, IS_TRUE_##TYPE, AND, AS_IS)                                       \
    SAME_LOOP(lor_##TYPE, TYPE, IS_TRUE_##TYPE, OR, AS_IS)                                         \
    SAME_LOOP(lxor_##TYPE, TYPE, IS_TRUE_##TYPE, XOR, AS_IS)
#define SIGNED_LOOPS(TYPE)                                                                         \
    SAME_LOOP(min_##TYPE, TYPE, AS_IS, LEAST, AS_IS)                                               \
    SAME_LOOP(max_##TYPE, TYPE, AS_IS, GREATEST, AS_IS)

/* Towards zero. Narrow sums are divided as 32 bits, which hold the size of any group. */
#define INTEGER_DIVISION(TYPE, DIVISOR)                                                            \
    TARGET static void NAMED(divide_##TYPE)(void *out_, const void *sums, size_t count,            \
                                            size_t divisor) {                                      \
        any_##TYPE *out = out_;                                                                    \
        const any_##TYPE *sum = sums;                                                              \
        const DIVISOR by = (DIVISOR)divisor;                                                       \
        INDEPENDENT_FOR (i, count) out[i] = (TYPE)(sum[i] / by);                                   \
    }

INTEGER_DIVISION(u8, u32)
INTEGER_DIVISION(u16, u32)
INTEGER_DIVISION(u32, u32)
INTEGER_DIVISION(u64, u64)
INTEGER_DIVISION(i8, i32)
INTEGER_DIVISION(i16, i32)
INTEGER_DIVISION(i32, i32)
INTEGER_DIVISION(i64, i64)

UNSIGNED_LOOPS(u8)
UNSIGNED_LOOPS(u16)
UNSIGNED_LOOPS(u32)
UNSIGNED_LOOPS(u64)
SIGNED_LOOPS(i8)
SIGNED_LOOPS(i16)
SIGNED_LOOPS(i32)
SIGNED_LOOPS(i64)

/* A byte that is not 0 is true, as in NumPy. */
SAME_LOOP(and_bool, u8, IS_TRUE_u8, AND, AS_IS)
SAME_LOOP(or_bool, u8, IS_TRUE_u8, OR, AS_IS)
SAME_LOOP(xor_bool, u8, IS_TRUE_u8, XOR, AS_IS)

#define FLOAT_LOOPS(TYPE)                                                                          \
    SAME_LOOP(sum_##TYPE, TYPE, AS_IS, SUM, QUIET)                                                 \
    SAME_LOOP(product_##TYPE, TYPE, AS_IS, PRODUCT, QUIET)                                         \
    SAME_LOOP(min_##TYPE, TYPE, AS_IS, FLOAT_LEAST, QUIET)                                         \
    SAME_LOOP(max_##TYPE, TYPE, AS_IS, FLOAT_GREATEST, QUIET)                                      \
    TARGET static void NAMED(divide_##TYPE)(void *out_, const void *sums, size_t count,            \
                                            size_t divisor) {                                      \
        any_##TYPE *out = out_;                                                                    \
        const any_##TYPE *sum = sums;                                                              \
        const TYPE by = (TYPE)divisor, times = 1 / by;                                             \
        if (is_power_of_two(divisor)) /* the same bits, sooner */                                  \
            INDEPENDENT_FOR (i, count) out[i] = QUIET(sum[i] * times);                             \
        else                                                                                       \
            INDEPENDENT_FOR (i, count) out[i] = QUIET(sum[i] / by);                                \
    }

FLOAT_LOOPS(f32)
FLOAT_LOOPS(f64)

/* Sums of complex numbers are sums of twice as many real ones. The quotient is Smith's, which
 * NumPy uses: with a real divisor it multiplies, and lets an infinite part spoil the other. */
#define COMPLEX_LOOPS(TYPE, REAL)                                                                  \
    SAME_LOOP(product_##TYPE, TYPE, AS_IS, TYPE##_product, AS_IS)                                  \
    TARGET static void NAMED(divide_##TYPE)(void *out_, const void *sums, size_t count,            \
                                            size_t divisor) {                                      \
        any_##TYPE *out = out_;                                                                    \
        const any_##TYPE *sum = sums;                                                              \
        const REAL zero = 0, times = 1 / (REAL)divisor;                                            \
        INDEPENDENT_FOR (i, count) {                                                               \
            const REAL re = sum[i].re, im = sum[i].im;                                             \
            out[i].re = QUIET((re + im * zero) * times);                                           \
            out[i].im = QUIET((im - re * zero) * times);                                           \
        }                                                                                          \
    }

COMPLEX_LOOPS(c64, f32)
COMPLEX_LOOPS(c128, f64)

#define NARROW_LOOP(NAME, STORE, WIDEN, NARROW, OP)                                                \
    LOOP(NAME, f32, any_##STORE, any_##STORE, any_##STORE, WIDEN, WIDEN, OP, NARROW)               \
    LOOP(NAME##_open, f32, any_##STORE, any_##STORE, any_f32, WIDEN, WIDEN, OP, AS_IS)             \
    LOOP(NAME##_more, f32, any_f32, any_##STORE, any_f32, AS_IS, WIDEN, OP, AS_IS)                 \
    LOOP(NAME##_close, f32, any_f32, any_##STORE, any_##STORE, AS_IS, WIDEN, OP, NARROW)
#define NARROW_LOOPS(TYPE, STORE)                                                                  \
    NARROW_LOOP(sum_##TYPE, STORE, TYPE##_to_f32, f32_to_##TYPE, SUM)                              \
    NARROW_LOOP(product_##TYPE, STORE, TYPE##_to_f32, f32_to_##TYPE, PRODUCT)                      \
    NARROW_LOOP(min_##TYPE, STORE, TYPE##_to_f32, f32_to_##TYPE, FLOAT_LEAST)                      \
    NARROW_LOOP(max_##TYPE, STORE, TYPE##_to_f32, f32_to_##TYPE, FLOAT_GREATEST)                   \
    TARGET static void NAMED(divide_##TYPE)(void *out_, const void *sums, size_t count,            \
                                            size_t divisor) {                                      \
        any_##STORE *out = out_;                                                                   \
        const any_f32 *sum = sums;                                                                 \
        const f32 by = (f32)divisor;                                                               \
        INDEPENDENT_FOR (i, count) out[i] = f32_to_##TYPE(sum[i] / by);                            \
    }
#ifndef HALF_LOOPS
#define HALF_LOOPS(TYPE) NARROW_LOOPS(TYPE, u16)
#endif

HALF_LOOPS(f16)
HALF_LOOPS(bf16)
NARROW_LOOPS(e4m3fn, u8)
NARROW_LOOPS(e5m2, u8)

/* Of the type's own throughout: there is no wider one that it is computed in. */
#define PLAIN(NAME)                                                                                \
    {                                                                                              \
        {                                                                                          \
            {{NAMED(NAME##_2), NAMED(NAME##_4)}, {NAMED(NAME##_2), NAMED(NAME##_4)}},              \
                {{NAMED(NAME##_2), NAMED(NAME##_4)}, {NAMED(NAME##_2), NAMED(NAME##_4)}},          \
        }                                                                                          \
    }
#define WIDENED(NAME)                                                                              \
    {                                                                                              \
        {                                                                                          \
            {{NAMED(NAME##_2), NAMED(NAME##_4)}, {NAMED(NAME##_open_2), NAMED(NAME##_open_4)}},    \
                {{NAMED(NAME##_close_2), NAMED(NAME##_close_4)},                                   \
                 {NAMED(NAME##_more_2), NAMED(NAME##_more_4)}},                                    \
        }                                                                                          \
    }

#define BITS(OP, OF_BOOL)                                                                          \
    {                                                                                              \
        [AH_BOOL] = PLAIN(OF_BOOL##_bool), [AH_INT8] = PLAIN(OP##_u8),                             \
        [AH_INT16] = PLAIN(OP##_u16),      [AH_INT32] = PLAIN(OP##_u32),                           \
        [AH_INT64] = PLAIN(OP##_u64),      [AH_UINT8] = PLAIN(OP##_u8),                            \
        [AH_UINT16] = PLAIN(OP##_u16),     [AH_UINT32] = PLAIN(OP##_u32),                          \
        [AH_UINT64] = PLAIN(OP##_u64),                                                             \
    }
#define ORDER(OP, OF_BOOL)                                                                         \
    {                                                                                              \
        [AH_BOOL] = PLAIN(OF_BOOL##_bool),     [AH_INT8] = PLAIN(OP##_i8),                         \
        [AH_INT16] = PLAIN(OP##_i16),          [AH_INT32] = PLAIN(OP##_i32),                       \
        [AH_INT64] = PLAIN(OP##_i64),          [AH_UINT8] = PLAIN(OP##_u8),                        \
        [AH_UINT16] = PLAIN(OP##_u16),         [AH_UINT32] = PLAIN(OP##_u32),                      \
        [AH_UINT64] = PLAIN(OP##_u64),         [AH_FLOAT16] = WIDENED(OP##_f16),                   \
        [AH_BFLOAT16] = WIDENED(OP##_bf16),    [AH_FLOAT8_E4M3FN] = WIDENED(OP##_e4m3fn),          \
        [AH_FLOAT8_E5M2] = WIDENED(OP##_e5m2), [AH_FLOAT32] = PLAIN(OP##_f32),                     \
        [AH_FLOAT64] = PLAIN(OP##_f64),                                                            \
    }
#define ARITHMETIC(OP, OF_BOOL, OF_C64, OF_C128)                                                   \
    {                                                                                              \
        [AH_BOOL] = PLAIN(OF_BOOL##_bool),                                                         \
        [AH_INT8] = PLAIN(OP##_u8),                                                                \
        [AH_INT16] = PLAIN(OP##_u16),                                                              \
        [AH_INT32] = PLAIN(OP##_u32),                                                              \
        [AH_INT64] = PLAIN(OP##_u64),                                                              \
        [AH_UINT8] = PLAIN(OP##_u8),                                                               \
        [AH_UINT16] = PLAIN(OP##_u16),                                                             \
        [AH_UINT32] = PLAIN(OP##_u32),                                                             \
        [AH_UINT64] = PLAIN(OP##_u64),                                                             \
        [AH_FLOAT16] = WIDENED(OP##_f16),                                                          \
        [AH_BFLOAT16] = WIDENED(OP##_bf16),                                                        \
        [AH_FLOAT8_E4M3FN] = WIDENED(OP##_e4m3fn),                                                 \
        [AH_FLOAT8_E5M2] = WIDENED(OP##_e5m2),                                                     \
        [AH_FLOAT32] = PLAIN(OP##_f32),                                                            \
        [AH_FLOAT64] = PLAIN(OP##_f64),                                                            \
        [AH_COMPLEX64] = PLAIN(OP##_##OF_C64),                                                     \
        [AH_COMPLEX128] = PLAIN(OP##_##OF_C128),                                                   \
    }

static const loops NAMED(loops) = {
    .folds =
        {
            [AH_SUM] = ARITHMETIC(sum, or, f32, f64),
            [AH_PRODUCT] = ARITHMETIC(product, and, c64, c128),
            [AH_MIN] = ORDER(min, and),
            [AH_MAX] = ORDER(max, or),
            [AH_BAND] = BITS(and, and),
            [AH_BOR] = BITS(or, or),
            [AH_BXOR] = BITS(xor, xor),
            [AH_LAND] = BITS(land, and),
            [AH_LOR] = BITS(lor, or),
            [AH_LXOR] = BITS(lxor, xor),
        },
    .divide =
        {
            [AH_INT8] = NAMED(divide_i8),
            [AH_INT16] = NAMED(divide_i16),
            [AH_INT32] = NAMED(divide_i32),
            [AH_INT64] = NAMED(divide_i64),
            [AH_UINT8] = NAMED(divide_u8),
            [AH_UINT16] = NAMED(divide_u16),
            [AH_UINT32] = NAMED(divide_u32),
            [AH_UINT64] = NAMED(divide_u64),
            [AH_FLOAT16] = NAMED(divide_f16),
            [AH_BFLOAT16] = NAMED(divide_bf16),
            [AH_FLOAT8_E4M3FN] = NAMED(divide_e4m3fn),
            [AH_FLOAT8_E5M2] = NAMED(divide_e5m2),
            [AH_FLOAT32] = NAMED(divide_f32),
            [AH_FLOAT64] = NAMED(divide_f64),
            [AH_COMPLEX64] = NAMED(divide_c64),
            [AH_COMPLEX128] = NAMED(divide_c128),
        },
};

#undef LOOP
#undef SAME_LOOP
#undef UNSIGNED_LOOPS
#undef SIGNED_LOOPS
#undef INTEGER_DIVISION
#undef FLOAT_LOOPS
#undef COMPLEX_LOOPS
#undef NARROW_LOOP
#undef NARROW_LOOPS
#undef HALF_LOOPS
#undef PLAIN
#undef WIDENED
#undef BITS
#undef ORDER
#undef ARITHMETIC
