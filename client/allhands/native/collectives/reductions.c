/* all_reduce, reduce: which variant, and the small one.
 *
 * All fold all contributions of an element at once, in the order of ranks: the same bits whichever
 * variant is taken and whoever folds.
 */
#include "collectives/calls.h"
#include "collectives/in_place_reduce.h"
#include "collectives/mailboxes.h"
#include "collectives/pairwise_swap.h"
#include "collectives/root_fold.h"
#include "collectives/staged_copy.h"
#include "comm/heap_access.h"

static uint64_t sign(const ah_call *call, int operation, ah_op op, ah_type type, size_t count,
                     int root) {
    return ah_sign_call(call, operation, count, (uint64_t)op << 32 | (uint64_t)type,
                        (uint64_t)root);
}

/* What a group of one makes of its own contribution. */
static void reduce_alone(ah_op op, ah_type type, void *out, const void *in, size_t count) {
    ah_fold(op == AH_AVG ? AH_SUM : op, type, out, &in, 1, count, 1);
}

/* ---- all_reduce */

typedef struct {
    ah_op op;
    ah_type type;
    char *x;
    size_t nbytes;
} swapped;

static ah_status fold_slots(ah_comm *comm, uint64_t signature, ah_op op, ah_type type, void *x,
                            size_t count, size_t nbytes) {
    ah_status status = ah_await_posted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) in[r] = ah_slot_data(comm, r, nbytes);
    in[comm->rank] = x;
    comm->call->variant = AH_SLOTS;
    ah_fold(op, type, x, in, comm->size, count, (size_t)comm->size);
    if (comm->size == 2) ah_dirty_slot(comm, 1 - comm->rank, nbytes);
    return AH_OK;
}

static void produce_own(const ah_comm *comm, const void *given, int peer, uint64_t step,
                        char *box) {
    const swapped *what = given;
    (void)peer;
    ah_copy(box, what->x + step * comm->box_bytes, ah_part(what->nbytes, comm->box_bytes, step),
            false);
}

static void fold_own(const ah_comm *comm, const void *given, uint64_t step, char *const boxes[]) {
    const swapped *what = given;
    char *x = what->x + step * comm->box_bytes;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) in[r] = r == comm->rank ? x : boxes[r];
    size_t count = ah_part(what->nbytes, comm->box_bytes, step) / ah_type_size(what->type);
    ah_fold(what->op, what->type, x, in, comm->size, count, (size_t)comm->size);
}

static ah_status all_reduce_large(ah_comm *comm, uint64_t signature, ah_op op, ah_type type,
                                  void *x, size_t nbytes) {
    ah_slot *slot;
    ah_call_header header = {0};
    swapped what = {op, type, x, nbytes};
    ah_swap swap = {ah_steps(nbytes, comm->box_bytes), &what, produce_own, fold_own};
    bool pair = comm->size == 2;
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        header.flags = ah_locate_buffer(comm, x, nbytes, &header.where);
        if (header.flags & AH_IN_HEAP) ah_expose(comm, x, nbytes);
        if (pair)
            ah_swap_open(comm, &swap, !(header.flags & AH_IN_HEAP), &header);
        else if (!(header.flags & AH_IN_HEAP))
            ah_mailbox_reduce_open(comm, x, nbytes);
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    char *all[AH_MAX_RANKS];
    if (ah_in_place_inputs(comm, nbytes, all))
        return ah_in_place_all_reduce(comm, op, type, all, nbytes);
    if (!pair) return ah_mailbox_reduce(comm, op, type, x, x, nbytes, -1);
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

static ah_status all_reduce_slots(ah_comm *comm, uint64_t signature, ah_op op, ah_type type,
                                  void *x, size_t count, size_t nbytes) {
    ah_status status = ah_post_data(comm, signature, x, nbytes);
    return status == AH_OK ? fold_slots(comm, signature, op, type, x, count, nbytes) : status;
}

bool ah_all_reduce_splits(const ah_comm *comm, ah_type type, size_t count) {
    return count * ah_type_size(type) <= comm->limits.slot_max;
}

bool ah_all_reduce_post(ah_comm *comm, const ah_call *call, ah_op op, ah_type type, const void *x,
                        size_t count) {
    uint64_t signature = sign(call, AH_KIND_ALL_REDUCE, op, type, count, 0);
    return ah_post_ahead(comm, call->sequence, signature, x, count * ah_type_size(type));
}

ah_status ah_all_reduce_start(ah_comm *comm, ah_call *call, ah_op op, ah_type type, const void *x,
                              size_t count) {
    uint64_t signature = sign(call, AH_KIND_ALL_REDUCE, op, type, count, 0);
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK) status = ah_post_data(comm, signature, x, count * ah_type_size(type));
    if (status != AH_OK) return ah_call_finish(comm, status);
    ah_unpause(comm);
    return AH_OK;
}

