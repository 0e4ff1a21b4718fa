/* Pairwise swap: staging boxes of pairs of ranks, in which the reader is the next writer.
 *
 * A pair of ranks shares four boxes: two sides and two parities. In step u rank r writes the box of
 * side (r is the higher one) + u / 2, parity u: the one which it read in step u - 2. So the lines
 * of a box pass to and fro between the same two processors, which writes them at full speed even
 * where processors are far apart; and no rank ever waits for a box to be free, only for data.
 *
 * For that reason the first step of the next call may be produced before other ranks have posted
 * it, if the steps are numbered on (`phase`) from a swap that ended well here, with no other use of
 * staging since (`phase_known`): the box is one that this rank has read, and its former writer
 * leaves it alone. Where the ranks turn out not to agree on the phase, all start again from step 0,
 * after all have posted: law 4 of layout.h.
 */
#ifndef ALLHANDS_PAIRWISE_SWAP_H
#define ALLHANDS_PAIRWISE_SWAP_H

#include "comm/comm_state.h"

typedef struct {
    uint64_t steps; /* the same on all ranks */
    const void *what;
    /* Write what `peer` gets in this step into its box; nothing is fine. */
    void (*produce)(const ah_comm *comm, const void *what, int peer, uint64_t step, char *box);
    /* Read what all others wrote in this step; boxes[own rank] is NULL. */
    void (*consume)(const ah_comm *comm, const void *what, uint64_t step, char *const boxes[]);
} ah_swap;

/* Before ah_post_header: sets its flags and phase; with `early` produces the first step. */
void ah_swap_open(ah_comm *comm, const ah_swap *swap, bool early, ah_call_header *header);
/* After all headers have come. */
ah_status ah_swap_run(ah_comm *comm, const ah_swap *swap);

#endif
