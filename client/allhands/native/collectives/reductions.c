/* all_reduce, reduce, reduce_scatter: which variant, and the small one.
 *
 * All fold all contributions of an element at once, in the order of ranks: the same bits whichever
 * variant is taken and whoever folds.
 */
#include "collectives/calls.h"
#include "collectives/in_place_reduce.h"
#include "collectives/pairwise_swap.h"
#include "comm/heap_access.h"
#include "collectives/mailboxes.h"

static uint64_t sign(const ah_call *call, int operation, ah_op op, ah_type type, size_t count,
                     int root) {
    return ah_sign(call, operation, count, (uint64_t)op << 32 | (uint64_t)type, (uint64_t)root);
}

/* What a group of one makes of its own contribution. */
static void alone(ah_op op, ah_type type, void *out, const void *in, size_t count) {
    ah_fold(op == AH_AVG ? AH_SUM : op, type, out, &in, 1, count, 1);
}

/* ---- all_reduce */

typedef struct {
    ah_op op;
    ah_type type;
    const void *const *in; /* reduce_scatter; all_reduce has it in `out` */
    char *out;
    size_t nbytes;
} exchanged;

static ah_status give_slot(ah_lane *lane, uint64_t signature, const void *x, size_t nbytes) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    ah_move(ah_slot_data(slot, nbytes), x, nbytes);
    ah_post(lane, slot, signature);
    return AH_OK;
}

static ah_status fold_slots(ah_lane *lane, uint64_t signature, ah_op op, ah_type type, void *x,
                            size_t count, size_t nbytes) {
    ah_status status = ah_headers(lane, lane->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++)
        in[r] = ah_theirs(lane, r, nbytes);
    in[lane->rank] = x;
    lane->call->variant = AH_SLOTS;
    ah_fold(op, type, x, in, lane->size, count, (size_t)lane->size);
    if (lane->size == 2) ah_read_slot(lane, 1 - lane->rank, nbytes);
    return AH_OK;
}

static void put_own(const ah_lane *lane, const void *given, int peer, uint64_t step, char *box) {
    const exchanged *what = given;
    (void)peer;
    ah_copy(box, what->out + step * lane->box, ah_part(what->nbytes, lane->box, step), false);
}

static void fold_own(const ah_lane *lane, const void *given, uint64_t step, char *const boxes[]) {
    const exchanged *what = given;
    char *x = what->out + step * lane->box;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++) in[r] = r == lane->rank ? x : boxes[r];
    size_t count = ah_part(what->nbytes, lane->box, step) / ah_type_size(what->type);
    ah_fold(what->op, what->type, x, in, lane->size, count, (size_t)lane->size);
}

static ah_status all_reduce_large(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                                  void *x, size_t nbytes) {
    ah_slot *slot;
    ah_terms terms = {0};
    exchanged what = {op, type, NULL, x, nbytes};
    ah_exchange exchange = {ah_steps(nbytes, lane->box), &what, put_own, fold_own};
    bool pair = lane->size == 2;
    ah_pause(lane);
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    terms.flags = ah_locate(lane, x, nbytes, &terms.where);
    if (terms.flags & AH_IN_HEAP) ah_lend(lane, x, nbytes);
    if (pair)
        ah_exchange_open(lane, &exchange, !(terms.flags & AH_IN_HEAP), &terms);
    else if (!(terms.flags & AH_IN_HEAP))
        ah_mailboxes_open(lane, x, nbytes);
    ah_post_terms(lane, slot, signature, terms);
    status = ah_meet_all(lane, signature);
    if (status != AH_OK) return status;
    char *all[AH_MAX_RANKS];
    if (ah_direct_inputs(lane, nbytes, all))
        return ah_direct_all_reduce(lane, op, type, all, nbytes);
    if (!pair) return ah_mailboxes(lane, op, type, x, x, nbytes, -1);
    lane->call->variant = AH_SWAP;
    return ah_exchange_run(lane, &exchange);
}

