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
    bool is_slot;   /* it is a slot's number: who is there must have this signature */
    uint64_t signature;
} ah_wait_goal;

static inline _Atomic uint64_t *ah_word_of(const ah_comm *comm, int rank, size_t offset) {
    return (_Atomic uint64_t *)((char *)comm->area[rank] + offset);
}

int64_t ah_now(void);
/* How many processors this process may run on. */
int ah_cpu_count(void);
/* A number that no other process has. */
uint64_t ah_new_nonce(void);

/* Between looks of who spins. */
static inline void ah_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* How long to yield, in nanoseconds, before sleep: a sleeper that has a processor to itself is slow
 * to wake, so not before others can have moved what they move meanwhile. */
static inline int64_t ah_yield_time(size_t nbytes) {
    const size_t most = (size_t)64 << 20, slowest = 4; /* bytes a nanosecond */
    return 200000 + (int64_t)(ah_min(nbytes, most) / slowest);
}

/* Wait until all of `ranks` are there. AH_OK makes what they wrote before visible. Ranks that have
 * given the call up before they came there make it AH_ABANDONED. Where headers are awaited it is
 * AH_MISMATCH as soon as one is unlike, whoever else is still missing. */
ah_status ah_await(ah_comm *comm, uint64_t ranks, ah_wait_goal goal);
ah_status ah_await_produced(ah_comm *comm, uint64_t ranks, uint64_t steps);
ah_status ah_await_consumed(ah_comm *comm, uint64_t ranks, uint64_t steps);
/* The same, or that they have left the call in any other way. */
ah_status ah_await_consumed_or_left(ah_comm *comm, uint64_t ranks, uint64_t steps);

/* Wait for nothing, until the deadline, an interrupt, or one of `ranks` giving the call up. */
ah_status ah_await_call_end(ah_comm *comm, uint64_t ranks);

/* Which of `ranks` have given up the call in progress. Ordered after all reads before it. */
uint64_t ah_abandoning(const ah_comm *comm, uint64_t ranks);

/* Before a call sleeps or moves much: lets the shell let go of what it holds. */
void ah_pause(ah_comm *comm);
void ah_unpause(ah_comm *comm);
/* Between pieces of long work: AH_INTERRUPTED if the call is to end. */
ah_status ah_poll_interrupt(ah_comm *comm);

/* After publishing: wake those of `ranks` that sleep. */
void ah_wake(ah_comm *comm, uint64_t ranks);
void ah_wake_rank(ah_area *area);

#endif
