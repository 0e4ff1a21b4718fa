#include "collectives/mailboxes.h"

#include "collectives/calls.h"
#include "collectives/partition.h"
#include "comm/wait.h"

typedef struct {
    ah_op op;
    ah_type type;
    const char *in;
    char *out;
    size_t nbytes;
    int root;
} reduction;

static bool wanted(const reduction *what, int rank) { return what->root < 0 || what->root == rank; }

static ah_status put(ah_lane *lane, const reduction *what, uint64_t step) {
    /* Who gets no result back must be told in another way that its boxes have been read. */
    if (!wanted(what, lane->rank) && step >= 2) {
        ah_status status = ah_await_done(lane, lane->others, step - 1);
        if (status != AH_OK) return status;
    }
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_slice part = ah_slice_of(lane, what->nbytes, step, peer);
        ah_copy(ah_box(lane, lane->rank, peer, step & 1), what->in + part.at, part.nbytes, false);
    }
    ah_put(lane, step + 1);
    return AH_OK;
}

static ah_status fold(ah_lane *lane, const reduction *what, uint64_t step) {
    ah_status status = ah_await_put(lane, lane->others, step + 1);
    if (status != AH_OK) return status;
    ah_slice part = ah_slice_of(lane, what->nbytes, step, lane->rank);
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++)
        in[r] = r == lane->rank ? what->in + part.at : ah_box(lane, r, lane->rank, step & 1);
    char *result = wanted(what, lane->rank) ? what->out + part.at
                                            : ah_box(lane, what->root, lane->rank, step & 1);
    ah_fold(what->op, what->type, result, in, lane->size, part.nbytes / ah_type_size(what->type),
            (size_t)lane->size);
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        char *box = ah_box(lane, peer, lane->rank, step & 1);
        if (wanted(what, peer) && box != result) ah_copy(box, result, part.nbytes, false);
        if (!wanted(what, peer)) ah_hand_back(box, part.nbytes);
    }
    ah_done(lane, step + 1);
    return AH_OK;
}

static ah_status take(ah_lane *lane, const reduction *what, uint64_t step) {
    if (!wanted(what, lane->rank)) return AH_OK;
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_status status = ah_await_done(lane, AH_BIT(peer), step + 1);
        if (status != AH_OK) return status;
        ah_slice part = ah_slice_of(lane, what->nbytes, step, peer);
        ah_copy(what->out + part.at, ah_box(lane, lane->rank, peer, step & 1), part.nbytes, false);
    }
    return AH_OK;
}

void ah_mailboxes_open(ah_lane *lane, const void *in, size_t nbytes) {
    if (!lane->returned || !nbytes) return;
    reduction what = {.in = in, .nbytes = nbytes, .root = -1};
    lane->returned = false;
    put(lane, &what, 0);
}

ah_status ah_mailboxes(ah_lane *lane, ah_op op, ah_type type, const char *in, char *out,
                       size_t nbytes, int root) {
    reduction what = {op, type, in, out, nbytes, root};
    uint64_t steps = ah_steps(nbytes, ah_step_bytes(lane, nbytes));
    bool early = lane->put > lane->base; /* ah_mailboxes_open has put the first step */
    ah_unsettle(lane);
    lane->call->variant = AH_MAILBOXES;
    ah_status status = steps && !early ? put(lane, &what, 0) : AH_OK;
    for (uint64_t step = 0; step < steps && status == AH_OK; step++) {
        if (step + 1 < steps) status = put(lane, &what, step + 1);
        if (status == AH_OK) status = fold(lane, &what, step);
        if (status == AH_OK) status = take(lane, &what, step);
        if (status == AH_OK) status = ah_breathe(lane);
    }
    lane->returned = status == AH_OK && root < 0;
    return status;
}
