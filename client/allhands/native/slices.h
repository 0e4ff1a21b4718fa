/* How an array is cut when each rank folds a part of it. */
#ifndef ALLHANDS_SLICES_H
#define ALLHANDS_SLICES_H

#include "lane.h"

typedef struct {
    size_t at, nbytes;
} ah_slice;

/* What `rank` gets of `nbytes` from `start` on. Cut at lines, so that no two ranks write one. */
static inline ah_slice ah_slice_in(size_t start, size_t nbytes, int size, int rank) {
    size_t each = ah_up((nbytes + (size_t)size - 1) / (size_t)size, AH_LINE);
    size_t from = ah_min((size_t)rank * each, nbytes);
    return (ah_slice){start + from, ah_min(each, nbytes - from)};
}

/* The same of the chunk of this step. */
static inline ah_slice ah_slice_of(const ah_lane *lane, size_t nbytes, uint64_t step, int rank) {
    size_t start = step * lane->limits.chunk;
    return ah_slice_in(start, ah_min(lane->limits.chunk, nbytes - start), lane->size, rank);
}

#endif
