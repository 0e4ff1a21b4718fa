#include "collectives/pairwise_swap.h"

#include "comm/wait.h"

/* The box that `writer` writes for `reader` in this step. */
static char *box(const ah_lane *lane, int writer, int reader, uint64_t step) {
    int low = writer < reader ? writer : reader, high = writer < reader ? reader : writer;
    int side = ((writer > reader) + (int)(step >> 1)) & 1;
    return side ? ah_box(lane, high, low, step & 1) : ah_box(lane, low, high, step & 1);
}

static void put(const ah_lane *lane, const ah_exchange *exchange, uint64_t phase, uint64_t step) {
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        exchange->put(lane, exchange->what, peer, step, box(lane, lane->rank, peer, phase + step));
    }
}

static void take(const ah_lane *lane, const ah_exchange *exchange, uint64_t phase, uint64_t step) {
    char *boxes[AH_MAX_RANKS];
    for (int peer = 0; peer < lane->size; peer++)
        boxes[peer] = peer == lane->rank ? NULL : box(lane, peer, lane->rank, phase + step);
    exchange->take(lane, exchange->what, step, boxes);
}

void ah_exchange_open(ah_lane *lane, const ah_exchange *exchange, bool early, ah_terms *terms) {
    if (!lane->tidy) return;
    terms->flags |= AH_TIDY;
    terms->phase = lane->phase;
    if (!early || !exchange->steps) return;
    ah_unsettle(lane); /* until this call has ended well */
    put(lane, exchange, lane->phase, 0);
    ah_put(lane, 1);
    terms->flags |= AH_EARLY;
}

ah_status ah_exchange_run(ah_lane *lane, const ah_exchange *exchange) {
    const ah_terms *own = &lane->terms[lane->rank];
    bool agreed = true, ready = true; /* ready: everybody's first step is there */
    for (int r = 0; r < lane->size; r++) {
        const ah_terms *terms = &lane->terms[r];
        agreed &= (terms->flags & AH_TIDY) && terms->phase == own->phase;
        ready &= (terms->flags & AH_EARLY) != 0;
    }
    ah_unsettle(lane);
    if (!agreed) { /* a step that was put early is void: count from behind it */
        for (int r = 0; r < lane->size; r++)
            if (lane->terms[r].flags & AH_EARLY) lane->terms[r].base++;
        lane->base = own->base;
    }
    uint64_t phase = agreed ? own->phase : 0;
    uint64_t first = agreed && (own->flags & AH_EARLY) ? 1 : 0;
    ah_status status = AH_OK;
    for (uint64_t step = 0; step <= exchange->steps && status == AH_OK; step++) {
        if (step >= first && step < exchange->steps) {
            put(lane, exchange, phase, step);
            ah_put(lane, step + 1);
        }
        if (step == 0) continue;
        if (step > 1 || !agreed || !ready) status = ah_await_put(lane, lane->others, step);
        if (status != AH_OK) break;
        take(lane, exchange, phase, step - 1);
        status = ah_breathe(lane);
    }
    if (status == AH_OK) {
        lane->phase = phase + exchange->steps;
        lane->tidy = true;
    }
    return status;
}
