/* The memory of a call's spans, and what of it rounds change. */
#include "links/call.h"

static uint8_t *find(const ah_memory *memory, size_t start, size_t nbytes) {
    for (int i = 0; i < memory->count; i++) {
        const ah_piece *piece = &memory->pieces[i];
        if (start < piece->nbytes)
            return start + nbytes <= piece->nbytes ? piece->at + start : NULL;
        start -= piece->nbytes;
    }
    return NULL;
}

uint8_t *ah_call_locate(const ah_call *call, const ah_span *span) {
    return span->nbytes ? find(&call->memory[span->area], span->start, span->nbytes) : NULL;
}

bool ah_call_fits(const ah_memory memory[AH_AREAS], const ah_span *span) {
    return span->nbytes == 0 || find(&memory[span->area], span->start, span->nbytes) != NULL;
}

static bool overlap(const ah_span *one, const ah_span *other) {
    return one->area == other->area && one->start < other->start + other->nbytes &&
           other->start < one->start + one->nbytes;
}

/* Whether a span stays as it is while the round before is under way, and as its own begins. */
static bool is_kept(const ah_span *span, const ah_round *before, const ah_round *round) {
    for (int i = 0; i < before->recv_count; i++)
        if (overlap(span, &before->recvs[i].span)) return false;
    for (int i = 0; i < round->move_count; i++)
        if (overlap(span, &round->moves[i].target)) return false;
    for (int i = 0; i < round->combine_count; i++)
        if (overlap(span, &round->combines[i].target)) return false;
    return true;
}

void ah_call_plan_ahead(ah_call *call) {
    for (int at = 1; at < call->round_count; at++) {
        ah_round *round = &call->rounds[at];
        round->is_ahead = round->send_count > 0;
        for (int i = 0; i < round->send_count; i++)
            round->is_ahead &= is_kept(&round->sends[i].span, round - 1, round);
    }
}
