#define _GNU_SOURCE
#include "p2p/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "p2p/control.h"
#include "p2p/match.h"
#include "p2p/queues.h"

static bool handle_eager(ah_p2p *p2p, int peer, const ah_frame *frame) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = ah_find_receive(p2p, peer, frame->tag);
    if (msg) { /* into its place at once */
        bool mismatch = ah_is_mismatch(msg, frame);
        ah_queue_remove(ah_posted_queue(p2p, msg->tag), msg);
        msg->source = peer;
        msg->way = AH_WAY_EAGER;
        msg->sent_nbytes = frame->total;
        msg->sent_signature = frame->signature;
        if (!mismatch && frame->total > AH_INLINE)
            ah_ring_read(&state->in, msg->data, frame->total);
        else if (!mismatch)
            memcpy(msg->data, frame->small, frame->total);
        state->released += AH_CACHE_LINE + frame->total;
        atomic_store_explicit(&state->in.consumed->released, state->released, memory_order_release);
        ah_end_and_wake(p2p, msg, mismatch ? AH_MISMATCHED : AH_DELIVERED);
        return true;
    }
    ah_unexpected *arrived = calloc(1, sizeof *arrived);
    char *payload = frame->total > AH_INLINE ? malloc(frame->total) : NULL;
    if (!arrived || (frame->total > AH_INLINE && !payload)) {
        free(arrived);
        free(payload);
        return false; /* it stays in the ring, and its sender waits */
    }
    if (payload) ah_ring_read(&state->in, payload, frame->total);
    *arrived = (ah_unexpected){.order = ++p2p->last_order, .peer = peer, .payload = payload};
    memcpy(&arrived->frame, frame, sizeof *frame);
    ah_queue_unexpected(p2p, arrived);
    return true;
}

static bool handle_rts(ah_p2p *p2p, int peer, const ah_frame *frame) {
    ah_unexpected *arrived = calloc(1, sizeof *arrived);
    if (!arrived) return false;
    arrived->order = ++p2p->last_order;
    arrived->peer = peer;
    memcpy(&arrived->frame, frame, sizeof *frame);
    ah_match_unexpected(p2p, arrived);
    return true;
}

static ah_message *find_sent(ah_p2p *p2p, int peer, uint64_t id) {
    for (ah_message *msg = p2p->peers[peer].rts_sent.first; msg; msg = msg->after)
        if (msg->id == id) return msg;
    return NULL;
}

static void handle_answer(ah_p2p *p2p, int peer, const ah_frame *frame) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = find_sent(p2p, peer, frame->id);
    if (!msg) return; /* it has been withdrawn meanwhile */
    ah_queue_remove(&state->rts_sent, msg);
    if (frame->kind == AH_CTS) {
        msg->stage = SENDING;
        msg->transferred = 0;
        msg->way = AH_WAY_PIECES;
        ah_queue_append(&state->sending, msg);
        p2p->has_output |= AH_BIT(peer);
        return;
    }
    ah_release_rts(p2p, msg);
    free(msg->ctrl);
    msg->ctrl = NULL;
    if (frame->kind == AH_NACK && (msg->expected_text = malloc(frame->total + 1)) != NULL) {
        ah_ring_read(&state->in, msg->expected_text, frame->total);
        msg->expected_text[frame->total] = 0;
    }
    ah_end_and_wake(p2p, msg, frame->kind == AH_ACK ? AH_DELIVERED : AH_MISMATCHED);
}

static ah_message *find_receiving(ah_p2p *p2p, int peer, uint64_t id) {
    for (ah_message *msg = p2p->receiving.first; msg; msg = msg->after)
        if (msg->source == peer && msg->rts->frame.id == id) return msg;
    return NULL;
}

static void handle_data(ah_p2p *p2p, int peer, const ah_frame *frame) {
    ah_message *msg = find_receiving(p2p, peer, frame->id);
    if (!msg) return; /* of a receive that has ended early */
    if (frame->where != msg->transferred || frame->total > msg->nbytes - msg->transferred)
        return; /* nonsense */
    msg->touched = true;
    ah_ring_read(&p2p->peers[peer].in, (char *)msg->data + msg->transferred, frame->total);
    msg->transferred += frame->total;
    if (msg->transferred < msg->nbytes) return;
    ah_queue_remove(&p2p->receiving, msg);
    ah_free_unexpected(msg->rts);
    msg->rts = NULL;
    ah_end_and_wake(p2p, msg, AH_DELIVERED);
}

static void handle_cancel(ah_p2p *p2p, int peer, const ah_frame *frame) {
    for (ah_unexpected *at = p2p->unexpected[frame->tag % TAG_BUCKETS].first; at; at = at->after)
        if (at->peer == peer && at->frame.kind == AH_RTS && at->frame.id == frame->id) {
            ah_remove_unexpected(p2p, at);
            ah_free_unexpected(at);
            return;
        }
    ah_message *msg = find_receiving(p2p, peer, frame->id); /* others look at the RTS table */
    if (!msg) return;
    ah_queue_remove(&p2p->receiving, msg);
    if (msg->rts->ctrl.queued) ah_unsend_ctrl(p2p, peer, &msg->rts->ctrl);
    ah_free_unexpected(msg->rts);
    ah_match_receive(p2p, msg);
}

bool ah_handle(ah_p2p *p2p, int peer, const ah_frame *frame) {
    switch (frame->kind) {
    case AH_EAGER: return handle_eager(p2p, peer, frame);
    case AH_RTS: return handle_rts(p2p, peer, frame);
    case AH_CTS:
    case AH_ACK:
    case AH_NACK: handle_answer(p2p, peer, frame); break;
    case AH_DATA: handle_data(p2p, peer, frame); break;
    case AH_CANCEL: handle_cancel(p2p, peer, frame); break;
    default: break;
    }
    return true;
}
