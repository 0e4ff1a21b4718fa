/* Reductions of middling arrays of three ranks, at a root that alone folds.
 *
 * Each other rank copies its array to its staging (staged_copy.h) and is done; the root folds all
 * in one pass. For all ranks together that is less than mailboxes.h costs, and they meet once, or
 * not at all: what counts where they wait for processors more than for memory.
 */
#ifndef ALLHANDS_ROOT_FOLD_H
#define ALLHANDS_ROOT_FOLD_H

#include "comm/comm_state.h"
#include "kernels/kernels.h"

/* Whether that is faster; the same answer on all ranks. */
bool ah_folds_at_root(const ah_comm *comm, size_t nbytes);

/* After ah_staged_await. `out` on the root only, where it may be `in`. */
ah_status ah_root_fold(ah_comm *comm, uint64_t signature, ah_op op, ah_type type, const char *in,
                       char *out, size_t nbytes, int root);

#endif
