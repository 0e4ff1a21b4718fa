/* Waiting for messages on callers' threads: spin, yield, then sleep. */
#define _GNU_SOURCE
#include "p2p/p2p_state.h"

#include <sched.h>
#include <time.h>

#include "comm/host.h"
#include "p2p/cancel.h"
#include "p2p/doorbell.h"
#include "p2p/progress.h"
#include "p2p/serve.h"

#define SPINS 200

/* A wait, of a message or (NULL) of all. */
typedef struct {
    ah_p2p *p2p;
    ah_message *msg;
    const ah_wait_hooks *hooks;
    bool spun, paused;
    int64_t next_tick;
} wait_state;

static bool has_ended(const wait_state *wait) {
    return wait->msg ? wait->msg->stage == ENDED : !wait->p2p->pending;
}

static void wait_on_doorbell(wait_state *wait, int64_t span) {
    ah_p2p *p2p = wait->p2p;
    p2p->caller_sleeps = true;
    uint32_t seen = ah_set_doorbell(p2p, ASLEEP);
    if (!ah_progress(p2p) && !has_ended(wait) && ah_sleep_on_doorbell(p2p, seen, span) &&
        wait->hooks && wait->hooks->tick)
        wait->next_tick = 0; /* who handles the signal should not wait for it */
    p2p->caller_sleeps = false;
    ah_set_doorbell(p2p, (uint32_t)p2p->server_state);
    if (p2p->waiters) pthread_cond_signal(&p2p->changed); /* the doorbell is free */
}

static void wait_on_condition(ah_p2p *p2p, int64_t until) {
    struct timespec time = {until / 1000000000, until % 1000000000};
    p2p->waiters++;
    pthread_cond_timedwait(&p2p->changed, &p2p->lock, &time);
    p2p->waiters--;
}

static ah_status block(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    const ah_wait_hooks *hooks = wait->hooks;
    pthread_mutex_unlock(&p2p->lock);
    if (hooks && hooks->pause) hooks->pause(hooks->owner);
    wait->paused = true;
    int64_t now = ah_now(), moved = now, deadline = wait->msg ? wait->msg->deadline : INT64_MAX;
    /* A sender of an RTS sees nothing move until all of it has been read. */
    int64_t awake = ah_yield_time(wait->msg ? wait->msg->nbytes : 0);
    wait->next_tick = hooks && hooks->tick ? now + hooks->tick_ns : INT64_MAX;
    pthread_mutex_lock(&p2p->lock);
    for (int turn = 0;; turn++) {
        bool moves = ah_progress(p2p);
        if (has_ended(wait)) {
            if (wait->spun && turn <= SOON_YIELDS) p2p->failed_spins = 1;
            return AH_OK;
        }
        if (moves) moved = now;
        if (now >= deadline) {
            ah_end_early(p2p, wait->msg, AH_TIMED_OUT);
            return AH_OK;
        }
        if (now >= until) return AH_TIMEOUT;
        if (now - moved >= awake) {
            int64_t next = until < deadline ? until : deadline;
            if (wait->next_tick < next) next = wait->next_tick;
            if (next > now + p2p->limits.poll_interval) next = now + p2p->limits.poll_interval;
            if (next > now && !p2p->caller_sleeps)
                wait_on_doorbell(wait, next - now);
            else if (next > now)
                wait_on_condition(p2p, next);
            now = ah_now();
        } else {
            pthread_mutex_unlock(&p2p->lock);
            sched_yield();
            now = ah_now();
            pthread_mutex_lock(&p2p->lock);
        }
        if (now >= wait->next_tick) {
            wait->next_tick = now + hooks->tick_ns;
            pthread_mutex_unlock(&p2p->lock);
            bool stop = hooks->tick(hooks->owner);
            pthread_mutex_lock(&p2p->lock);
            if (stop && !has_ended(wait)) return AH_INTERRUPTED;
        }
    }
}

static ah_status spin_then_block(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    if (has_ended(wait)) return AH_OK;
    wait->spun = !p2p->failed_spins || ++p2p->failed_spins > SPIN_AGAIN_AFTER;
    for (int spin = 0; wait->spun && spin < SPINS; spin++) {
        ah_progress(p2p);
        if (has_ended(wait)) {
            p2p->failed_spins = 0;
            return AH_OK;
        }
        ah_cpu_relax();
    }
    return block(wait, until);
}

static ah_status wait_until(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    pthread_mutex_lock(&p2p->lock);
    p2p->callers++;
    ah_skip_server(p2p);
    if (wait->msg) wait->msg->wait_count++;
    ah_status status = spin_then_block(wait, until);
    if (wait->msg) wait->msg->wait_count--;
    p2p->callers--;
    ah_hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
    if (wait->paused && wait->hooks && wait->hooks->resume) wait->hooks->resume(wait->hooks->owner);
    return status;
}

ah_status ah_p2p_wait(ah_p2p *p2p, ah_message *msg, int64_t until, const ah_wait_hooks *hooks) {
    wait_state wait = {.p2p = p2p, .msg = msg, .hooks = hooks};
    return wait_until(&wait, until);
}

void ah_p2p_wait_idle(ah_p2p *p2p) {
    wait_state wait = {.p2p = p2p};
    wait_until(&wait, INT64_MAX);
}

bool ah_p2p_is_idle(ah_p2p *p2p) {
    pthread_mutex_lock(&p2p->lock);
    bool is_idle = has_ended(&(wait_state){.p2p = p2p});
    pthread_mutex_unlock(&p2p->lock);
    return is_idle;
}
