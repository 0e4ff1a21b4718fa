#define _GNU_SOURCE
#include "p2p/match.h"

#include <string.h>

#include "comm/cma.h"
#include "kernels/kernels.h"
#include "p2p/control.h"
#include "p2p/queues.h"

#define COPY_STEP ((size_t)512 << 10) /* of a copy, with the lock held */
#define ATTACH_STEP ((size_t)4 << 20)

static bool rts_holds(const ah_p2p *p2p, const ah_unexpected *rts) {
    return ah_rts_holds(p2p->region[rts->peer], rts->frame.slot, rts->frame.id);
}

static bool read_from(const ah_p2p *p2p, int peer, uint64_t address, void *to, size_t nbytes) {
    return ah_cma_read_process(p2p->pid[peer], address, to, nbytes);
}

/* Whether the process of that number is the peer, and not one that took the number over: then it
 * was so for all that was read before. (In one call with the data, that comes a tenth slower.) */
static bool is_peer(const ah_p2p *p2p, int peer) {
    uint64_t at = atomic_load(&p2p->region[peer]->nonce_at), nonce = 0;
    return at && read_from(p2p, peer, at, &nonce, sizeof nonce) &&
           nonce == atomic_load(&p2p->region[peer]->nonce);
}

static bool can_attach(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    if (!state->attach) state->attach = is_peer(p2p, peer) ? 1 : -1;
    return state->attach > 0;
}

static void answer_and_end(ah_p2p *p2p, ah_message *msg, ah_frame_kind kind, int outcome) {
    msg->stage = ANSWERING;
    msg->final_outcome = outcome;
    ah_send_answer(p2p, msg, kind);
}

/* A receive is matched with an RTS: choose how its data comes. */
static void start_transfer(ah_p2p *p2p, ah_message *msg) {
    const ah_unexpected *rts = msg->rts;
    const ah_frame *frame = &rts->frame;
    bool is_held = frame->slot < AH_RTS_SLOTS;
    if (ah_is_mismatch(msg, frame)) {
        msg->sent_nbytes = frame->total;
        msg->sent_signature = frame->signature;
        answer_and_end(p2p, msg, AH_NACK, AH_MISMATCHED);
        return;
    }
    if (!frame->total) {
        msg->way = AH_WAY_EAGER;
        answer_and_end(p2p, msg, AH_ACK, AH_DELIVERED);
        return;
    }
    msg->transferred = 0;
    msg->way = AH_WAY_PIECES;
    if (is_held && frame->flags & AH_RTS_IN_HEAP) {
        if (p2p->heap[rts->peer] && frame->where <= p2p->heap_bytes &&
            frame->total <= p2p->heap_bytes - frame->where)
            msg->way = AH_WAY_DIRECT;
    } else if (is_held && frame->total >= p2p->limits.attach_min && can_attach(p2p, rts->peer))
        msg->way = AH_WAY_ATTACH;
    if (msg->way == AH_WAY_PIECES) {
        msg->stage = RECEIVING;
        ah_queue_append(&p2p->receiving, msg);
        ah_send_answer(p2p, msg, AH_CTS);
    } else {
        msg->stage = READING;
        ah_queue_append(&p2p->reading, msg);
    }
}

/* Complete a receive, in no queue, with a message that has arrived. False: its RTS was withdrawn,
 * and is freed; the CANCEL is on its way. */
static bool deliver(ah_p2p *p2p, ah_message *msg, ah_unexpected *arrived) {
    const ah_frame *frame = &arrived->frame;
    if (frame->kind == AH_RTS) {
        if (frame->slot < AH_RTS_SLOTS && !rts_holds(p2p, arrived)) {
            ah_free_unexpected(arrived);
            return false;
        }
        msg->source = arrived->peer;
        msg->rts = arrived;
        start_transfer(p2p, msg);
        return true;
    }
    bool mismatch = ah_is_mismatch(msg, frame);
    msg->source = arrived->peer;
    msg->way = AH_WAY_EAGER;
    msg->sent_nbytes = frame->total;
    msg->sent_signature = frame->signature;
    if (!mismatch && frame->total)
        memcpy(msg->data, arrived->payload ? arrived->payload : (const char *)frame->small,
               frame->total);
    peer_state *state = &p2p->peers[arrived->peer];
    state->released += AH_CACHE_LINE + frame->total;
    atomic_store_explicit(&state->in.consumed->released, state->released, memory_order_release);
    ah_free_unexpected(arrived);
    ah_end_and_wake(p2p, msg, mismatch ? AH_MISMATCHED : AH_DELIVERED);
    return true;
}

void ah_match_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    ah_message *msg = ah_find_receive(p2p, arrived->peer, arrived->frame.tag);
    if (!msg) {
        ah_queue_unexpected(p2p, arrived);
        return;
    }
    ah_queue_remove(ah_posted_queue(p2p, msg->tag), msg);
    if (!deliver(p2p, msg, arrived)) ah_match_receive(p2p, msg);
}

void ah_match_receive(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *next;
    for (ah_unexpected *at = p2p->unexpected[msg->tag % TAG_BUCKETS].first; at; at = next) {
        next = at->after;
        if (at->frame.tag != msg->tag || (msg->peer >= 0 && msg->peer != at->peer)) continue;
        ah_remove_unexpected(p2p, at);
        if (deliver(p2p, msg, at)) return;
    }
    msg->source = -1;
    msg->rts = NULL;
    msg->stage = POSTED;
    ah_queue_insert(ah_posted_queue(p2p, msg->tag), msg);
}

void ah_read_some(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *rts = msg->rts;
    const ah_frame *frame = &rts->frame;
    bool direct = msg->way == AH_WAY_DIRECT;
    size_t part = ah_min(direct ? COPY_STEP : ATTACH_STEP, msg->nbytes - msg->transferred);
    char *to = (char *)msg->data + msg->transferred;
    ah_queue_remove(&p2p->reading, msg);
    msg->touched = true;
    if (direct)
        ah_copy(to, p2p->heap[rts->peer] + frame->where + msg->transferred, part,
                msg->nbytes > COPY_STEP);
    else if (!read_from(p2p, rts->peer, frame->where + msg->transferred, to, part) ||
             (msg->transferred + part == msg->nbytes && !is_peer(p2p, rts->peer))) {
        /* Dead, or not to be looked at any more: asking it does no harm. */
        p2p->peers[rts->peer].attach = -1;
        start_transfer(p2p, msg);
        return;
    }
    msg->transferred += part;
    bool good = rts_holds(p2p, rts);
    if (!good) {
        ah_free_unexpected(rts);
        ah_match_receive(p2p, msg);
    } else if (msg->transferred == msg->nbytes)
        answer_and_end(p2p, msg, AH_ACK, AH_DELIVERED);
    else
        ah_queue_append(&p2p->reading, msg);
}
