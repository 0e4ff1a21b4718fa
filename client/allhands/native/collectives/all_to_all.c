/* all_to_all: each rank's pieces may have other sizes, which travel along.
 *
 * A rank whose pieces are small together has them in its slot, whatever the others do. All ranks
 * see all tables, check all pairs before they touch an output, and so agree on what follows.
 */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"
#include "collectives/remote_read.h"
#include "comm/heap_access.h"

enum { WHERE, SENT, RECEIVED }; /* tables of a slot */

typedef struct {
    const char *const *in;
    char *const *out;
} pieces;

/* Bytes that rank a says it sends to b, or receives from it. */
static size_t declared(const ah_comm *comm, int a, int which, int b) {
    const ah_call_header *header = &comm->header[a];
    if (header->flags & AH_EVEN) return header->even;
    return ah_slot_table(comm, a, which)[b];
}

/* Pieces in the slot follow each other, the own left out. */
static char *packed(const ah_comm *comm, int rank, size_t total) {
    ah_slot *slot = ah_slot_of(comm, rank, comm->call->sequence);
    bool fits = total <= sizeof slot->small - sizeof(ah_call_header);
    return fits ? (char *)slot->small + sizeof(ah_call_header)
                : ah_slot_body(comm, rank) + AH_TABLES;
}

/* What `rank` sends to others in all, or to those before `stop`; SIZE_MAX if that is absurd. */
static size_t sum(const ah_comm *comm, int rank, int stop) {
    size_t total = 0;
    for (int r = 0; r < stop; r++)
        if (r != rank && __builtin_add_overflow(total, declared(comm, rank, SENT, r), &total))
            return SIZE_MAX;
    return total;
}

static void post(ah_comm *comm, ah_slot *slot, uint64_t signature, const ah_swap *swap,
                 const pieces *what, const size_t send[], const size_t recv[]) {
    ah_call_header *header = &comm->header[comm->rank];
    *header = (ah_call_header){.flags = AH_EVEN, .even = send[0]};
    for (int r = 0; r < comm->size; r++)
        if (send[r] != send[0] || recv[r] != send[0]) header->flags = 0;
    if (!header->flags) {
        for (int r = 0; r < comm->size; r++) {
            ah_slot_table(comm, comm->rank, SENT)[r] = send[r];
            ah_slot_table(comm, comm->rank, RECEIVED)[r] = recv[r];
        }
    }
    size_t total = sum(comm, comm->rank, comm->size);
    if (total <= comm->limits.slot_max) {
        header->flags |= AH_IN_SLOT;
        char *at = packed(comm, comm->rank, total);
        for (int r = 0; r < comm->size; r++) {
            if (r == comm->rank) continue;
            ah_copy_small(at, what->in[r], send[r]);
            at += send[r];
        }
    } else {
        ah_pause(comm);
        header->flags |= ah_locate_buffers(comm, (const void *const *)what->in, send, 0,
                                           ah_slot_table(comm, comm->rank, WHERE));
    }
    ah_swap_open(comm, swap, false, header);
    ah_post_header(comm, slot, signature, *header);
}

/* Every rank checks every pair, so that all come to the same end. */
static ah_status check(const ah_comm *comm) {
    for (int a = 0; a < comm->size; a++) {
        for (int b = 0; b < comm->size; b++) {
            if (declared(comm, a, SENT, b) == declared(comm, b, RECEIVED, a)) continue;
            if (a == comm->rank || b == comm->rank)
                comm->call->offenders |= AH_BIT(a == comm->rank ? b : a);
            else
                comm->call->offenders |= AH_BIT(a) | AH_BIT(b);
        }
        bool packs = comm->header[a].flags & AH_IN_SLOT;
        if (packs && sum(comm, a, comm->size) > comm->limits.slot_max)
            comm->call->offenders |= AH_BIT(a);
    }
    return comm->call->offenders ? AH_MISMATCH : AH_OK;
}

