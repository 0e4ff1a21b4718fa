#define _GNU_SOURCE
#include "p2p/serve.h"

#include <sched.h>

#include "comm/host.h"
#include "p2p/cancel.h"
#include "p2p/doorbell.h"
#include "p2p/progress.h"

#define IDLE_INTERVALS 20 /* where nothing is waited for */

/* Whether the serving thread has anything to do when no caller waits. */
static bool needs_server(const ah_p2p *p2p) {
    return p2p->async_count || p2p->has_output || p2p->reading.first;
}

void ah_hand_to_server(ah_p2p *p2p) {
    if (p2p->callers || !needs_server(p2p)) return;
    if (p2p->server_state == DOZING) {
        p2p->server_state = ASLEEP;
        ah_set_doorbell(p2p, ASLEEP);
        while (ah_progress(p2p)) continue; /* senders before that did not ring the doorbell */
    }
    if (p2p->reading.first || p2p->next_deadline < p2p->server_until) ah_wake_server(p2p);
}

void ah_skip_server(ah_p2p *p2p) {
    if (p2p->server_state != ASLEEP) return;
    p2p->server_state = DOZING;
    if (!p2p->caller_sleeps) ah_set_doorbell(p2p, DOZING);
}

static void idle_wait(ah_p2p *p2p) {
    bool wanted = !p2p->callers && needs_server(p2p);
    p2p->server_state = wanted ? ASLEEP : DOZING;
    /* A caller may sleep there too. */
    uint32_t seen = ah_set_doorbell(p2p, p2p->caller_sleeps ? ASLEEP : (uint32_t)p2p->server_state);
    if (p2p->callers || !ah_progress(p2p)) {
        int64_t now = ah_now(),
                until = now + p2p->limits.poll_interval * (wanted ? 1 : IDLE_INTERVALS);
        if (p2p->next_deadline < until) until = p2p->next_deadline;
        p2p->server_until = until;
        if (!p2p->ended && !p2p->closed && until > now)
            ah_sleep_on_doorbell(p2p, seen, until - now);
    }
    p2p->server_state = AWAKE;
}

ah_message *ah_p2p_serve(ah_p2p *p2p) {
    ah_message *ended = NULL;
    pthread_mutex_lock(&p2p->lock);
    while (!ended) {
        ah_expire(p2p);
        bool moves = !p2p->callers && ah_progress(p2p);
        ended = p2p->ended;
        p2p->ended = NULL;
        p2p->ended_last = &p2p->ended;
        if (ended || p2p->closed) break;
        if (moves) { /* others may want the lock between */
            pthread_mutex_unlock(&p2p->lock);
            sched_yield();
            pthread_mutex_lock(&p2p->lock);
        } else
            idle_wait(p2p);
    }
    pthread_mutex_unlock(&p2p->lock);
    return ended;
}
