#include "collectives/in_place_reduce.h"

#include "collectives/calls.h"
#include "collectives/partition.h"
#include "comm/heap_access.h"

/* Small enough to be found in the nearest cache when it is copied on. */
#define CHUNK ((size_t)16 << 10)
/* Of work between looks at what else there is. */
#define POLL_EVERY ((size_t)256 << 10)

bool ah_in_place_inputs(const ah_comm *comm, size_t nbytes, char *in[]) {
    for (int r = 0; r < comm->size; r++) {
        if (!(comm->header[r].flags & AH_IN_HEAP)) return false;
        in[r] = ah_heap_address(comm, r, comm->header[r].where, nbytes);
        if (!in[r]) return false;
    }
    return true;
}

static void fold(const ah_comm *comm, ah_op op, ah_type type, char *const in[], size_t at,
                 size_t nbytes, char *out) {
    const void *parts[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++) parts[r] = in[r] + at;
    ah_fold(op, type, out, parts, comm->size, nbytes / ah_type_size(type), (size_t)comm->size);
}

/* Nobody's array is needed any more: by us, and by the others. */
static ah_status await_consumers(ah_comm *comm, uint64_t steps) {
    ah_publish_consumed(comm, steps);
    return ah_await_consumed_or_left(comm, comm->others, steps);
}

/* ---- all_reduce: without a word in between, since a slice is one rank's alone */

static ah_status reduce_range(ah_comm *comm, ah_op op, ah_type type, char *const x[],
                              ah_slice part) {
    ah_status status = ah_access_begin(comm, comm->others);
    if (status != AH_OK) return status;
    for (size_t done = 0; done < part.nbytes; done += CHUNK) {
        size_t at = part.at + done, nbytes = ah_min(CHUNK, part.nbytes - done);
        char *result = x[comm->rank] + at;
        fold(comm, op, type, x, at, nbytes, result);
        for (int k = 1; k < comm->size; k++) {
            int peer = (comm->rank + k) % comm->size;
            ah_copy(x[peer] + at, result, nbytes, false);
        }
    }
    return ah_access_end(comm, comm->others);
}

ah_status ah_in_place_all_reduce(ah_comm *comm, ah_op op, ah_type type, char *const x[],
                                 size_t nbytes) {
    if (ah_stops(comm)) return AH_PENDING;
    ah_slice mine = ah_slice_in(0, nbytes, comm->size, comm->rank);
    ah_status status = AH_OK;
    comm->call->variant = AH_DIRECT;
    for (size_t done = 0; done < mine.nbytes && status == AH_OK; done += POLL_EVERY) {
        ah_slice part = {mine.at + done, ah_min(POLL_EVERY, mine.nbytes - done)};
        status = reduce_range(comm, op, type, x, part);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
    }
    if (status != AH_OK) return status;
    ah_publish_produced(comm, 1);
    return ah_await_produced(comm, comm->others, 1);
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

static char *box(const ah_comm *comm, const reduction *what, int rank, uint64_t step) {
    return ah_staging_box(comm, rank, what->root, step & 1);
}

static ah_status produce(ah_comm *comm, const reduction *what, uint64_t step) {
    ah_slice part = ah_slice_of(comm, what->nbytes, step, comm->rank);
    bool root = comm->rank == what->root;
    ah_status status = AH_OK;
    if (!root && step >= 2) status = ah_await_consumed(comm, AH_BIT(what->root), step - 1);
    if (status == AH_OK) status = ah_access_begin(comm, comm->others);
    if (status != AH_OK) return status;
    char *to = root ? what->out + part.at : box(comm, what, comm->rank, step);
    fold(comm, what->op, what->type, what->in, part.at, part.nbytes, to);
    status = ah_access_end(comm, comm->others);
    if (status == AH_OK) ah_publish_produced(comm, step + 1);
    return status;
}

static ah_status consume(ah_comm *comm, const reduction *what, uint64_t step) {
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        ah_status status = ah_await_produced(comm, AH_BIT(peer), step + 1);
        if (status != AH_OK) return status;
        ah_slice part = ah_slice_of(comm, what->nbytes, step, peer);
        const char *from = box(comm, what, peer, step);
        ah_copy(what->out + part.at, from, part.nbytes, false);
        ah_dirty_lines(from, part.nbytes);
    }
    ah_publish_consumed(comm, step + 1);
    return AH_OK;
}

ah_status ah_in_place_reduce(ah_comm *comm, ah_op op, ah_type type, char *const in[], char *out,
                             size_t nbytes, int root) {
    if (ah_stops(comm)) return AH_PENDING;
    uint64_t steps = ah_steps(nbytes, ah_step_bytes(comm, nbytes));
    reduction what = {op, type, in, out, nbytes, steps, root};
    ah_status status = AH_OK;
    comm->call->variant = AH_DIRECT;
    ah_forget_staging(comm);
    for (uint64_t step = 0; step <= steps && status == AH_OK; step++) {
        if (step < steps) status = produce(comm, &what, step);
        if (step > 0 && status == AH_OK && comm->rank == root)
            status = consume(comm, &what, step - 1);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
    }
    return status == AH_OK ? await_consumers(comm, steps) : status;
}

/* ---- reduce_scatter */

ah_status ah_in_place_reduce_scatter(ah_comm *comm, ah_op op, ah_type type, char *const in[],
                                     char *out, size_t nbytes) {
    if (ah_stops(comm)) return AH_PENDING;
    comm->call->variant = AH_DIRECT;
    for (size_t at = 0; at < nbytes; at += POLL_EVERY) {
        ah_status status = ah_access_begin(comm, comm->others);
        if (status != AH_OK) return status;
        fold(comm, op, type, in, at, ah_min(POLL_EVERY, nbytes - at), out + at);
        status = ah_access_end(comm, comm->others);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
        if (status != AH_OK) return status;
    }
    return await_consumers(comm, 1);
}
