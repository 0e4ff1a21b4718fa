#define _GNU_SOURCE
#include "comm/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/cpu_balance.h"
#include "comm/host.h"

enum { AWAKE }; /* else 1 + the rank that the sleeper waits for */

#define MICROSECONDS INT64_C(1000)

/* How long to do what, while nothing comes: first spin, about two microseconds, in which the shell
 * holds on to what it holds; then yield; then sleep. Where spinning is vain because the awaited
 * rank has no processor (its own fell to others), yield at once, and only try now and then whether
 * spinning does again. Where ranks outnumber processors, who awaits one that waits for this very
 * processor yields at once; who awaits none of those lets them rest, for they could do nothing. */
#define SPINS 64
#define SPIN_AGAIN_AFTER 64
#define SOON_YIELDS 4 /* yields that show that the processor was what the other lacked */
/* A yield that took ah_long_delay was for somebody with work to do. Who yields to that goes behind
 * it again and again, a slice of some milliseconds each time; who sleeps goes before it when woken.
 * So for this long afterwards nobody yields. */
#define NO_YIELD_FOR (20 * 1000 * MICROSECONDS)
/* A sleeper looks by itself as often, because who publishes may be killed before it rings the
 * doorbell. */
#define POLL_INTERVAL (50 * 1000 * MICROSECONDS)

static bool has_arrived(const ah_comm *comm, int rank, ah_wait_goal goal) {
    uint64_t least = goal.least + (goal.from_base ? comm->header[rank].base : 0);
    return atomic_load(ah_word_of(comm, rank, goal.offset)) >= least ||
           (goal.left && atomic_load(&comm->area[rank]->abandoned) >= goal.left);
}

static uint64_t missing(const ah_comm *comm, uint64_t ranks, ah_wait_goal goal) {
    uint64_t left = ranks;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (has_arrived(comm, rank, goal)) left &= ~AH_BIT(rank);
    }
    return left;
}

bool ah_has_reached(const ah_comm *comm, uint64_t ranks, ah_wait_goal goal) {
    return !missing(comm, ranks, goal);
}

uint64_t ah_abandoning(const ah_comm *comm, uint64_t ranks) {
    uint64_t gone = 0;
    /* Pairs with the fence in ah_call_finish: a word still behind was so during all our reads. */
    atomic_thread_fence(memory_order_acquire);
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (atomic_load(&comm->area[rank]->abandoned) >= comm->call->sequence) gone |= AH_BIT(rank);
    }
    return gone;
}

void ah_wake_rank(ah_area *area) {
    if (atomic_load(&area->doorbell) != AWAKE && atomic_exchange(&area->doorbell, AWAKE) != AWAKE)
        syscall(SYS_futex, &area->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ah_wake(ah_comm *comm, uint64_t ranks) {
    uint32_t own = (uint32_t)comm->rank + 1;
    for (; ranks; ranks &= ranks - 1) {
        ah_area *area = comm->area[__builtin_ctzll(ranks)];
        if (atomic_load(&area->doorbell) == own) ah_wake_rank(area);
    }
}

void ah_wake_all(ah_comm *comm) {
    for (uint64_t rest = comm->others; rest; rest &= rest - 1)
        ah_wake_rank(comm->area[__builtin_ctzll(rest)]);
}

void ah_pause(ah_comm *comm) {
    ah_call *call = comm->call;
    if (comm->paused) return;
    comm->paused = true;
    if (call->pause) call->pause(call->owner);
    if (call->tick) comm->next_tick = ah_now() + call->tick_ns;
}

void ah_unpause(ah_comm *comm) {
    if (comm->paused && comm->call->resume) comm->call->resume(comm->call->owner);
    comm->paused = false;
}

/* Whether the call is to end: interrupted from outside, or by the hook, if it is time for that. */
static bool interrupted(ah_comm *comm, int64_t now, uint64_t left) {
    ah_call *call = comm->call;
    if (atomic_load(&comm->interrupted) >= call->sequence) return true;
    if (!call->tick || !comm->paused || now < comm->next_tick) return false;
    comm->next_tick = now + call->tick_ns;
    return call->tick(call->owner, left);
}

ah_status ah_poll_interrupt(ah_comm *comm) {
    return interrupted(comm, comm->call->tick ? ah_now() : 0, 0) ? AH_INTERRUPTED : AH_OK;
}

/* Sleep until the doorbell rings, or `until`; not at all if there is something to see already.
 * Return whether a signal has ended the sleep: whoever handles it should not wait for it. Of
 * several ranks the highest is the one to ring: who wakes others begins with the lowest, so that
 * one comes last most likely, and a sleeper is woken once and not once for each rank that it
 * awaits. */
static bool sleep_until(ah_comm *comm, uint64_t left, ah_wait_goal goal, int64_t until,
                        int64_t now) {
    _Atomic uint32_t *doorbell = &comm->area[comm->rank]->doorbell;
    int rank = 63 - __builtin_clzll(left);
    uint32_t asleep = (uint32_t)rank + 1;
    bool signalled = false;
    atomic_store(doorbell, asleep);
    if (!has_arrived(comm, rank, goal) && !ah_abandoning(comm, left) &&
        atomic_load(&comm->interrupted) < comm->call->sequence) {
        int64_t span = until - now < POLL_INTERVAL ? until - now : POLL_INTERVAL;
        struct timespec timeout = {span / 1000000000, span % 1000000000};
        /* Not FUTEX_PRIVATE_FLAG: other processes ring. Any return is taken as a wake-up. */
        signalled = span > 0 &&
                    syscall(SYS_futex, doorbell, FUTEX_WAIT, asleep, &timeout, NULL, 0) < 0 &&
                    errno == EINTR;
    }
    atomic_store(doorbell, AWAKE);
    return signalled;
}

/* Whether one of these ranks, which are there, has posted another signature. */
static bool any_mismatch(const ah_comm *comm, uint64_t ranks, ah_wait_goal goal) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (ah_slot_of(comm, rank, goal.least)->signature != goal.signature) return true;
    }
    return false;
}

