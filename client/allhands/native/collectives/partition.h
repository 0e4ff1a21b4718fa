/* How an array is cut when each rank folds a part of it. */
#ifndef ALLHANDS_PARTITION_H
#define ALLHANDS_PARTITION_H

#include "comm/comm_state.h"

typedef struct {
    size_t at, nbytes;
} ah_slice;

/* What `rank` gets of `nbytes` from `start` on. Cut at lines, so that no two ranks write one. */
static inline ah_slice ah_slice_in(size_t start, size_t nbytes, int size, int rank) {
    size_t each = ah_round_up((nbytes + (size_t)size - 1) / (size_t)size, AH_CACHE_LINE);
    size_t from = ah_min((size_t)rank * each, nbytes);
    return (ah_slice){start + from, ah_min(each, nbytes - from)};
}

/* In which steps an array goes through staging: of many, each is half of what staging could hold,
 * because then it stays in the cache of its processor from one step to the next; of few, steps
 * cost more than that gains. */
static inline size_t ah_step_bytes(const ah_comm *comm, size_t nbytes) {
    size_t chunk = comm->limits.chunk;
    return nbytes < 4 * chunk ? chunk : ah_round_up(chunk / 2, AH_CACHE_LINE);
}

/* What `rank` gets of this step. */
static inline ah_slice ah_slice_of(const ah_comm *comm, size_t nbytes, uint64_t step, int rank) {
    size_t each = ah_step_bytes(comm, nbytes), start = step * each;
    return ah_slice_in(start, ah_min(each, nbytes - start), comm->size, rank);
}

#endif
