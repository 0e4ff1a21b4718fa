#define _GNU_SOURCE
#include "comm/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/cpu_balance.h"

enum { AWAKE, ASLEEP };

#define MICROSECONDS INT64_C(1000)

/* How long to do what, while nothing comes: first spin, about two microseconds, in which the shell
 * holds on to what it holds; then yield; then sleep. Where spinning is vain because the awaited
 * rank has no processor (its own fell to others), yield at once, and only try now and then whether
 * spinning does again. Where ranks outnumber processors, who awaits one that waits for this very
 * processor yields at once; who awaits none of those lets them rest, for they could do nothing. */
#define SPINS 64
#define TRY_AGAIN 64
#define SOON 4 /* yields that show that the processor was what the other lacked */
/* A yield that took AH_DELAY was for somebody with work to do. Who yields to that goes behind it
 * again and again, a slice of some milliseconds each time; who sleeps goes before it when woken. So
 * for this long afterwards nobody yields. */
#define BUSY (20 * 1000 * MICROSECONDS)
/* A sleeper looks by itself as often, because who publishes may be killed before it rings. */
#define NAP (50 * 1000 * MICROSECONDS)

int ah_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

uint64_t ah_new_nonce(void) {
    uint64_t nonce;
    return getrandom(&nonce, sizeof nonce, 0) == sizeof nonce ? nonce : (uint64_t)ah_now();
}

int64_t ah_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static bool there(const ah_lane *lane, int rank, ah_goal goal) {
    uint64_t least = goal.least + (goal.from_base ? lane->terms[rank].base : 0);
    return atomic_load(ah_word(lane, rank, goal.offset)) >= least ||
           (goal.left && atomic_load(&lane->area[rank]->abandoned) >= goal.left);
}

static uint64_t missing(const ah_lane *lane, uint64_t ranks, ah_goal goal) {
    uint64_t left = ranks;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (there(lane, rank, goal)) left &= ~AH_BIT(rank);
    }
    return left;
}

uint64_t ah_gave_up(const ah_lane *lane, uint64_t ranks) {
    uint64_t gone = 0;
    /* Pairs with the fence in ah_finish: a word still behind was so during all our reads. */
    atomic_thread_fence(memory_order_acquire);
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (atomic_load(&lane->area[rank]->abandoned) >= lane->call->sequence) gone |= AH_BIT(rank);
    }
    return gone;
}

void ah_ring_one(ah_area *area) {
    if (atomic_load(&area->bell) == ASLEEP && atomic_exchange(&area->bell, AWAKE) == ASLEEP)
        syscall(SYS_futex, &area->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ah_ring(ah_lane *lane, uint64_t ranks) {
    for (; ranks; ranks &= ranks - 1) ah_ring_one(lane->area[__builtin_ctzll(ranks)]);
}

void ah_pause(ah_lane *lane) {
    ah_call *call = lane->call;
    if (lane->paused) return;
    lane->paused = true;
    if (call->pause) call->pause(call->owner);
    if (call->tick) lane->next_tick = ah_now() + call->tick_ns;
}

void ah_unpause(ah_lane *lane) {
    if (lane->paused && lane->call->resume) lane->call->resume(lane->call->owner);
    lane->paused = false;
}

/* Whether the call is to end: interrupted from outside, or by the hook, if it is time for that. */
static bool interrupted(ah_lane *lane, int64_t now, uint64_t left) {
    ah_call *call = lane->call;
    if (atomic_load(&lane->interrupted) >= call->sequence) return true;
    if (!call->tick || !lane->paused || now < lane->next_tick) return false;
    lane->next_tick = now + call->tick_ns;
    return call->tick(call->owner, left);
}

ah_status ah_breathe(ah_lane *lane) {
    return interrupted(lane, lane->call->tick ? ah_now() : 0, 0) ? AH_INTERRUPTED : AH_OK;
}

/* Sleep until rung, or `until`; not at all if there is something to see already. */
static void sleep_until(ah_lane *lane, uint64_t left, ah_goal goal, int64_t until, int64_t now) {
    _Atomic uint32_t *bell = &lane->area[lane->rank]->bell;
    atomic_store(bell, ASLEEP);
    if (missing(lane, left, goal) == left && !ah_gave_up(lane, left) &&
        atomic_load(&lane->interrupted) < lane->call->sequence) {
        int64_t span = until - now < NAP ? until - now : NAP;
        struct timespec timeout = {span / 1000000000, span % 1000000000};
        /* Not FUTEX_PRIVATE_FLAG: other processes ring. Any return is taken as a wake-up. */
        if (span > 0) syscall(SYS_futex, bell, FUTEX_WAIT, ASLEEP, &timeout, NULL, 0);
    }
    atomic_store(bell, AWAKE);
}

/* Whether one of these ranks, which are there, has posted another signature. */
static bool unlike(const ah_lane *lane, uint64_t ranks, ah_goal goal) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (ah_slot_of(lane, rank, goal.least)->signature != goal.signature) return true;
    }
    return false;
}