static ah_status block(ah_comm *comm, uint64_t ranks, uint64_t left, ah_wait_goal goal) {
    ah_call *call = comm->call;
    bool spun =
        comm->oversubscribed || !comm->failed_spins || ++comm->failed_spins > SPIN_AGAIN_AFTER;
    uint64_t near = comm->oversubscribed ? ah_ranks_on_my_cpu(comm) : 0;
    for (int spin = 0; spun && spin < SPINS && !(left & near); spin++) {
        ah_cpu_relax();
        if (!(left = missing(comm, left, goal))) {
            comm->failed_spins = 0;
            return AH_OK;
        }
    }
    ah_pause(comm);
    int64_t start = ah_now(), now = start;
    int64_t awake = start < comm->no_yield_until ? 0 : ah_yield_time(call->nbytes);
    awake *= comm->ranks_per_cpu; /* each may have something to do before the others go on */
    uint64_t compared = ranks;    /* at the headers of all but these */
    if (comm->oversubscribed) ah_balance_cpus(comm, now);
    for (int turn = 0;; turn++) {
        uint64_t gone = ah_abandoning(comm, left);
        /* What they published before they abandoned is visible now, so this look is the last. */
        if (!(left = missing(comm, left, goal))) {
            if (spun && turn > 0 && turn <= SOON_YIELDS) comm->failed_spins = 1;
            return AH_OK;
        }
        if (goal.is_slot && left != compared && any_mismatch(comm, ranks & ~left, goal))
            return AH_MISMATCH;
        compared = left;
        if (gone & left) return AH_ABANDONED;
        call->waiting = left;
        if (interrupted(comm, now, left)) return AH_INTERRUPTED;
        if (now >= call->deadline) return AH_TIMEOUT;
        if (now - start < awake) {
            int64_t before = now;
            sched_yield();
            now = ah_now();
            if (now - before > ah_long_delay(comm)) {
                awake = 0;
                comm->no_yield_until = now + NO_YIELD_FOR;
                if (comm->oversubscribed) ah_record_delay(comm, before, now);
            }
        } else {
            int64_t until = call->deadline;
            if (call->tick && comm->next_tick < until) until = comm->next_tick;
            bool signalled = sleep_until(comm, left, goal, until, now);
            now = ah_now();
            if (signalled) comm->next_tick = now;
        }
    }
}

ah_status ah_await(ah_comm *comm, uint64_t ranks, ah_wait_goal goal) {
    uint64_t left = missing(comm, ranks, goal);
    if (left && comm->call->only_tries) {
        comm->call->waiting = left;
        return AH_PENDING;
    }
    ah_status status = left ? block(comm, ranks, left, goal) : AH_OK;
    if (status == AH_OK) comm->call->waiting = 0;
    return status;
}

/* Steps of this call, as a word of every area counts them. */
static ah_wait_goal steps_of(size_t offset, uint64_t steps) {
    return (ah_wait_goal){.offset = offset, .least = steps, .from_base = true};
}

ah_status ah_await_produced(ah_comm *comm, uint64_t ranks, uint64_t steps) {
    return ah_await(comm, ranks, steps_of(offsetof(ah_area, produced), steps));
}

ah_status ah_await_consumed(ah_comm *comm, uint64_t ranks, uint64_t steps) {
    return ah_await(comm, ranks, steps_of(offsetof(ah_area, consumed), steps));
}

ah_status ah_await_consumed_or_left(ah_comm *comm, uint64_t ranks, uint64_t steps) {
    ah_wait_goal goal = steps_of(offsetof(ah_area, consumed), steps);
    goal.left = comm->call->sequence;
    return ah_await(comm, ranks, goal);
}

ah_status ah_await_call_end(ah_comm *comm, uint64_t ranks) {
    return ah_await(comm, ranks,
                    (ah_wait_goal){.offset = offsetof(ah_area, produced), .least = UINT64_MAX});
}
