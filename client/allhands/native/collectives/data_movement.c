/* barrier, broadcast, gather, scatter, all_gather: which variant, and the small one. */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"
#include "collectives/remote_read.h"
#include "collectives/staged_copy.h"
#include "comm/heap_access.h"

/* From so many bytes on, nothing of what is copied is still in a cache when it is used. */
#define FAR ((size_t)8 << 20)

static bool is_small(const ah_comm *comm, size_t nbytes) { return nbytes <= comm->limits.slot_max; }

/* ---- barrier */

ah_status ah_barrier(ah_comm *comm, ah_call *call) {
    uint64_t signature = ah_sign_call(call, AH_KIND_BARRIER, 0, 0, 0);
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK && comm->size > 1) {
        call->variant = AH_SLOTS;
        status = ah_post_data(comm, signature, NULL, 0);
        if (status == AH_OK) status = ah_await_posted(comm, comm->others, signature);
    }
    return ah_call_finish(comm, status);
}

/* ---- broadcast */

typedef struct {
    const char *in;
    char *out;
    char *const *outs;
    const char *const *ins;
    size_t nbytes;
} transfer;

static size_t count_bytes(const void *given, int source, int reader) {
    (void)source, (void)reader;
    return ((const transfer *)given)->nbytes;
}

static void produce_copy(const void *given, int reader, size_t at, size_t nbytes, char *box) {
    (void)reader;
    ah_copy(box, ((const transfer *)given)->in + at, nbytes, false);
}

static void produce_part(const void *given, int reader, size_t at, size_t nbytes, char *box) {
    ah_copy(box, ((const transfer *)given)->ins[reader] + at, nbytes, false);
}

static void consume_one(const void *given, int source, size_t at, size_t nbytes, const char *box) {
    (void)source;
    ah_copy(((const transfer *)given)->out + at, box, nbytes, false);
}

static void consume_each(const void *given, int source, size_t at, size_t nbytes, const char *box) {
    ah_copy(((const transfer *)given)->outs[source] + at, box, nbytes, false);
}

/* Whether a source, which is one of `sources`, has to meet all ranks: they may read its arrays
 * where they lie. */
static bool is_read_remote(const ah_comm *comm, int source, uint64_t sources, size_t nbytes) {
    return nbytes >= ah_attach_min(comm, sources) || comm->header[source].flags & AH_IN_HEAP;
}

static ah_status broadcast_slots(ah_comm *comm, uint64_t signature, void *x, size_t nbytes,
                                 int root) {
    ah_status status = ah_post_data(comm, signature, x, comm->rank == root ? nbytes : 0);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SLOTS;
    status = ah_await_posted_rooted(comm, AH_BIT(root) & ~AH_BIT(comm->rank), signature);
    if (status != AH_OK || comm->rank == root) return status;
    ah_copy_small(x, ah_slot_data(comm, root, nbytes), nbytes);
    if (comm->size == 2) ah_dirty_slot(comm, root, nbytes);
    return AH_OK;
}

/* After posting, where `root` is the only source: wait for the headers that this rank needs. */
static ah_status await_root(ah_comm *comm, uint64_t signature, size_t nbytes, int root) {
    uint64_t source = AH_BIT(root);
    bool all = comm->rank == root && is_read_remote(comm, root, source, nbytes);
    ah_status status = ah_staged_await(comm, signature, source, all);
    if (status == AH_OK && is_read_remote(comm, root, source, nbytes))
        status = ah_await_headers(comm, signature);
    return status;
}

/* After that: the rest of the call. `where` tells what this rank reads of the root's memory. */
static ah_status move_from_root(ah_comm *comm, uint64_t signature, const transfer *what, bool parts,
                                uint64_t where, int root) {
    uint64_t source = AH_BIT(root), readers = ah_all_ranks(comm) & ~source;
    if (!ah_can_read_remote(comm, source, what->nbytes)) {
        ah_staged_copy staged = {signature,  source,      readers,
                                 what,       count_bytes, parts ? produce_part : produce_copy,
                                 consume_one};
        return ah_staged_copy_run(comm, &staged);
    }
    ah_status status = AH_OK;
    if (comm->rank != root) {
        status = ah_remote_read(comm, root, where, what->out, what->nbytes);
        readers = 0;
    }
    return status == AH_OK ? ah_remote_read_end(comm, source, readers) : status;
}

