/* Reductions and copies of memory: what is done to every element, on one thread.
 *
 * No Python in here, no shared state, no allocation.
 */
#ifndef ALLHANDS_KERNELS_H
#define ALLHANDS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    AH_BOOL,
    AH_INT8,
    AH_INT16,
    AH_INT32,
    AH_INT64,
    AH_UINT8,
    AH_UINT16,
    AH_UINT32,
    AH_UINT64,
    AH_FLOAT16,
    AH_BFLOAT16,
    AH_FLOAT32,
    AH_FLOAT64,
    AH_COMPLEX64,
    AH_COMPLEX128,
    AH_FLOAT8_E4M3FN,
    AH_FLOAT8_E5M2,
    AH_TYPES
} ah_type;

typedef enum {
    AH_SUM,
    AH_AVG,
    AH_PRODUCT,
    AH_MIN,
    AH_MAX,
    AH_BAND,
    AH_BOR,
    AH_BXOR,
    AH_LAND, /* of what is true, that is, not 0: 0 or 1 */
    AH_LOR,
    AH_LXOR,
    AH_OPS
} ah_op;

size_t ah_type_size(ah_type type);

/* Whether `op` is defined for `type`: the same cells as allhands.collectives.reduction.check
 * allows. */
bool ah_supports(ah_op op, ah_type type);

/* The instructions that folds are made of on this processor: "avx2" or "baseline". */
const char *ah_instructions(void);
bool ah_has_avx2(void);

/* out[i] = in[0][i] op in[1][i] op ... op in[n-1][i], folded from the left; n >= 1.
 *
 * `out` may be one of `in`, exactly; otherwise nothing overlaps. Any alignment that the type has in
 * NumPy. AVG divides the sum by `divisor`, 1 or more, once; integers towards zero. Floats narrower
 * than float32 are folded in it and rounded once, to the nearest, ties to even. With n of 1
 * elements are copied as they are, but for AVG and the logical operations.
 *
 * The bits of a result depend on the values and their order alone, never on count, alignment, the
 * processor, or how a caller cuts an array. They are NumPy's, with two exceptions: every NaN that
 * is computed is the quiet one without sign and payload; and a product of complex numbers rounds
 * every step, where NumPy uses fused operations if the processor has them.
 */
void ah_fold(ah_op op, ah_type type, void *out, const void *const in[], int n, size_t count,
             size_t divisor);

/* Copy; `once` says that the target will not be read soon on this core (it may pass the caches by).
 * A release store after it publishes the copy, either way. */
void ah_copy(void *to, const void *from, size_t nbytes, bool once);

#endif