ah_status ah_all_reduce_finish(ah_comm *comm, ah_op op, ah_type type, void *x, size_t count) {
    uint64_t signature = sign(comm->call, AH_KIND_ALL_REDUCE, op, type, count, 0);
    size_t nbytes = count * ah_type_size(type);
    return ah_call_finish(comm, fold_slots(comm, signature, op, type, x, count, nbytes));
}

ah_status ah_all_reduce(ah_comm *comm, ah_call *call, ah_op op, ah_type type, void *x,
                        size_t count) {
    size_t nbytes = count * ah_type_size(type);
    uint64_t signature = sign(call, AH_KIND_ALL_REDUCE, op, type, count, 0);
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        reduce_alone(op, type, x, x, count);
    else if (nbytes <= comm->limits.slot_max)
        status = all_reduce_slots(comm, signature, op, type, x, count, nbytes);
    else
        status = all_reduce_large(comm, signature, op, type, x, nbytes);
    return ah_call_finish(comm, status);
}

/* ---- reduce */

static ah_status reduce_slots(ah_comm *comm, uint64_t signature, ah_op op, ah_type type,
                              const void *mine, void *out, size_t count, size_t nbytes, int root) {
    ah_status status = ah_post_data(comm, signature, mine, comm->rank == root ? 0 : nbytes);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SLOTS;
    if (comm->rank != root) return ah_await_posted_rooted(comm, 0, signature);
    status = ah_await_posted_rooted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) in[r] = ah_slot_data(comm, r, nbytes);
    in[root] = mine;
    ah_fold(op, type, out, in, comm->size, count, (size_t)comm->size);
    for (int r = 0; r < comm->size; r++)
        if (r != root) ah_dirty_slot(comm, r, nbytes);
    return AH_OK;
}

static ah_status reduce_large(ah_comm *comm, uint64_t signature, ah_op op, ah_type type,
                              const void *in, void *out, size_t nbytes, int root) {
    bool at_root = ah_folds_at_root(comm, nbytes), is_root = comm->rank == root;
    ah_pause(comm);
    ah_status status = ah_staged_post(comm, signature, in, nbytes);
    if (status != AH_OK) return status;
    /* Whose array is in no heap knows that none is folded in place. */
    bool perhaps_in_place = is_root || comm->header[comm->rank].flags & AH_IN_HEAP;
    uint64_t sources = ah_all_ranks(comm) & ~AH_BIT(root);
    status = at_root ? ah_staged_await(comm, signature, sources, perhaps_in_place)
                     : ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    char *all[AH_MAX_RANKS];
    if ((!at_root || perhaps_in_place) && ah_in_place_inputs(comm, nbytes, all))
        return ah_in_place_reduce(comm, op, type, all, out, nbytes, root);
    if (at_root) return ah_root_fold(comm, signature, op, type, in, out, nbytes, root);
    return ah_mailbox_reduce(comm, op, type, in, out, nbytes, root);
}

ah_status ah_reduce(ah_comm *comm, ah_call *call, ah_op op, ah_type type, const void *in, void *out,
                    size_t count, int root) {
    size_t nbytes = count * ah_type_size(type);
    uint64_t signature = sign(call, AH_KIND_REDUCE, op, type, count, root);
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        reduce_alone(op, type, out, in, count);
    else if (nbytes <= comm->limits.slot_max)
        status = reduce_slots(comm, signature, op, type, in, out, count, nbytes, root);
    else
        status = reduce_large(comm, signature, op, type, in, out, nbytes, root);
    return ah_call_finish(comm, status);
}
