#include "collectives/remote_read.h"

#include "comm/cma.h"
#include "comm/heap_access.h"
#include "comm/wait.h"

/* Between looks at interrupts. */
#define PIECE ((size_t)4 << 20)

bool ah_can_pull(const ah_lane *lane, uint64_t sources, size_t nbytes) {
    bool attach = nbytes >= lane->limits.attach_min, heap = true;
    for (int r = 0; r < lane->size; r++) {
        uint64_t flags = lane->terms[r].flags;
        attach &= (flags & AH_CAN_ATTACH) != 0;
        heap &= !(sources & AH_BIT(r)) || (flags & AH_IN_HEAP);
    }
    return attach || heap;
}

ah_status ah_pull(ah_lane *lane, int from, uint64_t where, void *to, size_t nbytes) {
    bool heap = lane->terms[from].flags & AH_IN_HEAP;
    const char *source = heap ? ah_in_heap(lane, from, where, nbytes) : NULL;
    if (heap && !source) return ah_await_end(lane, AH_BIT(from)); /* no rank of ours posts that */
    if (lane->call->variant != AH_ATTACH) lane->call->variant = heap ? AH_DIRECT : AH_ATTACH;
    for (size_t at = 0; at < nbytes; at += PIECE) {
        size_t part = ah_min(PIECE, nbytes - at);
        ah_status status = AH_OK;
        if (heap && (status = ah_enter(lane, AH_BIT(from))) == AH_OK) {
            ah_copy((char *)to + at, source + at, part, nbytes >= PIECE);
            status = ah_exit(lane, AH_BIT(from));
        }
        if (!heap) status = ah_attach(lane, from, where + at, (char *)to + at, part);
        if (status == AH_OK) status = ah_breathe(lane);
        if (status != AH_OK) return status;
    }
    return AH_OK;
}

ah_status ah_pulled(ah_lane *lane, uint64_t sources, uint64_t readers) {
    if (lane->call->variant == AH_NONE)
        lane->call->variant =
            lane->terms[lane->rank].flags & AH_IN_HEAP ? AH_DIRECT : AH_ATTACH;
    if (ah_gave_up(lane, sources & lane->others)) return AH_ABANDONED;
    ah_done(lane, 1);
    return ah_await_gone(lane, readers & lane->others, 1);
}
