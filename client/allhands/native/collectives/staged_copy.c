#include "collectives/staged_copy.h"

#include "comm/wait.h"

static ah_status put(ah_lane *lane, const ah_outbox *outbox, uint64_t step) {
    if (step >= 2) {
        uint64_t readers = outbox->readers & lane->others;
        ah_status status = ah_await_done(lane, readers, step - 1);
        if (status != AH_OK) return status;
    }
    outbox->put(lane, outbox->what, step);
    ah_put(lane, step + 1);
    return AH_OK;
}

static ah_status take(ah_lane *lane, const ah_outbox *outbox, uint64_t step) {
    for (int k = 1; k < lane->size; k++) {
        int source = (lane->rank + k) % lane->size;
        if (!(outbox->sources & AH_BIT(source))) continue;
        ah_status status = ah_await_put(lane, AH_BIT(source), step + 1);
        if (status != AH_OK) return status;
        outbox->take(lane, outbox->what, step, source);
    }
    ah_done(lane, step + 1);
    return AH_OK;
}

ah_status ah_outbox_run(ah_lane *lane, const ah_outbox *outbox) {
    bool source = outbox->sources & AH_BIT(lane->rank);
    bool reader = outbox->readers & AH_BIT(lane->rank);
    ah_status status = AH_OK;
    ah_unsettle(lane);
    lane->call->variant = AH_STAGED;
    /* A reader that is a source too puts one step ahead of what it takes. */
    for (uint64_t step = 0; step <= outbox->steps && status == AH_OK; step++) {
        if (source && step < outbox->steps) status = put(lane, outbox, step);
        if (reader && step > 0 && status == AH_OK) status = take(lane, outbox, step - 1);
        if (status == AH_OK) status = ah_breathe(lane);
    }
    return status;
}
