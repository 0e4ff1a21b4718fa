/* Waiting for words of other ranks, and waking who waits for ours.
 *
 * Each rank has one doorbell, a word on which only that rank sleeps: AWAKE or ASLEEP. Who is about
 * to sleep writes ASLEEP, looks once more at what it waits for, and sleeps while the word stays
 * ASLEEP. Who publishes something writes it, then looks at the doorbells of those who may wait for
 * it; where one is ASLEEP it puts it back to AWAKE and wakes. In both, a store comes before a load
 * of the other's word: all four are seq_cst, so at least one of the two sees the other's store, and
 * no wake-up is lost. (tests/unit/test_arena_protocol.py goes through all interleavings, and shows
 * that weaker orders do lose one.)
 */
#ifndef ALLHANDS_WAIT_H
#define ALLHANDS_WAIT_H

#include "comm/comm_state.h"

/* A number that ranks publish at the same place of their areas, awaited to be at least so much. */
typedef struct {
    size_t offset;
    uint64_t least;
    bool from_base; /* counted from the base in each rank's terms */
    uint64_t left;  /* who has given up this call or a later one counts as there; 0: nobody */
    bool header;    /* it is a slot's number: who is there must have this signature */
    uint64_t signature;
} ah_goal;

static inline _Atomic uint64_t *ah_word(const ah_lane *lane, int rank, size_t offset) {
    return (_Atomic uint64_t *)((char *)lane->area[rank] + offset);
}

int64_t ah_now(void);
/* How many processors this process may run on. */
int ah_processors(void);
/* A number that no other process has. */
uint64_t ah_new_nonce(void);

/* Between looks of who spins. */
static inline void ah_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* How long to yield, in nanoseconds, before sleep: a sleeper that has a processor to itself is slow
 * to wake, so not before others can have moved what they move meanwhile. */
static inline int64_t ah_patience(size_t nbytes) {
    const size_t most = (size_t)64 << 20, slowest = 4; /* bytes a nanosecond */
    return 200000 + (int64_t)(ah_min(nbytes, most) / slowest);
}

/* Wait until all of `ranks` are there. AH_OK makes what they wrote before visible. Ranks that have
 * given the call up before they came there make it AH_ABANDONED. Where headers are awaited it is
 * AH_MISMATCH as soon as one is unlike, whoever else is still missing. */
ah_status ah_await(ah_lane *lane, uint64_t ranks, ah_goal goal);
ah_status ah_await_put(ah_lane *lane, uint64_t ranks, uint64_t steps);
ah_status ah_await_done(ah_lane *lane, uint64_t ranks, uint64_t steps);
/* The same, or that they have left the call in any other way. */
ah_status ah_await_gone(ah_lane *lane, uint64_t ranks, uint64_t steps);

/* Wait for nothing, until the deadline, an interrupt, or one of `ranks` giving the call up. */
ah_status ah_await_end(ah_lane *lane, uint64_t ranks);

/* Which of `ranks` have given up the call in progress. Ordered after all reads before it. */
uint64_t ah_gave_up(const ah_lane *lane, uint64_t ranks);

/* Before a call sleeps or moves much: lets the shell let go of what it holds. */
void ah_pause(ah_lane *lane);
void ah_unpause(ah_lane *lane);
/* Between pieces of long work: AH_INTERRUPTED if the call is to end. */
ah_status ah_breathe(ah_lane *lane);

/* After publishing: wake those of `ranks` that sleep. */
void ah_ring(ah_lane *lane, uint64_t ranks);
void ah_ring_one(ah_area *area);

#endif
