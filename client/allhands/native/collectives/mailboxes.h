/* Reductions among three ranks and more: each folds one slice for all and sends the result back.
 *
 * One box per ordered pair (r, p) and parity: r puts p's slice of its array there, p folds the
 * boxes of its slice with its own and writes the result into the same boxes, where r finds it.
 * Every line passes to and fro between the same two ranks, as in pairwise_swap.h, and r needs to
 * wait for no rank before it writes a box again: it has read the result from it.
 */
#ifndef ALLHANDS_MAILBOXES_H
#define ALLHANDS_MAILBOXES_H

#include "comm/comm_state.h"
#include "kernels/kernels.h"

/* For a result that goes to all: produce the first step before others have posted the call, if
 * every box is back from the last time (`boxes_returned`): its reader has left it alone since it
 * wrote there. */
void ah_mailbox_reduce_open(ah_comm *comm, const void *in, size_t nbytes);

/* `out` gets the result; ranks without `out` get none. To all ranks, or to `root` alone
 * (-1: all). */
ah_status ah_mailbox_reduce(ah_comm *comm, ah_op op, ah_type type, const char *in, char *out,
                            size_t nbytes, int root);

#endif