static ah_status broadcast_large(ah_comm *comm, uint64_t signature, void *x, size_t nbytes,
                                 int root) {
    transfer what = {.in = x, .out = x, .nbytes = nbytes};
    ah_pause(comm);
    ah_status status = ah_staged_post(comm, signature, comm->rank == root ? x : NULL, nbytes);
    if (status == AH_OK) status = await_root(comm, signature, nbytes, root);
    if (status != AH_OK) return status;
    return move_from_root(comm, signature, &what, false, comm->header[root].where, root);
}

ah_status ah_broadcast(ah_comm *comm, ah_call *call, void *x, size_t nbytes, int root) {
    uint64_t signature = ah_sign_call(call, AH_KIND_BROADCAST, nbytes, (uint64_t)root, 0);
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK && comm->size > 1)
        status = is_small(comm, nbytes) ? broadcast_slots(comm, signature, x, nbytes, root)
                                        : broadcast_large(comm, signature, x, nbytes, root);
    return ah_call_finish(comm, status);
}

/* ---- gather */

static ah_status gather_slots(ah_comm *comm, uint64_t signature, const void *in, char *const out[],
                              size_t nbytes, int root) {
    ah_status status = ah_post_data(comm, signature, in, comm->rank == root ? 0 : nbytes);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SLOTS;
    if (comm->rank != root) return ah_await_posted_rooted(comm, 0, signature);
    status = ah_await_posted_rooted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    ah_copy_small(out[root], in, nbytes);
    for (int r = 0; r < comm->size; r++) {
        if (r == root) continue;
        ah_copy_small(out[r], ah_slot_data(comm, r, nbytes), nbytes);
        ah_dirty_slot(comm, r, nbytes);
    }
    return AH_OK;
}

static ah_status gather_large(ah_comm *comm, uint64_t signature, const void *in, char *const out[],
                              size_t nbytes, int root) {
    uint64_t readers = AH_BIT(root), sources = ah_all_ranks(comm) & ~readers;
    ah_pause(comm);
    ah_status status = ah_staged_post(comm, signature, in, nbytes);
    if (status != AH_OK) return status;
    /* Whose array is not read where it lies knows that none is. */
    bool meets = comm->rank == root || is_read_remote(comm, comm->rank, sources, nbytes);
    status = ah_staged_await(comm, signature, sources, meets);
    if (status != AH_OK) return status;
    bool reads_remote = meets && ah_can_read_remote(comm, sources, nbytes);
    if (comm->rank == root) ah_copy_small(out[root], in, nbytes);
    if (!reads_remote) {
        transfer what = {.in = in, .outs = out, .nbytes = nbytes};
        ah_staged_copy staged = {signature,   sources,      readers,     &what,
                                 count_bytes, produce_copy, consume_each};
        return ah_staged_copy_run(comm, &staged);
    }
    if (comm->rank == root) {
        for (int r = 0; r < comm->size && status == AH_OK; r++)
            if (r != root) status = ah_remote_read(comm, r, comm->header[r].where, out[r], nbytes);
        return status == AH_OK ? ah_remote_read_end(comm, sources, 0) : status;
    }
    return ah_remote_read_end(comm, 0, readers);
}

ah_status ah_gather(ah_comm *comm, ah_call *call, const void *in, void *const out[], size_t nbytes,
                    int root) {
    uint64_t signature = ah_sign_call(call, AH_KIND_GATHER, nbytes, (uint64_t)root, 0);
    char *const *outs = (char *const *)out;
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        ah_copy_small(out[0], in, nbytes);
    else if (is_small(comm, nbytes))
        status = gather_slots(comm, signature, in, outs, nbytes, root);
    else
        status = gather_large(comm, signature, in, outs, nbytes, root);
    return ah_call_finish(comm, status);
}

/* ---- scatter */

static ah_status scatter_slots(ah_comm *comm, uint64_t signature, const char *const in[], void *out,
                               size_t nbytes, int root) {
    size_t total = nbytes * (size_t)comm->size;
    ah_status status = comm->rank == root
                           ? ah_post_parts(comm, signature, (const void *const *)in, nbytes)
                           : ah_post_data(comm, signature, NULL, 0);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SLOTS;
    status = ah_await_posted_rooted(comm, AH_BIT(root) & ~AH_BIT(comm->rank), signature);
    if (status != AH_OK) return status;
    const char *mine = ah_slot_data(comm, root, total) + (size_t)comm->rank * nbytes;
    ah_copy_small(out, comm->rank == root ? in[root] : mine, nbytes);
    return AH_OK;
}