static ah_status block(ah_lane *lane, uint64_t ranks, uint64_t left, ah_goal goal) {
    ah_call *call = lane->call;
    bool spun = lane->crowded || !lane->vain || ++lane->vain > TRY_AGAIN;
    uint64_t near = lane->crowded ? ah_neighbours(lane) : 0;
    for (int spin = 0; spun && spin < SPINS && !(left & near); spin++) {
        ah_relax();
        if (!(left = missing(lane, left, goal))) {
            lane->vain = 0;
            return AH_OK;
        }
    }
    ah_pause(lane);
    int64_t start = ah_now(), now = start;
    int64_t awake = start < lane->busy_until ? 0 : ah_patience(call->nbytes);
    uint64_t looked = ranks; /* at the headers of all but these */
    if (lane->crowded) ah_spread(lane, now);
    for (int turn = 0;; turn++) {
        uint64_t gone = ah_gave_up(lane, left);
        /* What they published before they gave up is visible now, so this look is the last. */
        if (!(left = missing(lane, left, goal))) {
            if (spun && turn > 0 && turn <= SOON) lane->vain = 1;
            return AH_OK;
        }
        if (goal.header && left != looked && unlike(lane, ranks & ~left, goal)) return AH_MISMATCH;
        looked = left;
        if (gone & left) return AH_ABANDONED;
        call->waiting = left;
        if (interrupted(lane, now, left)) return AH_INTERRUPTED;
        if (now >= call->deadline) return AH_TIMEOUT;
        if (now - start < awake) {
            int64_t before = now;
            sched_yield();
            now = ah_now();
            if (now - before > AH_DELAY) {
                awake = 0;
                lane->busy_until = now + BUSY;
                if (lane->crowded) ah_delayed(lane, before, now);
            }
        } else {
            int64_t until = call->deadline;
            if (call->tick && lane->next_tick < until) until = lane->next_tick;
            sleep_until(lane, left, goal, until, now);
            now = ah_now();
        }
    }
}

ah_status ah_await(ah_lane *lane, uint64_t ranks, ah_goal goal) {
    uint64_t left = missing(lane, ranks, goal);
    ah_status status = left ? block(lane, ranks, left, goal) : AH_OK;
    if (status == AH_OK) lane->call->waiting = 0;
    return status;
}

/* Steps of this call, as a word of every area counts them. */
static ah_goal steps_of(size_t offset, uint64_t steps) {
    return (ah_goal){.offset = offset, .least = steps, .from_base = true};
}

ah_status ah_await_put(ah_lane *lane, uint64_t ranks, uint64_t steps) {
    return ah_await(lane, ranks, steps_of(offsetof(ah_area, put), steps));
}

ah_status ah_await_done(ah_lane *lane, uint64_t ranks, uint64_t steps) {
    return ah_await(lane, ranks, steps_of(offsetof(ah_area, done), steps));
}

ah_status ah_await_gone(ah_lane *lane, uint64_t ranks, uint64_t steps) {
    ah_goal goal = steps_of(offsetof(ah_area, done), steps);
    goal.left = lane->call->sequence;
    return ah_await(lane, ranks, goal);
}

ah_status ah_await_end(ah_lane *lane, uint64_t ranks) {
    return ah_await(lane, ranks, (ah_goal){.offset = offsetof(ah_area, put), .least = UINT64_MAX});
}
