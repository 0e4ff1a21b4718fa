/* barrier, broadcast, gather, scatter, all_gather: which variant, and the small one. */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"
#include "collectives/remote_read.h"
#include "collectives/staged_copy.h"
#include "comm/heap_access.h"

/* From so many bytes on, nothing of what is copied is still in a cache when it is used. */
#define FAR ((size_t)8 << 20)

static bool is_small(const ah_comm *comm, size_t nbytes) { return nbytes <= comm->limits.slot_max; }

static uint64_t all_ranks(const ah_comm *comm) { return comm->others | AH_BIT(comm->rank); }

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

static void produce_copies(const ah_comm *comm, const void *given, uint64_t step) {
    const transfer *what = given;
    size_t part = ah_part(what->nbytes, comm->box_bytes, step);
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        ah_copy(ah_staging_box(comm, comm->rank, peer, step & 1), what->in + step * comm->box_bytes,
                part, false);
    }
}

static void produce_parts(const ah_comm *comm, const void *given, uint64_t step) {
    const transfer *what = given;
    size_t part = ah_part(what->nbytes, comm->box_bytes, step);
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        ah_copy(ah_staging_box(comm, comm->rank, peer, step & 1),
                what->ins[peer] + step * comm->box_bytes, part, false);
    }
}

static void consume_part(const ah_comm *comm, const void *given, uint64_t step, int source) {
    const transfer *what = given;
    const char *box = ah_staging_box(comm, source, comm->rank, step & 1);
    size_t part = ah_part(what->nbytes, comm->box_bytes, step);
    ah_copy(what->out + step * comm->box_bytes, box, part, false);
    ah_dirty_lines(box, part);
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

static ah_status broadcast_large(ah_comm *comm, uint64_t signature, void *x, size_t nbytes,
                                 int root) {
    ah_call_header header = {0};
    uint64_t source = AH_BIT(root), readers = all_ranks(comm) & ~source;
    ah_pause(comm);
    header.flags = ah_locate_buffer(comm, x, nbytes, &header.where);
    ah_status status = ah_exchange_headers(comm, signature, header);
    if (status != AH_OK) return status;
    if (!ah_can_read_remote(comm, source, nbytes)) {
        transfer what = {.in = x, .out = x, .nbytes = nbytes};
        ah_staged_copy staged = {ah_steps(nbytes, comm->box_bytes),
                                 source,
                                 readers,
                                 &what,
                                 produce_copies,
                                 consume_part};
        return ah_staged_copy_run(comm, &staged);
    }
    if (comm->rank != root) {
        status = ah_remote_read(comm, root, comm->header[root].where, x, nbytes);
        readers = 0;
    }
    return status == AH_OK ? ah_remote_read_end(comm, source, readers) : status;
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

static void produce_block(const ah_comm *comm, const void *given, uint64_t step) {
    const transfer *what = given;
    size_t chunk = comm->limits.chunk;
    ah_copy(ah_staging_of(comm, comm->rank, step), what->in + step * chunk,
            ah_part(what->nbytes, chunk, step), false);
}

static void consume_block(const ah_comm *comm, const void *given, uint64_t step, int source) {
    const transfer *what = given;
    size_t chunk = comm->limits.chunk;
    const char *box = ah_staging_of(comm, source, step);
    size_t part = ah_part(what->nbytes, chunk, step);
    ah_copy(what->outs[source] + step * chunk, box, part, false);
    ah_dirty_lines(box, part);
}

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
    ah_call_header header = {0};
    uint64_t readers = AH_BIT(root), sources = all_ranks(comm) & ~readers;
    ah_pause(comm);
    header.flags = ah_locate_buffer(comm, in, nbytes, &header.where);
    ah_status status = ah_exchange_headers(comm, signature, header);
    if (status != AH_OK) return status;
    bool reads_remote = ah_can_read_remote(comm, sources, nbytes);
    if (comm->rank == root) ah_copy_small(out[root], in, nbytes);
    if (!reads_remote) {
        transfer what = {.in = in, .outs = out, .nbytes = nbytes};
        ah_staged_copy staged = {ah_steps(nbytes, comm->limits.chunk),
                                 sources,
                                 readers,
                                 &what,
                                 produce_block,
                                 consume_block};
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
    uint64_t source = AH_BIT(root), readers = all_ranks(comm) & ~source;
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        if (comm->rank == root)
            header.flags = ah_locate_buffers(comm, (const void *const *)in, NULL, nbytes,
                                             ah_slot_table(comm, comm->rank, 0));
        ah_post_header(comm, slot, signature, header);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status != AH_OK) return status;
    if (comm->rank == root) ah_copy_small(out, in[root], nbytes);
    if (!ah_can_read_remote(comm, source, nbytes)) {
        transfer what = {.ins = in, .out = out, .nbytes = nbytes};
        ah_staged_copy staged = {
            ah_steps(nbytes, comm->box_bytes), source, readers, &what, produce_parts, consume_part};
        return ah_staged_copy_run(comm, &staged);
    }
    if (comm->rank != root) {
        uint64_t where = ah_slot_table(comm, root, 0)[comm->rank];
        status = ah_remote_read(comm, root, where, out, nbytes);
        readers = 0;
    }
    return status == AH_OK ? ah_remote_read_end(comm, source, readers) : status;
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
    uint64_t all = all_ranks(comm);
    transfer what = {.in = in, .outs = out, .nbytes = nbytes};
    ah_swap swap = {ah_steps(nbytes, comm->box_bytes), &what, produce_same, consume_all};
    ah_pause(comm);
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        header.flags = ah_locate_buffer(comm, in, nbytes, &header.where);
        bool early = !(header.flags & AH_IN_HEAP) &&
                     !(comm->can_attach && nbytes >= comm->limits.attach_min);
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