static ah_status scatter_large(ah_comm *comm, uint64_t signature, const char *const in[], void *out,
                               size_t nbytes, int root) {
    ah_slot *slot;
    ah_call_header header = {0};
    transfer what = {.ins = in, .out = out, .nbytes = nbytes};
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        if (comm->rank == root)
            header.flags = ah_locate_buffers(comm, (const void *const *)in, NULL, nbytes,
                                             ah_slot_table(comm, comm->rank, 0));
        ah_staged_describe(comm, &header);
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = await_root(comm, signature, nbytes, root);
    if (status != AH_OK) return status;
    if (comm->rank == root) {
        comm->call->touches_output = true; /* it has not waited for all others */
        ah_copy_small(out, in[root], nbytes);
    }
    uint64_t where = ah_slot_table(comm, root, 0)[comm->rank];
    return move_from_root(comm, signature, &what, true, where, root);
}

ah_status ah_scatter(ah_comm *comm, ah_call *call, const void *const in[], void *out, size_t nbytes,
                     int root) {
    uint64_t signature = ah_sign_call(call, AH_KIND_SCATTER, nbytes, (uint64_t)root, 0);
    const char *const *ins = (const char *const *)in;
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        ah_copy_small(out, in[0], nbytes);
    else if (nbytes <= comm->limits.slot_max / (size_t)comm->size)
        status = scatter_slots(comm, signature, ins, out, nbytes, root);
    else
        status = scatter_large(comm, signature, ins, out, nbytes, root);
    return ah_call_finish(comm, status);
}

/* ---- all_gather */

static void produce_same(const ah_comm *comm, const void *given, int peer, uint64_t step,
                         char *box) {
    const transfer *what = given;
    (void)peer;
    ah_copy(box, what->in + step * comm->box_bytes, ah_part(what->nbytes, comm->box_bytes, step),
            false);
}

static void consume_all(const ah_comm *comm, const void *given, uint64_t step,
                        char *const boxes[]) {
    const transfer *what = given;
    size_t part = ah_part(what->nbytes, comm->box_bytes, step);
    for (int r = 0; r < comm->size; r++)
        if (boxes[r]) ah_copy(what->outs[r] + step * comm->box_bytes, boxes[r], part, false);
}

static ah_status all_gather_slots(ah_comm *comm, uint64_t signature, const void *in,
                                  char *const out[], size_t nbytes) {
    ah_status status = ah_post_data(comm, signature, in, nbytes);
    if (status != AH_OK) return status;
    comm->call->variant = AH_SLOTS;
    status = ah_await_posted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    for (int r = 0; r < comm->size; r++)
        ah_copy_small(out[r], r == comm->rank ? in : ah_slot_data(comm, r, nbytes), nbytes);
    if (comm->size == 2) ah_dirty_slot(comm, 1 - comm->rank, nbytes);
    return AH_OK;
}

static ah_status all_gather_large(ah_comm *comm, uint64_t signature, const void *in,
                                  char *const out[], size_t nbytes) {
    ah_slot *slot;
    ah_call_header header = {0};
    uint64_t all = ah_all_ranks(comm);
    transfer what = {.in = in, .outs = out, .nbytes = nbytes};
    ah_swap swap = {ah_steps(nbytes, comm->box_bytes), &what, produce_same, consume_all};
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        header.flags = ah_locate_buffer(comm, in, nbytes, &header.where);
        bool early = !(header.flags & AH_IN_HEAP) && !ah_may_attach(comm, nbytes);
        ah_swap_open(comm, &swap, early, &header);
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    if (out[comm->rank] != in) ah_copy(out[comm->rank], in, nbytes, nbytes >= FAR);
    if (ah_can_read_remote(comm, all, nbytes)) {
        for (int k = 1; k < comm->size && status == AH_OK; k++) {
            int r = (comm->rank + k) % comm->size;
            status = ah_remote_read(comm, r, comm->header[r].where, out[r], nbytes);
        }
        return status == AH_OK ? ah_remote_read_end(comm, all, all) : status;
    }
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

ah_status ah_all_gather(ah_comm *comm, ah_call *call, const void *in, void *const out[],
                        size_t nbytes) {
    uint64_t signature = ah_sign_call(call, AH_KIND_ALL_GATHER, nbytes, 0, 0);
    char *const *outs = (char *const *)out;
    ah_status status = ah_call_start(comm, call);
    if (status != AH_OK)
        ;
    else if (comm->size == 1)
        ah_copy_small(out[0], in, nbytes);
    else if (is_small(comm, nbytes))
        status = all_gather_slots(comm, signature, in, outs, nbytes);
    else
        status = all_gather_large(comm, signature, in, outs, nbytes);
    return ah_call_finish(comm, status);
}
