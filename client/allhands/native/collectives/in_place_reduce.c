#include "collectives/in_place_reduce.h"

#include "collectives/calls.h"
#include "comm/heap_access.h"
#include "collectives/partition.h"

/* Small enough to be found in the nearest cache when it is copied on. */
#define PIECE ((size_t)16 << 10)
/* Of work between looks at what else there is. */
#define STRETCH ((size_t)256 << 10)

bool ah_direct_inputs(const ah_lane *lane, size_t nbytes, char *in[]) {
    for (int r = 0; r < lane->size; r++) {
        if (!(lane->terms[r].flags & AH_IN_HEAP)) return false;
        in[r] = ah_in_heap(lane, r, lane->terms[r].where, nbytes);
        if (!in[r]) return false;
    }
    return true;
}

static void fold(const ah_lane *lane, ah_op op, ah_type type, char *const in[], size_t at,
                 size_t nbytes, char *out) {
    const void *parts[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++) parts[r] = in[r] + at;
    ah_fold(op, type, out, parts, lane->size, nbytes / ah_type_size(type), (size_t)lane->size);
}

/* Nobody's array is needed any more: by us, and by the others. */
static ah_status leave(ah_lane *lane, uint64_t steps) {
    ah_done(lane, steps);
    return ah_await_gone(lane, lane->others, steps);
}

/* ---- all_reduce: without a word in between, since a slice is one rank's alone */

static ah_status reduce_stretch(ah_lane *lane, ah_op op, ah_type type, char *const x[],
                                ah_slice part) {
    ah_status status = ah_enter(lane, lane->others);
    if (status != AH_OK) return status;
    for (size_t done = 0; done < part.nbytes; done += PIECE) {
        size_t at = part.at + done, nbytes = ah_min(PIECE, part.nbytes - done);
        char *result = x[lane->rank] + at;
        fold(lane, op, type, x, at, nbytes, result);
        for (int k = 1; k < lane->size; k++) {
            int peer = (lane->rank + k) % lane->size;
            ah_copy(x[peer] + at, result, nbytes, false);
        }
    }
    return ah_exit(lane, lane->others);
}

ah_status ah_direct_all_reduce(ah_lane *lane, ah_op op, ah_type type, char *const x[],
                               size_t nbytes) {
    ah_slice mine = ah_slice_in(0, nbytes, lane->size, lane->rank);
    ah_status status = AH_OK;
    lane->call->variant = AH_DIRECT;
    for (size_t done = 0; done < mine.nbytes && status == AH_OK; done += STRETCH) {
        ah_slice part = {mine.at + done, ah_min(STRETCH, mine.nbytes - done)};
        status = reduce_stretch(lane, op, type, x, part);
        if (status == AH_OK) status = ah_breathe(lane);
    }
    if (status != AH_OK) return status;
    ah_put(lane, 1);
    return ah_await_put(lane, lane->others, 1);
}

/* ---- reduce: results go to the root through boxes that only it and their writer touch */

typedef struct {
    ah_op op;
    ah_type type;
    char *const *in;
    char *out;
    size_t nbytes;
    uint64_t steps;
    int root;
} reduction;

static char *box(const ah_lane *lane, const reduction *what, int rank, uint64_t step) {
    return ah_box(lane, rank, what->root, step & 1);
}

static ah_status give(ah_lane *lane, const reduction *what, uint64_t step) {
    ah_slice part = ah_slice_of(lane, what->nbytes, step, lane->rank);
    bool root = lane->rank == what->root;
    ah_status status = AH_OK;
    if (!root && step >= 2) status = ah_await_done(lane, AH_BIT(what->root), step - 1);
    if (status == AH_OK) status = ah_enter(lane, lane->others);
    if (status != AH_OK) return status;
    char *to = root ? what->out + part.at : box(lane, what, lane->rank, step);
    fold(lane, what->op, what->type, what->in, part.at, part.nbytes, to);
    status = ah_exit(lane, lane->others);
    if (status == AH_OK) ah_put(lane, step + 1);
    return status;
}

static ah_status take(ah_lane *lane, const reduction *what, uint64_t step) {
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_status status = ah_await_put(lane, AH_BIT(peer), step + 1);
        if (status != AH_OK) return status;
        ah_slice part = ah_slice_of(lane, what->nbytes, step, peer);
        const char *from = box(lane, what, peer, step);
        ah_copy(what->out + part.at, from, part.nbytes, false);
        ah_hand_back(from, part.nbytes);
    }
    ah_done(lane, step + 1);
    return AH_OK;
}

ah_status ah_direct_reduce(ah_lane *lane, ah_op op, ah_type type, char *const in[], char *out,
                           size_t nbytes, int root) {
    uint64_t steps = ah_steps(nbytes, ah_step_bytes(lane, nbytes));
    reduction what = {op, type, in, out, nbytes, steps, root};
    ah_status status = AH_OK;
    lane->call->variant = AH_DIRECT;
    ah_unsettle(lane);
    for (uint64_t step = 0; step <= steps && status == AH_OK; step++) {
        if (step < steps) status = give(lane, &what, step);
        if (step > 0 && status == AH_OK && lane->rank == root) status = take(lane, &what, step - 1);
        if (status == AH_OK) status = ah_breathe(lane);
    }
    return status == AH_OK ? leave(lane, steps) : status;
}

/* ---- reduce_scatter */

ah_status ah_direct_fold(ah_lane *lane, ah_op op, ah_type type, char *const in[], char *out,
                         size_t nbytes) {
    lane->call->variant = AH_DIRECT;
    for (size_t at = 0; at < nbytes; at += STRETCH) {
        ah_status status = ah_enter(lane, lane->others);
        if (status != AH_OK) return status;
        fold(lane, op, type, in, at, ah_min(STRETCH, nbytes - at), out + at);
        status = ah_exit(lane, lane->others);
        if (status == AH_OK) status = ah_breathe(lane);
        if (status != AH_OK) return status;
    }
    return leave(lane, 1);
}
