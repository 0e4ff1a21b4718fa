#include "collectives/remote_read.h"

#include "collectives/calls.h"
#include "comm/cma.h"
#include "comm/heap_access.h"
#include "comm/wait.h"
#include "kernels/kernels.h"

/* Between looks at interrupts. */
#define CHUNK ((size_t)4 << 20)

bool ah_may_attach(const ah_comm *comm, size_t nbytes) {
    size_t least = comm->oversubscribed ? comm->limits.attach_min : comm->attach_alone_min;
    return comm->can_attach && nbytes >= least;
}

bool ah_can_read_remote(const ah_comm *comm, uint64_t sources, size_t nbytes) {
    bool attach = nbytes >= ah_attach_min(comm, sources), heap = true;
    bool only_crowded = nbytes < comm->attach_alone_min;
    for (int r = 0; r < comm->size; r++) {
        uint64_t flags = comm->header[r].flags;
        attach &= flags & AH_CAN_ATTACH && (flags & AH_CROWDED || !only_crowded);
        heap &= !(sources & AH_BIT(r)) || (flags & AH_IN_HEAP);
    }
    return attach || heap;
}

ah_status ah_remote_read(ah_comm *comm, int from, uint64_t where, void *to, size_t nbytes) {
    if (ah_stops(comm)) return AH_PENDING;
    bool heap = comm->header[from].flags & AH_IN_HEAP;
    const char *source = heap ? ah_heap_address(comm, from, where, nbytes) : NULL;
    if (heap && !source)
        return ah_await_call_end(comm, AH_BIT(from)); /* no rank of ours posts that */
    if (comm->call->variant != AH_ATTACH) comm->call->variant = heap ? AH_DIRECT : AH_ATTACH;
    for (size_t at = 0; at < nbytes; at += CHUNK) {
        size_t part = ah_min(CHUNK, nbytes - at);
        ah_status status = AH_OK;
        if (heap && (status = ah_access_begin(comm, AH_BIT(from))) == AH_OK) {
            ah_copy((char *)to + at, source + at, part, nbytes >= CHUNK);
            status = ah_access_end(comm, AH_BIT(from));
        }
        if (!heap) status = ah_cma_read(comm, from, where + at, (char *)to + at, part);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
        if (status != AH_OK) return status;
    }
    return AH_OK;
}

ah_status ah_remote_read_end(ah_comm *comm, uint64_t sources, uint64_t readers) {
    if (ah_stops(comm)) return AH_PENDING;
    if (comm->call->variant == AH_NONE)
        comm->call->variant = comm->header[comm->rank].flags & AH_IN_HEAP ? AH_DIRECT : AH_ATTACH;
    if (ah_abandoning(comm, sources & comm->others)) return AH_ABANDONED;
    ah_publish_consumed(comm, 1);
    return ah_await_consumed_or_left(comm, readers & comm->others, 1);
}
