/* The doorbell of messages: the futex of comm/wait.h with a third state.
 *
 * DOZING is a thread that need not be woken for new frames, only by a sender that has no more room.
 */
#ifndef ALLHANDS_P2P_DOORBELL_H
#define ALLHANDS_P2P_DOORBELL_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "p2p/p2p_state.h"

/* The level is in the lowest bits; the rest counts rings, so that a thread that was about to sleep
 * when it was rung does not take a level that was set again meanwhile for the one it has seen. */
#define LEVEL 3u

/* Set the level; return the doorbell. */
static inline uint32_t ah_set_doorbell(ah_p2p *p2p, uint32_t level) {
    _Atomic uint32_t *doorbell = &p2p->region[p2p->rank]->doorbell;
    uint32_t seen = atomic_load(doorbell), set;
    do set = (seen & ~LEVEL) | level;
    while (!atomic_compare_exchange_weak(doorbell, &seen, set));
    return set;
}

/* Ring the doorbell of a rank that sleeps at this level or deeper. */
static inline void ah_wake_peer(ah_p2p_region *region, uint32_t from) {
    uint32_t seen = atomic_load(&region->doorbell);
    while ((seen & LEVEL) >= from && (seen & LEVEL) != AWAKE)
        if (atomic_compare_exchange_weak(&region->doorbell, &seen, (seen & ~LEVEL) + LEVEL + 1)) {
            syscall(SYS_futex, &region->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            return;
        }
}

/* Sleep until it is rung, or for so long; return whether a signal has ended the sleep. With the
 * lock, which is released meanwhile. */
static inline bool ah_sleep_on_doorbell(ah_p2p *p2p, uint32_t seen, int64_t span) {
    struct timespec time = {span / 1000000000, span % 1000000000};
    pthread_mutex_unlock(&p2p->lock);
    bool signalled = syscall(SYS_futex, &p2p->region[p2p->rank]->doorbell, FUTEX_WAIT, seen, &time,
                             NULL, 0) < 0 &&
                     errno == EINTR;
    pthread_mutex_lock(&p2p->lock);
    return signalled;
}

/* Wake the threads of this process that wait for messages. */
static inline void ah_wake_callers(ah_p2p *p2p) {
    if (p2p->waiters) pthread_cond_broadcast(&p2p->changed);
    if (p2p->caller_sleeps) ah_wake_peer(p2p->region[p2p->rank], ASLEEP);
}

static inline void ah_wake_server(ah_p2p *p2p) {
    if (p2p->server_state) ah_wake_peer(p2p->region[p2p->rank], DOZING);
}

#endif
