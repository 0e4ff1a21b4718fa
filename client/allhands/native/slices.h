/* How an array is cut when each rank folds a part of it: into chunks, and these into slices. */
#ifndef ALLHANDS_SLICES_H
#define ALLHANDS_SLICES_H

#include "lane.h"

typedef struct {
    size_t at, nbytes;
} ah_slice;

/* What `rank` folds in this step. Cut at lines, so that no two ranks write one. */
static inline ah_slice ah_slice_of(const ah_lane *lane, size_t nbytes, uint64_t step, int rank) {
    size_t start = step * lane->limits.chunk, size = (size_t)lane->size;
    size_t length = ah_min(lane->limits.chunk, nbytes - start);
    size_t each = ah_up((length + size - 1) / size, AH_LINE);
    size_t from = ah_min((size_t)rank * each, length);
    return (ah_slice){start + from, ah_min(each, length - from)};
}

#endif
