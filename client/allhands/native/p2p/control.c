#define _GNU_SOURCE
#include "p2p/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "p2p/doorbell.h"
#include "p2p/queues.h"

#define MAX_TEXT 4096

static void end_message(ah_p2p *p2p, ah_message *msg, int outcome) {
    *(msg->older ? &msg->older->newer : &p2p->oldest) = msg->newer;
    *(msg->newer ? &msg->newer->older : &p2p->newest) = msg->older;
    p2p->pending--;
    if (msg->is_async) p2p->async_count--;
    msg->stage = ENDED;
    if (!msg->wait_count && msg->is_async) {
        msg->is_queued = true;
        msg->next_ended = NULL;
        *p2p->ended_last = msg;
        p2p->ended_last = &msg->next_ended;
    }
    atomic_store_explicit(&msg->outcome, outcome, memory_order_release);
}

void ah_end_and_wake(ah_p2p *p2p, ah_message *msg, int outcome) {
    bool awaited = msg->wait_count || p2p->pending == 1;
    end_message(p2p, msg, outcome);
    if (awaited) ah_wake_callers(p2p);
    if (msg->is_queued) ah_wake_server(p2p);
}

void ah_release_rts(ah_p2p *p2p, ah_message *msg) {
    if (msg->slot >= AH_RTS_SLOTS) return;
    ah_rts_release(p2p->region[p2p->rank], msg->slot);
    p2p->rts_used[msg->slot] = false;
    msg->slot = AH_RTS_SLOTS;
}

void ah_ctrl_sent(ah_p2p *p2p, ah_ctrl_msg *ctrl) {
    ah_message *msg = ctrl->message;
    ctrl->queued = false;
    switch (ctrl->frame.kind) {
    case AH_EAGER:
        free(ctrl);
        if (msg) msg->ctrl = NULL, ah_end_and_wake(p2p, msg, AH_DELIVERED);
        return;
    case AH_RTS:
        msg->stage = RTS_SENT;
        ah_queue_append(&p2p->peers[msg->peer].rts_sent, msg);
        return;
    case AH_ACK:
    case AH_NACK:
        ah_free_unexpected(ctrl->rts);
        if (msg) msg->rts = NULL, ah_end_and_wake(p2p, msg, msg->final_outcome);
        return;
    case AH_CANCEL: free(ctrl); return;
    case AH_CTS: /* DATA follows */
    default: return;
    }
}

const void *ah_data_of(const ah_ctrl_msg *ctrl) {
    if (ctrl->frame.kind == AH_EAGER) return ctrl->message->data;
    return ctrl->rts ? ctrl->rts->text : NULL;
}

bool ah_put_frame(ah_p2p *p2p, int peer, const ah_frame *frame, const void *data) {
    bool out = ah_ring_put(&p2p->peers[peer].out, frame, data);
    ah_wake_peer(p2p->region[peer], out ? ASLEEP : DOZING);
    return out;
}

void ah_send_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl) {
    peer_state *state = &p2p->peers[peer];
    if (!state->first && ah_put_frame(p2p, peer, &ctrl->frame, ah_data_of(ctrl))) {
        ah_ctrl_sent(p2p, ctrl);
        return;
    }
    ctrl->next = NULL;
    ctrl->queued = true;
    *state->last = ctrl;
    state->last = &ctrl->next;
    p2p->has_output |= AH_BIT(peer);
}

void ah_unsend_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl) {
    peer_state *state = &p2p->peers[peer];
    ah_ctrl_msg **at = &state->first;
    while (*at != ctrl) at = &(*at)->next;
    *at = ctrl->next;
    if (!*at) state->last = at;
    ctrl->queued = false;
}

void ah_send_answer(ah_p2p *p2p, ah_message *msg, ah_frame_kind kind) {
    ah_unexpected *rts = msg->rts;
    ah_ctrl_msg *ctrl = &rts->ctrl;
    *ctrl = (ah_ctrl_msg){.message = msg, .rts = rts};
    ctrl->frame = (ah_frame){.kind = (uint16_t)kind, .id = rts->frame.id};
    if (kind == AH_NACK && (rts->text = malloc(MAX_TEXT)) != NULL) {
        snprintf(rts->text, MAX_TEXT, "message(%s[%zu])", msg->type, msg->count);
        ctrl->frame.total = strlen(rts->text);
    }
    ah_send_ctrl(p2p, rts->peer, ctrl);
}
