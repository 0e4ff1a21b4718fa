/* Reductions of middling arrays of three ranks, at a root that alone folds.
 *
 * Each other rank copies its array to its staging buffer and is done; the root folds all in one
 * pass. For all ranks together that is less than mailboxes.h costs, and they meet once: what counts
 * where they wait for processors more than for memory.
 *
 * A rank writes before others have posted the call where its buffer was used last for that root,
 * which is done with it (`lent_to`, `lent_at`): nobody but those two touches it then. So it need
 * not wait for the others at all, as in calls whose data is in slots.
 */
#ifndef ALLHANDS_ROOT_FOLD_H
#define ALLHANDS_ROOT_FOLD_H

#include "comm/comm_state.h"
#include "kernels/kernels.h"

/* Whether that is faster; the same answer on all ranks. */
bool ah_folds_at_root(const ah_comm *comm, size_t nbytes);

/* Before posting, on a rank that is not the root. */
void ah_root_fold_open(ah_comm *comm, const void *in, size_t nbytes, int root);
/* Whether that has put the array there in the call under way. */
bool ah_root_fold_is_open(const ah_comm *comm);

/* `out` on the root only, where it may be `in`. On other ranks without waiting, after that. */
ah_status ah_root_fold(ah_comm *comm, ah_op op, ah_type type, const char *in, char *out,
                       size_t nbytes, int root);

#endif
