#define _GNU_SOURCE
#include "p2p/progress.h"

#include <stdlib.h>

#include "p2p/control.h"
#include "p2p/doorbell.h"
#include "p2p/handlers.h"
#include "p2p/match.h"
#include "p2p/queues.h"

#define DATA_BYTES ((size_t)16 << 10)
#define MIN_DATA_BYTES ((size_t)8 << 10)
#define FRAMES_AT_ONCE 64

bool ah_drain(ah_p2p *p2p, int peer) {
    ah_ring_end *in = &p2p->peers[peer].in;
    const ah_frame *frame;
    int handled = 0;
    while (handled < FRAMES_AT_ONCE && (frame = ah_ring_peek(in))) {
        size_t trailing = ah_trailing_bytes(frame);
        if (trailing > AH_RING_BYTES || !ah_handle(p2p, peer, frame)) break;
        ah_ring_pop(in, trailing);
        handled++;
    }
    if (handled) ah_wake_peer(p2p->region[peer], ASLEEP);
    return handled > 0;
}

static bool push_data(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = state->sending.first;
    size_t rest = msg->nbytes - msg->transferred, part = ah_min(rest, DATA_BYTES);
    size_t room = ah_ring_room(&state->out);
    if (part > room) part = room >= MIN_DATA_BYTES ? room / AH_CACHE_LINE * AH_CACHE_LINE : 0;
    ah_frame frame = {.kind = AH_DATA, .id = msg->id, .total = part};
    frame.where = msg->transferred;
    if (!part || !ah_put_frame(p2p, peer, &frame, (const char *)msg->data + msg->transferred)) {
        ah_wake_peer(p2p->region[peer], DOZING);
        return false;
    }
    msg->transferred += part;
    if (msg->transferred == msg->nbytes) {
        ah_queue_remove(&state->sending, msg);
        ah_release_rts(p2p, msg);
        free(msg->ctrl);
        msg->ctrl = NULL;
        ah_end_and_wake(p2p, msg, AH_DELIVERED);
    }
    return true;
}

static bool push(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    bool moved = false;
    while (state->first) {
        ah_ctrl_msg *ctrl = state->first;
        if (!ah_put_frame(p2p, peer, &ctrl->frame, ah_data_of(ctrl))) return moved;
        state->first = ctrl->next;
        if (!state->first) state->last = &state->first;
        ah_ctrl_sent(p2p, ctrl);
        moved = true;
    }
    while (state->sending.first && !state->first && push_data(p2p, peer)) moved = true;
    if (!state->first && !state->sending.first) p2p->has_output &= ~AH_BIT(peer);
    return moved;
}

bool ah_progress(ah_p2p *p2p) {
    bool moved = false;
    for (uint64_t rest = p2p->others; rest; rest &= rest - 1)
        moved |= ah_drain(p2p, __builtin_ctzll(rest));
    for (uint64_t rest = p2p->has_output; rest; rest &= rest - 1)
        moved |= push(p2p, __builtin_ctzll(rest));
    if (p2p->reading.first) {
        ah_read_some(p2p, p2p->reading.first);
        moved = true;
    }
    return moved;
}