static ah_status all_reduce_slots(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                                  void *x, size_t count, size_t nbytes) {
    ah_status status = give_slot(lane, signature, x, nbytes);
    return status == AH_OK ? fold_slots(lane, signature, op, type, x, count, nbytes) : status;
}

bool ah_all_reduce_splits(const ah_lane *lane, ah_type type, size_t count) {
    return count * ah_type_size(type) <= lane->limits.slot_max;
}

ah_status ah_all_reduce_start(ah_lane *lane, ah_call *call, ah_op op, ah_type type, const void *x,
                              size_t count) {
    uint64_t signature = sign(call, CALL_ALL_REDUCE, op, type, count, 0);
    ah_status status = ah_start(lane, call);
    if (status == AH_OK) status = give_slot(lane, signature, x, count * ah_type_size(type));
    if (status != AH_OK) return ah_finish(lane, status);
    ah_unpause(lane);
    return AH_OK;
}

ah_status ah_all_reduce_finish(ah_lane *lane, ah_op op, ah_type type, void *x, size_t count) {
    uint64_t signature = sign(lane->call, CALL_ALL_REDUCE, op, type, count, 0);
    size_t nbytes = count * ah_type_size(type);
    return ah_finish(lane, fold_slots(lane, signature, op, type, x, count, nbytes));
}

ah_status ah_all_reduce(ah_lane *lane, ah_call *call, ah_op op, ah_type type, void *x,
                        size_t count) {
    size_t nbytes = count * ah_type_size(type);
    uint64_t signature = sign(call, CALL_ALL_REDUCE, op, type, count, 0);
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        alone(op, type, x, x, count);
    else if (nbytes <= lane->limits.slot_max)
        status = all_reduce_slots(lane, signature, op, type, x, count, nbytes);
    else
        status = all_reduce_large(lane, signature, op, type, x, nbytes);
    return ah_finish(lane, status);
}

/* ---- reduce */

static ah_status reduce_slots(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                              const void *mine, void *out, size_t count, size_t nbytes, int root) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    lane->call->variant = AH_SLOTS;
    if (lane->rank != root) {
        ah_move(ah_slot_data(slot, nbytes), mine, nbytes);
        ah_post(lane, slot, signature);
        return ah_headers_of(lane, 0, signature);
    }
    ah_post(lane, slot, signature);
    status = ah_headers_of(lane, lane->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++)
        in[r] = ah_theirs(lane, r, nbytes);
    in[root] = mine;
    ah_fold(op, type, out, in, lane->size, count, (size_t)lane->size);
    for (int r = 0; r < lane->size; r++)
        if (r != root) ah_read_slot(lane, r, nbytes);
    return AH_OK;
}

static ah_status reduce_large(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                              const void *in, void *out, size_t nbytes, int root) {
    ah_terms terms = {0};
    ah_pause(lane);
    terms.flags = ah_locate(lane, in, nbytes, &terms.where);
    ah_status status = ah_meet(lane, signature, terms);
    if (status != AH_OK) return status;
    char *all[AH_MAX_RANKS];
    if (ah_direct_inputs(lane, nbytes, all))
        return ah_direct_reduce(lane, op, type, all, out, nbytes, root);
    return ah_mailboxes(lane, op, type, in, out, nbytes, root);
}

ah_status ah_reduce(ah_lane *lane, ah_call *call, ah_op op, ah_type type, const void *in,
                    void *out, size_t count, int root) {
    size_t nbytes = count * ah_type_size(type);
    uint64_t signature = sign(call, CALL_REDUCE, op, type, count, root);
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        alone(op, type, out, in, count);
    else if (nbytes <= lane->limits.slot_max)
        status = reduce_slots(lane, signature, op, type, in, out, count, nbytes, root);
    else
        status = reduce_large(lane, signature, op, type, in, out, nbytes, root);
    return ah_finish(lane, status);
}

/* ---- reduce_scatter */