/* Empty where it is not for the boxes. */
static size_t part(const ah_comm *comm, int from, int to, uint64_t step) {
    if (comm->header[from].flags & AH_IN_SLOT) return 0;
    return ah_part(declared(comm, from, SENT, to), comm->box_bytes, step);
}

static void produce(const ah_comm *comm, const void *given, int peer, uint64_t step, char *box) {
    const pieces *what = given;
    size_t nbytes = part(comm, comm->rank, peer, step);
    if (nbytes) ah_copy(box, what->in[peer] + step * comm->box_bytes, nbytes, false);
}

static void consume(const ah_comm *comm, const void *given, uint64_t step, char *const boxes[]) {
    const pieces *what = given;
    for (int r = 0; r < comm->size; r++) {
        size_t nbytes = boxes[r] ? part(comm, r, comm->rank, step) : 0;
        if (nbytes) ah_copy(what->out[r] + step * comm->box_bytes, boxes[r], nbytes, false);
    }
}

static ah_status read_large(ah_comm *comm, uint64_t large, const pieces *what) {
    for (int k = 1; k < comm->size; k++) {
        int r = (comm->rank + k) % comm->size;
        if (!(large & AH_BIT(r))) continue;
        uint64_t where = ah_slot_table(comm, r, WHERE)[comm->rank];
        ah_status status =
            ah_remote_read(comm, r, where, what->out[r], declared(comm, r, SENT, comm->rank));
        if (status != AH_OK) return status;
    }
    bool source = large & AH_BIT(comm->rank);
    return ah_remote_read_end(comm, large, source ? comm->others : 0);
}

static ah_status all_to_all(ah_comm *comm, uint64_t signature, const pieces *what,
                            const size_t send[], const size_t recv[]) {
    ah_slot *slot;
    ah_swap swap = {0, what, produce, consume};
    if (!comm->call->is_posted) {
        ah_status status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        post(comm, slot, signature, &swap, what, send, recv);
    }
    ah_status status = ah_await_headers(comm, signature);
    if (status == AH_OK) status = check(comm);
    comm->call->touches_output = status == AH_OK;
    if (status != AH_OK) return status;

    uint64_t large = 0; /* ranks whose pieces are not in their slot */
    size_t longest = 0;
    for (int r = 0; r < comm->size; r++) {
        if (comm->header[r].flags & AH_IN_SLOT) {
            size_t nbytes = declared(comm, r, SENT, comm->rank);
            const char *from = packed(comm, r, sum(comm, r, comm->size)) + sum(comm, r, comm->rank);
            ah_copy_small(what->out[r], r == comm->rank ? what->in[r] : from, nbytes);
            if (comm->size == 2 && r != comm->rank && nbytes > 4 * AH_CACHE_LINE)
                ah_dirty_lines(from, nbytes);
            continue;
        }
        large |= AH_BIT(r);
        if (r == comm->rank) ah_copy_small(what->out[r], what->in[r], send[r]);
        for (int p = 0; p < comm->size; p++)
            if (p != r && declared(comm, r, SENT, p) > longest)
                longest = declared(comm, r, SENT, p);
    }
    comm->call->variant = AH_SLOTS;
    if (!large) return AH_OK;
    comm->call->variant = AH_NONE;
    ah_pause(comm);
    if (ah_can_read_remote(comm, large, longest)) return read_large(comm, large, what);
    swap.steps = ah_steps(longest, comm->box_bytes);
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

ah_status ah_all_to_all(ah_comm *comm, ah_call *call, const void *const in[], const size_t send[],
                        void *const out[], const size_t recv[]) {
    uint64_t signature = ah_sign_call(call, AH_KIND_ALL_TO_ALL, 0, 0, 0);
    pieces what = {(const char *const *)in, (char *const *)out};
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK && comm->size == 1 && send[0] != recv[0]) {
        call->offenders = AH_BIT(0);
        status = AH_MISMATCH;
    } else if (status == AH_OK && comm->size == 1) {
        ah_copy_small(out[0], in[0], send[0]);
    } else if (status == AH_OK) {
        status = all_to_all(comm, signature, &what, send, recv);
    }
    return ah_call_finish(comm, status);
}
