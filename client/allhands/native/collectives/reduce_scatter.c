/* reduce_scatter, reduce_scatter_v: each rank folds all ranks' blocks for it.
 *
 * Contributions of an element are folded at once, in the order of ranks, as in reductions.c.
 */
#include "collectives/calls.h"
#include "collectives/in_place_reduce.h"
#include "collectives/pairwise_swap.h"
#include "comm/heap_access.h"

/* What a rank brings: nbytes[r] at in[r] for each rank r, the same sizes on all ranks. */
typedef struct {
    ah_op op;
    ah_type type;
    const void *const *in;
    const size_t *nbytes;
    char *out;
} blocks;

/* Bytes of the blocks for the ranks before `stop`. */
static size_t sum(const blocks *what, int stop) {
    size_t total = 0;
    for (int r = 0; r < stop; r++) total += what->nbytes[r];
    return total;
}

static void fold(const ah_comm *comm, const blocks *what, const void *const in[], size_t at,
                 size_t nbytes) {
    size_t count = nbytes / ah_type_size(what->type);
    if (count)
        ah_fold(what->op, what->type, what->out + at, in, comm->size, count, (size_t)comm->size);
}

/* ---- in slots */

/* Blocks follow each other, with room for the own one. */
static ah_status post(ah_comm *comm, uint64_t signature, const blocks *what, size_t total) {
    ah_slot *slot;
    if (comm->call->is_posted) return AH_OK;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    char *at = ah_slot_data(comm, comm->rank, total);
    for (int r = 0; r < comm->size; r++) {
        if (r != comm->rank) ah_copy_small(at, what->in[r], what->nbytes[r]);
        at += what->nbytes[r];
    }
    ah_post(comm, slot, signature);
    return AH_OK;
}

static ah_status run_slots(ah_comm *comm, uint64_t signature, const blocks *what, size_t total) {
    ah_status status = post(comm, signature, what, total);
    if (status == AH_OK) status = ah_await_posted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    size_t before = sum(what, comm->rank);
    for (int r = 0; r < comm->size; r++) in[r] = ah_slot_data(comm, r, total) + before;
    in[comm->rank] = what->in[comm->rank];
    comm->call->variant = AH_SLOTS;
    fold(comm, what, in, 0, what->nbytes[comm->rank]);
    if (comm->size == 2) ah_dirty_slot(comm, 1 - comm->rank, total);
    return AH_OK;
}

/* ---- through boxes, or in place */

static void produce(const ah_comm *comm, const void *given, int peer, uint64_t step, char *box) {
    const blocks *what = given;
    size_t part = ah_part(what->nbytes[peer], comm->box_bytes, step);
    if (part) ah_copy(box, (const char *)what->in[peer] + step * comm->box_bytes, part, false);
}

static void consume(const ah_comm *comm, const void *given, uint64_t step, char *const boxes[]) {
    const blocks *what = given;
    size_t part = ah_part(what->nbytes[comm->rank], comm->box_bytes, step);
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) in[r] = boxes[r];
    in[comm->rank] = (const char *)what->in[comm->rank] + (part ? step * comm->box_bytes : 0);
    fold(comm, what, in, part ? step * comm->box_bytes : 0, part);
    for (int r = 0; r < comm->size; r++) {
        /* This rank writes that box next only if its own block for that rank is as long. */
        if (boxes[r] && part > ah_part(what->nbytes[r], comm->box_bytes, step))
            ah_dirty_lines(boxes[r], part);
    }
}

static ah_status run_direct(ah_comm *comm, const blocks *what) {
    char *in[AH_MAX_RANKS];
    size_t nbytes = what->nbytes[comm->rank];
    for (int r = 0; r < comm->size; r++) {
        uint64_t where = ah_slot_table(comm, r, 0)[comm->rank];
        in[r] = r == comm->rank ? (char *)what->in[r] : ah_heap_address(comm, r, where, nbytes);
        if (!in[r]) return ah_await_call_end(comm, AH_BIT(r)); /* no rank of ours posts that */
    }
    return ah_in_place_reduce_scatter(comm, what->op, what->type, in, what->out, nbytes);
}

static ah_status run_large(ah_comm *comm, uint64_t signature, const blocks *what) {
    ah_slot *slot;
    ah_call_header header = {0};
    size_t longest = 0;
    for (int r = 0; r < comm->size; r++)
        if (what->nbytes[r] > longest) longest = what->nbytes[r];
    ah_swap swap = {ah_steps(longest, comm->box_bytes), what, produce, consume};
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        header.flags =
            ah_locate_buffers(comm, what->in, what->nbytes, 0, ah_slot_table(comm, comm->rank, 0));
        ah_swap_open(comm, &swap, !header.flags, &header);
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    uint64_t direct = AH_IN_HEAP;
    for (int r = 0; r < comm->size; r++) direct &= comm->header[r].flags;
    if (direct) return run_direct(comm, what);
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

/* ---- calls */

static ah_status run(ah_comm *comm, ah_call *call, uint64_t signature, const blocks *what) {
    size_t total = sum(what, comm->size);
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        ah_fold(what->op == AH_AVG ? AH_SUM : what->op, what->type, what->out, &what->in[0], 1,
                total / ah_type_size(what->type), 1);
    else if (total <= comm->limits.slot_max)
        status = run_slots(comm, signature, what, total);
    else
        status = run_large(comm, signature, what);
    return ah_call_finish(comm, status);
}

static uint64_t sign(const ah_call *call, int operation, ah_op op, ah_type type, uint64_t sizes) {
    return ah_sign_call(call, operation, sizes, (uint64_t)op << 32 | (uint64_t)type, 0);
}

ah_status ah_reduce_scatter(ah_comm *comm, ah_call *call, ah_op op, ah_type type,
                            const void *const in[], void *out, size_t count) {
    size_t nbytes[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) nbytes[r] = count * ah_type_size(type);
    blocks what = {op, type, in, nbytes, out};
    return run(comm, call, sign(call, AH_KIND_REDUCE_SCATTER, op, type, count), &what);
}

ah_status ah_reduce_scatter_v(ah_comm *comm, ah_call *call, ah_op op, ah_type type,
                              const void *const in[], const size_t nbytes[], void *out) {
    blocks what = {op, type, in, nbytes, out};
    uint64_t sizes = ah_sign_sizes(nbytes, comm->size);
    return run(comm, call, sign(call, AH_KIND_REDUCE_SCATTER_V, op, type, sizes), &what);
}