static ah_status reduce_scatter_slots(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                                      const void *const mine[], void *out, size_t count,
                                      size_t nbytes) {
    ah_slot *slot;
    size_t total = nbytes * (size_t)lane->size;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    for (int r = 0; r < lane->size; r++)
        if (r != lane->rank)
            ah_move(ah_slot_data(slot, total) + (size_t)r * nbytes, mine[r], nbytes);
    ah_post(lane, slot, signature);
    status = ah_headers(lane, lane->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++)
        in[r] = ah_theirs(lane, r, total) + (size_t)lane->rank * nbytes;
    in[lane->rank] = mine[lane->rank];
    lane->call->variant = AH_SLOTS;
    ah_fold(op, type, out, in, lane->size, count, (size_t)lane->size);
    if (lane->size == 2) ah_read_slot(lane, 1 - lane->rank, total);
    return AH_OK;
}

static void put_theirs(const ah_lane *lane, const void *given, int peer, uint64_t step,
                       char *box) {
    const exchanged *what = given;
    size_t part = ah_part(what->nbytes, lane->box, step);
    ah_copy(box, (const char *)what->in[peer] + step * lane->box, part, false);
}

static void fold_mine(const ah_lane *lane, const void *given, uint64_t step, char *const boxes[]) {
    const exchanged *what = given;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++) in[r] = boxes[r];
    in[lane->rank] = (const char *)what->in[lane->rank] + step * lane->box;
    size_t count = ah_part(what->nbytes, lane->box, step) / ah_type_size(what->type);
    ah_fold(what->op, what->type, what->out + step * lane->box, in, lane->size, count,
            (size_t)lane->size);
}

static ah_status reduce_scatter_direct(ah_lane *lane, ah_op op, ah_type type, const void *mine,
                                       void *out, size_t nbytes) {
    char *in[AH_MAX_RANKS];
    for (int r = 0; r < lane->size; r++) {
        uint64_t *where = ah_slot_table(ah_slot_of(lane, r, lane->call->sequence), 0);
        in[r] = r == lane->rank ? (char *)mine : ah_in_heap(lane, r, where[lane->rank], nbytes);
        if (!in[r]) return ah_await_end(lane, AH_BIT(r)); /* no rank of ours posts that */
    }
    return ah_direct_fold(lane, op, type, in, out, nbytes);
}

static ah_status reduce_scatter_large(ah_lane *lane, uint64_t signature, ah_op op, ah_type type,
                                      const void *const in[], void *out, size_t nbytes) {
    ah_slot *slot;
    ah_terms terms = {0};
    exchanged what = {op, type, in, out, nbytes};
    ah_exchange exchange = {ah_steps(nbytes, lane->box), &what, put_theirs, fold_mine};
    ah_pause(lane);
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    terms.flags = ah_locate_all(lane, in, NULL, nbytes, ah_slot_table(slot, 0));
    ah_exchange_open(lane, &exchange, !terms.flags, &terms);
    ah_post_terms(lane, slot, signature, terms);
    status = ah_meet_all(lane, signature);
    if (status != AH_OK) return status;
    uint64_t direct = AH_IN_HEAP;
    for (int r = 0; r < lane->size; r++) direct &= lane->terms[r].flags;
    if (direct) return reduce_scatter_direct(lane, op, type, in[lane->rank], out, nbytes);
    lane->call->variant = AH_SWAP;
    return ah_exchange_run(lane, &exchange);
}

ah_status ah_reduce_scatter(ah_lane *lane, ah_call *call, ah_op op, ah_type type,
                            const void *const in[], void *out, size_t count) {
    size_t nbytes = count * ah_type_size(type);
    uint64_t signature = sign(call, CALL_REDUCE_SCATTER, op, type, count, 0);
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        alone(op, type, out, in[0], count);
    else if (nbytes <= lane->limits.slot_max / (size_t)lane->size)
        status = reduce_scatter_slots(lane, signature, op, type, in, out, count, nbytes);
    else
        status = reduce_scatter_large(lane, signature, op, type, in, out, nbytes);
    return ah_finish(lane, status);
}
