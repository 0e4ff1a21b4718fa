/* scan, exscan: prefix reductions in the order of ranks.
 *
 * Each rank folds at once what the ranks up to it bring, in their order: the same bits in either
 * variant. Large arrays go, part by part, from each rank to those behind it, as in a pairwise swap
 * of which one side is empty.
 */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"

typedef struct {
    ah_op op;
    ah_type type;
    char *x;
    size_t nbytes;
    int folded; /* ranks, from rank 0 on, whose contributions the own result has */
} prefix;

static void fold_prefix(const ah_comm *comm, const prefix *what, size_t at, size_t nbytes,
                        const void *in[]) {
    if (what->folded == 0) return;
    in[comm->rank] = what->x + at;
    ah_fold(what->op, what->type, what->x + at, in, what->folded, nbytes / ah_type_size(what->type),
            (size_t)comm->size);
}

static ah_status scan_slots(ah_comm *comm, uint64_t signature, const prefix *what) {
    ah_status status = ah_post_data(comm, signature, what->x, what->nbytes);
    if (status != AH_OK) return status;
    /* No more than what is folded: the first ranks are calls ahead of the last, as roots are. */
    status = ah_await_posted_rooted(comm, AH_BIT(comm->rank) - 1, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->rank; r++) in[r] = ah_slot_data(comm, r, what->nbytes);
    comm->call->variant = AH_SLOTS;
    fold_prefix(comm, what, 0, what->nbytes, in);
    if (comm->size == 2 && comm->rank == 1) ah_dirty_slot(comm, 0, what->nbytes);
    return AH_OK;
}

static void produce(const ah_comm *comm, const void *given, int peer, uint64_t step, char *box) {
    const prefix *what = given;
    if (peer < comm->rank) return;
    ah_copy(box, what->x + step * comm->box_bytes, ah_part(what->nbytes, comm->box_bytes, step),
            false);
}

static void consume(const ah_comm *comm, const void *given, uint64_t step, char *const boxes[]) {
    const prefix *what = given;
    size_t part = ah_part(what->nbytes, comm->box_bytes, step);
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->rank; r++) in[r] = boxes[r];
    fold_prefix(comm, what, step * comm->box_bytes, part, in);
    /* Their owners write them next, and not this rank, as it would in a swap of two sides. */
    for (int r = 0; r < comm->rank; r++) ah_dirty_lines(boxes[r], part);
}

static ah_status scan_large(ah_comm *comm, uint64_t signature, const prefix *what) {
    ah_slot *slot;
    ah_call_header header = {0};
    ah_swap swap = {ah_steps(what->nbytes, comm->box_bytes), what, produce, consume};
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        ah_swap_open(comm, &swap, true, &header);
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

static ah_status run(ah_comm *comm, ah_call *call, ah_kind kind, ah_op op, ah_type type, void *x,
                     size_t count) {
    int folded = comm->rank + (kind == AH_KIND_SCAN);
    prefix what = {op, type, x, count * ah_type_size(type), folded};
    uint64_t signature = ah_sign_call(call, kind, count, (uint64_t)op << 32 | (uint64_t)type, 0);
    ah_status status = ah_call_start(comm, call);
    const void *in[AH_MAX_RANKS];
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        fold_prefix(comm, &what, 0, what.nbytes, in);
    else if (what.nbytes <= comm->limits.slot_max)
        status = scan_slots(comm, signature, &what);
    else
        status = scan_large(comm, signature, &what);
    return ah_call_finish(comm, status);
}

ah_status ah_scan(ah_comm *comm, ah_call *call, ah_op op, ah_type type, void *x, size_t count) {
    return run(comm, call, AH_KIND_SCAN, op, type, x, count);
}

ah_status ah_exscan(ah_comm *comm, ah_call *call, ah_op op, ah_type type, void *x, size_t count) {
    return run(comm, call, AH_KIND_EXSCAN, op, type, x, count);
}
