/* Making and closing the messages of a group; peers that leave. */
#define _GNU_SOURCE
#include "p2p/p2p_state.h"

#include <stdlib.h>

#include "comm/host.h"
#include "p2p/cancel.h"
#include "p2p/control.h"
#include "p2p/doorbell.h"
#include "p2p/match.h"
#include "p2p/progress.h"
#include "p2p/queues.h"
#include "p2p/serve.h"

/* A sleeper polls as often: others may be killed before they ring its doorbell. */
#define POLL_INTERVAL (50 * INT64_C(1000000))

/* Two copies through a ring that stays in the caches, on two cores at once, take 5 us for 64 KiB
 * and 40 us for 1 MiB; attach, on the receiver's core alone, 11 and 87. From about 3 MiB on it is
 * the other way round: memory is what counts then, and NumPy's arrays lie on huge pages. */
ah_p2p_limits ah_default_p2p_limits(void) {
    return (ah_p2p_limits){
        .eager_max = (size_t)64 << 10,
        .direct_min = (size_t)16 << 10,
        .attach_min = (size_t)3 << 20,
        .poll_interval = POLL_INTERVAL,
    };
}

int ah_message_outcome(const ah_message *msg) {
    return atomic_load_explicit(&msg->outcome, memory_order_acquire);
}

void ah_p2p_end(ah_p2p *p2p, ah_message *msg, ah_outcome outcome) {
    pthread_mutex_lock(&p2p->lock);
    ah_end_early(p2p, msg, outcome);
    ah_hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

static bool always(const ah_p2p *p2p, const ah_message *msg) {
    (void)p2p;
    (void)msg;
    return true;
}

/* The data of these will not come any more. */
static void forget_rts(ah_p2p *p2p, int rank) {
    for (int at = 0; at < TAG_BUCKETS; at++)
        for (ah_unexpected *arrived = p2p->unexpected[at].first, *next; arrived; arrived = next) {
            next = arrived->after;
            if (arrived->peer != rank || arrived->frame.kind != AH_RTS) continue;
            ah_remove_unexpected(p2p, arrived);
            ah_free_unexpected(arrived);
        }
    for (ah_message *msg = p2p->receiving.first, *next; msg; msg = next) {
        next = msg->after;
        if (msg->source != rank) continue;
        ah_queue_remove(&p2p->receiving, msg);
        if (msg->rts->ctrl.queued) ah_unsend_ctrl(p2p, rank, &msg->rts->ctrl);
        ah_free_unexpected(msg->rts);
        ah_match_receive(p2p, msg); /* what it finds is another peer's */
    }
}

void ah_p2p_remove_peer(ah_p2p *p2p, int rank) {
    peer_state *state = &p2p->peers[rank];
    pthread_mutex_lock(&p2p->lock);
    bool moves = true;
    while (moves) {
        moves = ah_drain(p2p, rank);
        while (p2p->reading.first) moves = ah_progress(p2p);
    }
    p2p->left |= AH_BIT(rank);
    forget_rts(p2p, rank);
    ah_end_where(p2p, ah_has_no_peer, AH_PEER_LEFT);
    while (state->first) { /* control messages, for nobody */
        ah_ctrl_msg *ctrl = state->first;
        if (ctrl->message) ah_end_early(p2p, ctrl->message, AH_PEER_LEFT);
        if (state->first != ctrl) continue; /* it went with the message */
        ah_unsend_ctrl(p2p, rank, ctrl);
        if (ctrl->rts)
            ah_free_unexpected(ctrl->rts);
        else
            free(ctrl);
    }
    ah_hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

void ah_p2p_fail(ah_p2p *p2p) {
    pthread_mutex_lock(&p2p->lock);
    for (int turn = 0; turn < 1000 && ah_progress(p2p); turn++) continue;
    p2p->failed = true;
    ah_end_where(p2p, always, AH_FAILED);
    ah_wake_callers(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

void ah_p2p_close(ah_p2p *p2p) {
    pthread_mutex_lock(&p2p->lock);
    p2p->closed = true;
    /* The last word there: the memory may be given back after this. */
    atomic_store(&p2p->region[p2p->rank]->nonce_at, 0);
    ah_wake_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

ah_p2p *ah_p2p_new(int rank, int size, void *const regions[], const pid_t pids[],
                   void *const heaps[], size_t heap_bytes, const ah_p2p_limits *limits) {
    ah_p2p *p2p = calloc(1, sizeof *p2p);
    pthread_condattr_t monotonic;
    if (!p2p) return NULL;
    pthread_mutex_init(&p2p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p2p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p2p->rank = rank;
    p2p->size = size;
    p2p->others = (size == 64 ? UINT64_MAX : AH_BIT(size) - 1) & ~AH_BIT(rank);
    p2p->limits = *limits;
    p2p->heap_bytes = heap_bytes;
    p2p->ended_last = &p2p->ended;
    p2p->next_deadline = INT64_MAX;
    p2p->failed_spins = size > ah_cpu_count();
    for (int peer = 0; peer < size; peer++) {
        p2p->region[peer] = regions[peer];
        p2p->heap[peer] = heaps ? heaps[peer] : NULL;
        p2p->pid[peer] = pids[peer];
    }
    ah_p2p_region *own = p2p->region[rank];
    for (int peer = 0; peer < size; peer++) {
        peer_state *state = &p2p->peers[peer];
        ah_p2p_region *theirs = p2p->region[peer];
        state->out.ring = &own->ring[peer];
        state->out.consumed = &theirs->consumed[rank];
        state->in.ring = &theirs->ring[rank];
        state->in.consumed = &own->consumed[peer];
        state->last = &state->first;
    }
    p2p->nonce = ah_new_nonce();
    atomic_store(&own->nonce, p2p->nonce);
    atomic_store(&own->nonce_at, (uint64_t)(uintptr_t)&p2p->nonce);
    return p2p;
}

void ah_p2p_free(ah_p2p *p2p) {
    if (!p2p) return;
    for (int at = 0; at < TAG_BUCKETS; at++)
        for (ah_unexpected *arrived = p2p->unexpected[at].first, *next; arrived; arrived = next) {
            next = arrived->after;
            ah_free_unexpected(arrived);
        }
    for (int peer = 0; peer < p2p->size; peer++)
        for (ah_ctrl_msg *ctrl = p2p->peers[peer].first, *next; ctrl; ctrl = next) {
            next = ctrl->next;
            ctrl->rts ? ah_free_unexpected(ctrl->rts) : free(ctrl);
        }
    pthread_cond_destroy(&p2p->changed);
    pthread_mutex_destroy(&p2p->lock);
    free(p2p);
}
