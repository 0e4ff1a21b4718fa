/* What the collectives' entry points have in common. */
#ifndef ALLHANDS_CALLS_H
#define ALLHANDS_CALLS_H

#include <string.h>

#include "collectives/collectives.h"
#include "collectives/kinds.h"
#include "comm/call.h"
#include "comm/wait.h"

/* Small and on this core's way anyhow; `from` and `to` may be the same, or NULL for no bytes. */
static inline void ah_copy_small(void *to, const void *from, size_t nbytes) {
    if (nbytes && to != from) memcpy(to, from, nbytes);
}

/* What `rank` has in its slot of this call, of so many bytes in all. */
static inline const char *ah_posted_data(const ah_comm *comm, int rank, size_t nbytes) {
    return ah_slot_data(ah_slot_of(comm, rank, comm->call->sequence), nbytes);
}

/* After reading it, where no other rank does. Not worth it for a few lines. */
static inline void ah_dirty_slot(const ah_comm *comm, int rank, size_t nbytes) {
    if (nbytes > 4 * AH_CACHE_LINE) ah_dirty_lines(ah_posted_data(comm, rank, nbytes), nbytes);
}

/* The part of a step of `each` bytes out of `nbytes`. */
static inline size_t ah_part(size_t nbytes, size_t each, uint64_t step) {
    size_t at = step * each;
    return at < nbytes ? ah_min(each, nbytes - at) : 0;
}

static inline uint64_t ah_steps(size_t nbytes, size_t each) { return (nbytes + each - 1) / each; }

#endif
