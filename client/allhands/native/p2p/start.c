/* Beginning messages: eager if small and within credit, else by rendezvous. */
#define _GNU_SOURCE
#include "p2p/p2p_state.h"

#include <stdlib.h>
#include <string.h>

#include "p2p/cancel.h"
#include "p2p/control.h"
#include "p2p/match.h"
#include "p2p/serve.h"

#define EAGER_CREDIT ((uint64_t)4 << 20)

/* Where a message lies in the own heap, if other ranks see it there. */
static bool find_in_heap(const ah_p2p *p2p, const ah_message *msg, uint64_t *where) {
    const char *heap = p2p->heap[p2p->rank], *data = msg->data;
    if (!heap || msg->is_private || data < heap || (size_t)(data - heap) > p2p->heap_bytes ||
        msg->nbytes > p2p->heap_bytes - (size_t)(data - heap))
        return false;
    *where = (uint64_t)(data - heap);
    return true;
}

/* Whether it goes eagerly: it is small, and within the credit of the receiver. */
static bool is_eager(ah_p2p *p2p, const ah_message *msg, bool direct) {
    peer_state *state = &p2p->peers[msg->peer];
    size_t eager_credit = p2p->limits.eager_max;
    if (direct && p2p->limits.direct_min <= eager_credit) eager_credit = p2p->limits.direct_min - 1;
    if (eager_credit > AH_RING_BYTES / 4) eager_credit = AH_RING_BYTES / 4;
    if (msg->nbytes > eager_credit && msg->nbytes > AH_INLINE) return false;
    uint64_t used = state->eager_used + AH_CACHE_LINE + msg->nbytes;
    if (used > state->eager_credit)
        state->eager_credit = atomic_load(&state->out.consumed->released) + EAGER_CREDIT;
    if (used > state->eager_credit) return false;
    state->eager_used = used;
    return true;
}

static void add_running(ah_p2p *p2p, ah_message *msg) {
    msg->older = p2p->newest;
    msg->newer = NULL;
    *(p2p->newest ? &p2p->newest->newer : &p2p->oldest) = msg;
    p2p->newest = msg;
    p2p->pending++;
    if (!msg->is_async) return;
    p2p->async_count++;
    if (msg->deadline < p2p->next_deadline) p2p->next_deadline = msg->deadline;
}

static ah_ctrl_msg *new_ctrl_msg(ah_message *msg, const ah_frame *frame) {
    ah_ctrl_msg *ctrl = calloc(1, sizeof *ctrl);
    if (ctrl) *ctrl = (ah_ctrl_msg){.frame = *frame, .message = msg};
    msg->ctrl = ctrl;
    return ctrl;
}

static ah_frame frame_of(const ah_message *msg) {
    return (ah_frame){.tag = msg->tag, .signature = msg->signature, .total = msg->nbytes};
}

/* Send one that is eager, if nothing waits to be sent before it and there is room. */
static bool send_eagerly(ah_p2p *p2p, ah_message *msg, ah_frame *frame) {
    frame->kind = AH_EAGER;
    msg->way = AH_WAY_EAGER;
    if (msg->nbytes <= AH_INLINE && msg->nbytes) memcpy(frame->small, msg->data, msg->nbytes);
    if (p2p->peers[msg->peer].first || !ah_put_frame(p2p, msg->peer, frame, msg->data))
        return false;
    msg->stage = ENDED;
    atomic_store_explicit(&msg->outcome, AH_DELIVERED, memory_order_relaxed);
    return true;
}

