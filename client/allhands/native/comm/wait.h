/* Waiting for words of other ranks, and waking ranks that wait for ours: futexes as doorbells.
 *
 * Each rank has one doorbell, a futex on which only that rank sleeps: AWAKE, or the rank whose word
 * the sleeper awaits. A rank that is about to sleep writes that, looks once more at the word, and
 * sleeps while the doorbell stays as it is. A rank that publishes writes its word, then looks at
 * the doorbells of the ranks that may wait for it; where one has its own number it puts it back to
 * AWAKE and wakes. Who abandons a call wakes all sleepers, whomever they await: so does a rank that
 * finds a mismatch, and it finds one, for the sleepers posted before it. In both, a store comes
 * before a load of the other's word: all four are seq_cst, so at least one of the two sees the
 * other's store, and no wake-up is lost. (tests/unit/native/test_arena_protocol.py goes through all
 * interleavings, and shows that weaker orders do lose one.)
 */
#ifndef ALLHANDS_WAIT_H
#define ALLHANDS_WAIT_H

#include "comm/comm_state.h"

/* A word that ranks publish at one offset of their areas, awaited to be at least so much. */
typedef struct {
    size_t offset;
    uint64_t least;
    bool from_base; /* counted from the base in each rank's header */
    uint64_t left;  /* a rank that abandoned this call or a later one counts as there; 0: none */
    bool is_slot;   /* it is a slot's number: ranks that are there must have this signature */
    uint64_t signature;
} ah_wait_goal;

static inline _Atomic uint64_t *ah_word_of(const ah_comm *comm, int rank, size_t offset) {
    return (_Atomic uint64_t *)((char *)comm->area[rank] + offset);
}

/* Whether all of `ranks` are there by now. */
bool ah_has_reached(const ah_comm *comm, uint64_t ranks, ah_wait_goal goal);

/* Wait until all of `ranks` are there. AH_OK makes what they wrote before visible. Ranks that have
 * abandoned the call before they came there make it AH_ABANDONED. Where slots are awaited it is
 * AH_MISMATCH as soon as one has another signature, whichever else are still missing. */
ah_status ah_await(ah_comm *comm, uint64_t ranks, ah_wait_goal goal);
ah_status ah_await_produced(ah_comm *comm, uint64_t ranks, uint64_t steps);
ah_status ah_await_consumed(ah_comm *comm, uint64_t ranks, uint64_t steps);
/* The same, or until they have abandoned the call. */
ah_status ah_await_consumed_or_left(ah_comm *comm, uint64_t ranks, uint64_t steps);

/* Wait until the deadline, an interrupt, or one of `ranks` abandons the call. */
ah_status ah_await_call_end(ah_comm *comm, uint64_t ranks);

/* The ones of `ranks` that have abandoned the call under way. Ordered after all reads before. */
uint64_t ah_abandoning(const ah_comm *comm, uint64_t ranks);

/* Before a call sleeps or moves much: lets the shell release the GIL. */
void ah_pause(ah_comm *comm);
void ah_unpause(ah_comm *comm);
/* Between pieces of long work: AH_INTERRUPTED if the call is to end. */
ah_status ah_poll_interrupt(ah_comm *comm);

/* After publishing: ring the doorbells of those of `ranks` that sleep until this rank does. */
void ah_wake(ah_comm *comm, uint64_t ranks);
/* After abandoning: ring those of all that sleep. */
void ah_wake_all(ah_comm *comm);
void ah_wake_rank(ah_area *area);

#endif
