/* One-way copies through staging buffers: each source has two, one a parity.
 *
 * For what flows in one direction and cannot be read where it lies (remote_read.h). A writer gets
 * its own lines back here, so each part of them has one reader, which hands the lines back
 * dirty: even where all get the same, one copy for each is three times as fast as one that all
 * read.
 */
#ifndef ALLHANDS_STAGED_COPY_H
#define ALLHANDS_STAGED_COPY_H

#include "comm/comm_state.h"

typedef struct {
    uint64_t steps;
    uint64_t sources, readers; /* sets of ranks */
    const void *what;
    /* Write this step's part into the own buffer: ah_staging_of, ah_staging_box. */
    void (*produce)(const ah_comm *comm, const void *what, uint64_t step);
    void (*consume)(const ah_comm *comm, const void *what, uint64_t step, int source);
} ah_staged_copy;

ah_status ah_staged_copy_run(ah_comm *comm, const ah_staged_copy *staged);

/* The whole buffer, of limits.chunk bytes at least; ah_staging_box(comm, rank, peer, parity) is
 * its part for one peer. */
static inline char *ah_staging_of(const ah_comm *comm, int rank, uint64_t step) {
    return ah_staging_box(comm, rank, 0, step & 1);
}

#endif