static bool start_send(ah_p2p *p2p, ah_message *msg) {
    peer_state *state = &p2p->peers[msg->peer];
    ah_frame frame = frame_of(msg);
    uint64_t where = (uint64_t)(uintptr_t)msg->data;
    bool direct = find_in_heap(p2p, msg, &where);
    if (is_eager(p2p, msg, direct)) {
        if (send_eagerly(p2p, msg, &frame)) return true;
        if (!new_ctrl_msg(msg, &frame)) {
            state->eager_used -= AH_CACHE_LINE + msg->nbytes;
            return false;
        }
    } else {
        frame.kind = AH_RTS;
        frame.flags = direct ? AH_RTS_IN_HEAP : 0;
        frame.id = msg->id = ++p2p->last_id;
        frame.where = where;
        if (!new_ctrl_msg(msg, &frame)) return false;
        for (int tries = 0; tries < AH_RTS_SLOTS && msg->slot >= AH_RTS_SLOTS; tries++) {
            int slot = p2p->next_rts++ % AH_RTS_SLOTS;
            if (!p2p->rts_used[slot]) msg->slot = (uint64_t)slot;
        }
        msg->way = direct ? AH_WAY_DIRECT : AH_WAY_ATTACH;
        if (msg->slot < AH_RTS_SLOTS) {
            p2p->rts_used[msg->slot] = true;
            atomic_store(&p2p->region[p2p->rank]->rts_table[msg->slot], msg->id);
        }
        msg->ctrl->frame.slot = msg->slot;
    }
    add_running(p2p, msg);
    msg->stage = QUEUED;
    ah_send_ctrl(p2p, msg->peer, msg->ctrl);
    return true;
}

static void start_receive(ah_p2p *p2p, ah_message *msg) {
    msg->order = ++p2p->last_order;
    add_running(p2p, msg);
    ah_match_receive(p2p, msg);
    if (msg->stage == POSTED && !p2p->failed && !ah_has_no_peer(p2p, msg)) return;
    if (msg->stage != ENDED && (p2p->failed || ah_has_no_peer(p2p, msg)))
        ah_end_early(p2p, msg, p2p->failed ? AH_FAILED : AH_PEER_LEFT);
}

static void reset_message(ah_message *msg) {
    msg->stage = NEW;
    atomic_store_explicit(&msg->outcome, AH_RUNNING, memory_order_relaxed);
    msg->source = -1;
    msg->way = AH_WAY_NONE;
    msg->touched = false;
    msg->sent_nbytes = msg->sent_signature = 0;
    msg->expected_text = NULL;
    msg->final_outcome = 0;
    msg->is_queued = false;
    msg->id = msg->transferred = 0;
    msg->slot = AH_RTS_SLOTS;
    msg->rts = NULL;
    msg->ctrl = NULL;
    msg->wait_count = 1; /* what ends here needs no wake-up */
}

bool ah_p2p_try_send(ah_p2p *p2p, ah_message *msg) {
    reset_message(msg);
    ah_frame frame = frame_of(msg);
    uint64_t where;
    pthread_mutex_lock(&p2p->lock);
    bool gone = p2p->failed || ah_has_no_peer(p2p, msg);
    bool eager_used = !gone && is_eager(p2p, msg, find_in_heap(p2p, msg, &where));
    bool out = eager_used && send_eagerly(p2p, msg, &frame);
    if (eager_used && !out) p2p->peers[msg->peer].eager_used -= AH_CACHE_LINE + msg->nbytes;
    pthread_mutex_unlock(&p2p->lock);
    return out;
}

int ah_p2p_start(ah_p2p *p2p, ah_message *msg) {
    reset_message(msg);
    bool begun = true;
    pthread_mutex_lock(&p2p->lock);
    if (msg->receives)
        start_receive(p2p, msg);
    else if (p2p->failed || ah_has_no_peer(p2p, msg)) {
        msg->stage = ENDED;
        atomic_store_explicit(&msg->outcome, p2p->failed ? AH_FAILED : AH_PEER_LEFT,
                              memory_order_relaxed);
    } else
        begun = start_send(p2p, msg);
    msg->wait_count--;
    int ended = msg->stage == ENDED;
    if (begun && msg->is_async && !ended) ah_hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
    return begun ? ended : -1;
}
