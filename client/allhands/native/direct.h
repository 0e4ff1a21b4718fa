/* Reductions of arrays that lie in heaps which all ranks map: read where they are, no staging in.
 *
 * Each rank folds one slice of all arrays, and the others fetch the result from it. A rank never
 * writes to another's array: one that is stopped in the middle of a call, and goes on long after
 * the others have given that call up, can spoil nothing of theirs. (Writing the results into all
 * arrays would save the second reading, and was measured to gain little: see the commit.)
 */
#ifndef ALLHANDS_DIRECT_H
#define ALLHANDS_DIRECT_H

#include "lane.h"

/* Where all ranks' arrays are in this process, if all are in their heaps; else false. The same
 * answer on all ranks. */
bool ah_direct_inputs(const ah_lane *lane, size_t nbytes, const char *in[]);

/* All-reduce (root -1; `out` is the own one of `in`), or reduce to `root` (`out` there only, and
 * may be its `in`). */
ah_status ah_direct_reduce(ah_lane *lane, ah_op op, ah_type type, const char *const in[], char *out,
                           size_t nbytes, int root);

/* Fold all of `in` into `out`, where the ranks' calls are as those of reduce_scatter. */
ah_status ah_direct_fold(ah_lane *lane, ah_op op, ah_type type, const char *const in[], char *out,
                         size_t nbytes);

#endif
