#define _GNU_SOURCE
#include "p2p/cancel.h"

#include <stdlib.h>

#include "comm/host.h"
#include "p2p/control.h"
#include "p2p/match.h"
#include "p2p/queues.h"

static void cancel_send(ah_p2p *p2p, ah_message *msg) {
    peer_state *state = &p2p->peers[msg->peer];
    ah_ctrl_msg *ctrl = msg->ctrl;
    msg->ctrl = NULL;
    ah_release_rts(p2p, msg);
    if (msg->stage == QUEUED) {
        if (ctrl->frame.kind == AH_EAGER) state->eager_used -= AH_CACHE_LINE + msg->nbytes;
        ah_unsend_ctrl(p2p, msg->peer, ctrl);
        free(ctrl);
        return;
    }
    ah_queue_remove(msg->stage == RTS_SENT ? &state->rts_sent : &state->sending, msg);
    ctrl->message = NULL;
    ctrl->frame = (ah_frame){.kind = AH_CANCEL, .id = msg->id, .tag = msg->tag};
    ah_send_ctrl(p2p, msg->peer, ctrl);
}

/* Take a receive out of its queue. Its RTS, if it has one, is for other receives, or freed. */
static void cancel_receive(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *rts = msg->rts;
    msg->rts = NULL;
    switch (msg->stage) {
    case POSTED: ah_queue_remove(ah_posted_queue(p2p, msg->tag), msg); break;
    case READING:
        ah_queue_remove(&p2p->reading, msg);
        ah_match_unexpected(p2p, rts);
        break;
    case RECEIVING:
        ah_queue_remove(&p2p->receiving, msg);
        if (rts->ctrl.queued) {
            ah_unsend_ctrl(p2p, rts->peer, &rts->ctrl);
            ah_match_unexpected(p2p, rts);
        } else
            ah_free_unexpected(rts); /* the data is on its way, for nobody */
        break;
    case ANSWERING: rts->ctrl.message = NULL; break;
    }
}

void ah_end_early(ah_p2p *p2p, ah_message *msg, int outcome) {
    if (msg->stage == ENDED) return;
    if (msg->stage == ANSWERING)
        outcome = msg->final_outcome; /* it has ended, but for its answer */
    if (msg->receives)
        cancel_receive(p2p, msg);
    else
        cancel_send(p2p, msg);
    ah_end_and_wake(p2p, msg, outcome);
}

bool ah_has_no_peer(const ah_p2p *p2p, const ah_message *msg) {
    uint64_t ends = msg->peer < 0 ? p2p->others : AH_BIT(msg->peer);
    return ends && !(ends & ~p2p->left);
}

void ah_end_where(ah_p2p *p2p, bool (*applies)(const ah_p2p *, const ah_message *), int outcome) {
    ah_message *msg = p2p->oldest;
    while (msg) {
        if (!applies(p2p, msg)) {
            msg = msg->newer;
            continue;
        }
        ah_end_early(p2p, msg, outcome);
        msg = p2p->oldest;
    }
}

void ah_expire(ah_p2p *p2p) {
    int64_t now = ah_now();
    if (now < p2p->next_deadline) return;
    ah_message *msg = p2p->oldest;
    p2p->next_deadline = INT64_MAX;
    while (msg) {
        if (msg->is_async && msg->deadline <= now) {
            ah_end_early(p2p, msg, AH_TIMED_OUT);
            msg = p2p->oldest;
            p2p->next_deadline = INT64_MAX;
            continue;
        }
        if (msg->is_async && msg->deadline < p2p->next_deadline) p2p->next_deadline = msg->deadline;
        msg = msg->newer;
    }
}
