#include "direct.h"

#include "slices.h"
#include "wait.h"

typedef struct {
    ah_op op;
    ah_type type;
    const char *const *in;
    char *out;
    size_t nbytes;
    uint64_t steps;
    int root;
} reduction;

bool ah_direct_inputs(const ah_lane *lane, size_t nbytes, const char *in[]) {
    for (int r = 0; r < lane->size; r++) {
        if (!(lane->terms[r].flags & AH_IN_HEAP)) return false;
        in[r] = ah_in_heap(lane, r, lane->terms[r].where, nbytes);
        if (!in[r]) return false;
    }
    return true;
}

static bool wanted(const ah_lane *lane, const reduction *what) {
    return what->root < 0 || what->root == lane->rank;
}

/* What a rank folded for the root alone passes through a box that only those two touch. */
static char *box(const ah_lane *lane, const reduction *what, int rank, uint64_t step) {
    return ah_box(lane, rank, what->root, step & 1);
}

static ah_status fold(ah_lane *lane, const reduction *what, uint64_t step) {
    ah_slice part = ah_slice_of(lane, what->nbytes, step, lane->rank);
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++) in[r] = what->in[r] + part.at;
    if (!wanted(lane, what) && step >= 2) {
        ah_status status = ah_await_done(lane, AH_BIT(what->root), step - 1);
        if (status != AH_OK) return status;
    }
    void *to = wanted(lane, what) ? what->out + part.at : box(lane, what, lane->rank, step);
    ah_fold(what->op, what->type, to, in, lane->size, part.nbytes / ah_type_size(what->type),
            (size_t)lane->size);
    if (ah_gave_up(lane, lane->others)) return AH_ABANDONED; /* whose array may have changed */
    ah_put(lane, step + 1);
    return AH_OK;
}

static ah_status take(ah_lane *lane, const reduction *what, uint64_t step) {
    if (!wanted(lane, what)) return AH_OK;
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_status status = ah_await_put(lane, AH_BIT(peer), step + 1);
        if (status != AH_OK) return status;
        ah_slice part = ah_slice_of(lane, what->nbytes, step, peer);
        const char *from = what->root < 0 ? what->in[peer] + part.at : box(lane, what, peer, step);
        ah_copy(what->out + part.at, from, part.nbytes, false);
    }
    if (what->root >= 0 && step + 1 < what->steps) ah_done(lane, step + 1);
    return AH_OK;
}

/* Nobody's array is needed any more: by us, and by the others. */
static ah_status leave(ah_lane *lane, uint64_t steps) {
    if (ah_gave_up(lane, lane->others)) return AH_ABANDONED;
    ah_done(lane, steps);
    return ah_await_gone(lane, lane->others, steps);
}

ah_status ah_direct_reduce(ah_lane *lane, ah_op op, ah_type type, const char *const in[], char *out,
                           size_t nbytes, int root) {
    uint64_t steps = (nbytes + lane->limits.chunk - 1) / lane->limits.chunk;
    reduction what = {op, type, in, out, nbytes, steps, root};
    ah_status status = AH_OK;
    lane->call->variant = AH_DIRECT;
    if (root >= 0) lane->tidy = false; /* boxes are used */
    for (uint64_t step = 0; step <= steps && status == AH_OK; step++) {
        if (step < steps) status = fold(lane, &what, step);
        if (step > 0 && status == AH_OK) status = take(lane, &what, step - 1);
        if (status == AH_OK) status = ah_breathe(lane);
    }
    return status == AH_OK ? leave(lane, steps) : status;
}

ah_status ah_direct_fold(ah_lane *lane, ah_op op, ah_type type, const char *const in[], char *out,
                         size_t nbytes) {
    lane->call->variant = AH_DIRECT;
    for (size_t at = 0; at < nbytes; at += lane->limits.chunk) {
        const void *part[AH_MAX_RANKS];
        for (int r = 0; r < lane->size; r++) part[r] = in[r] + at;
        size_t length = ah_min(lane->limits.chunk, nbytes - at);
        ah_fold(op, type, out + at, part, lane->size, length / ah_type_size(type),
                (size_t)lane->size);
        ah_status status = ah_breathe(lane);
        if (status != AH_OK) return status;
    }
    return leave(lane, 1);
}
