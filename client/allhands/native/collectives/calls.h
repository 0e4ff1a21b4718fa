/* What the collectives' entry points have in common. */
#ifndef ALLHANDS_CALLS_H
#define ALLHANDS_CALLS_H

#include <string.h>

#include "collectives/collectives.h"
#include "collectives/kinds.h"
#include "comm/call.h"
#include "comm/wait.h"
#include "kernels/copy.h"

/* Small and on this core's way anyhow; `from` and `to` may be the same, or NULL for no bytes. */
static inline void ah_copy_small(void *to, const void *from, size_t nbytes) {
    if (nbytes && to != from) ah_copy_bytes(to, from, nbytes);
}

/* Post what this rank brings in its slot, unless it has. */
static inline ah_status ah_post_data(ah_comm *comm, uint64_t signature, const void *data,
                                     size_t nbytes) {
    ah_slot *slot;
    if (comm->call->is_posted) return AH_OK;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    ah_copy_small(ah_slot_data(comm, comm->rank, nbytes), data, nbytes);
    ah_post(comm, slot, signature);
    return AH_OK;
}

/* The same, where every rank gets a part of its own. */
static inline ah_status ah_post_parts(ah_comm *comm, uint64_t signature, const void *const parts[],
                                      size_t nbytes) {
    ah_slot *slot;
    size_t total = nbytes * (size_t)comm->size;
    if (comm->call->is_posted) return AH_OK;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            ah_copy_small(ah_slot_data(comm, comm->rank, total) + (size_t)r * nbytes, parts[r],
                          nbytes);
    ah_post(comm, slot, signature);
    return AH_OK;
}

/* Whether the call under way stops here, because what follows does not stop before its end. */
static inline bool ah_stops(ah_comm *comm) {
    if (comm->call->only_tries) comm->call->waiting = 0;
    return comm->call->only_tries;
}

/* After reading what `rank` has posted, where no other rank does. Not worth it for a few lines. */
static inline void ah_dirty_slot(const ah_comm *comm, int rank, size_t nbytes) {
    if (nbytes > 4 * AH_CACHE_LINE) ah_dirty_lines(ah_slot_data(comm, rank, nbytes), nbytes);
}

/* The part of a step of `each` bytes out of `nbytes`. */
static inline size_t ah_part(size_t nbytes, size_t each, uint64_t step) {
    size_t at = step * each;
    return at < nbytes ? ah_min(each, nbytes - at) : 0;
}

static inline uint64_t ah_steps(size_t nbytes, size_t each) { return (nbytes + each - 1) / each; }

#endif
