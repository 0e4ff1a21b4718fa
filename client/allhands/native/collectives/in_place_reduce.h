/* Reductions of arrays that lie in heaps which all ranks map: read in place, without staging.
 *
 * Each rank folds its slice of all arrays. In an all-reduce it writes the result into all of them:
 * the reader of a line is its next writer here too. That makes it twice as fast as the swap
 * and, between processors that are far apart, eight times as fast as letting each rank fetch the
 * results into its own array. heap_access.h has how that stays safe when a rank hangs.
 */
#ifndef ALLHANDS_IN_PLACE_REDUCE_H
#define ALLHANDS_IN_PLACE_REDUCE_H

#include "comm/comm_state.h"
#include "kernels/kernels.h"

/* Where all ranks' arrays are in this process, if all are in their heaps; else false. The same
 * answer on all ranks. */
bool ah_in_place_inputs(const ah_comm *comm, size_t nbytes, char *in[]);

/* x[own rank] is the own array; that others write to it is allowed by ah_expose, before posting. */
ah_status ah_in_place_all_reduce(ah_comm *comm, ah_op op, ah_type type, char *const x[],
                                 size_t nbytes);

/* `out` on the root only, where it may be its `in`. */
ah_status ah_in_place_reduce(ah_comm *comm, ah_op op, ah_type type, char *const in[], char *out,
                             size_t nbytes, int root);

/* Each rank folds its `in`, of any ranks' arrays, into its own `out`. */
ah_status ah_in_place_reduce_scatter(ah_comm *comm, ah_op op, ah_type type, char *const in[],
                                     char *out, size_t nbytes);

#endif
