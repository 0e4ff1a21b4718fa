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

static bool gets_result(const reduction *what, int rank) {
    return what->root < 0 || what->root == rank;
}

static ah_status produce(ah_comm *comm, const reduction *what, uint64_t step) {
    /* Who gets no result back must be told in another way that its boxes have been read. */
    if (!gets_result(what, comm->rank) && step >= 2) {
        ah_status status = ah_await_consumed(comm, comm->others, step - 1);
        if (status != AH_OK) return status;
    }
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        ah_slice part = ah_slice_of(comm, what->nbytes, step, peer);
        ah_copy(ah_staging_box(comm, comm->rank, peer, step & 1), what->in + part.at, part.nbytes,
                false);
    }
    ah_publish_produced(comm, step + 1);
    return AH_OK;
}

static ah_status fold(ah_comm *comm, const reduction *what, uint64_t step) {
    ah_status status = ah_await_produced(comm, comm->others, step + 1);
    if (status != AH_OK) return status;
    ah_slice part = ah_slice_of(comm, what->nbytes, step, comm->rank);
    const void *in[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++)
        in[r] =
            r == comm->rank ? what->in + part.at : ah_staging_box(comm, r, comm->rank, step & 1);
    char *result = gets_result(what, comm->rank)
                       ? what->out + part.at
                       : ah_staging_box(comm, what->root, comm->rank, step & 1);
    ah_fold(what->op, what->type, result, in, comm->size, part.nbytes / ah_type_size(what->type),
            (size_t)comm->size);
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        char *box = ah_staging_box(comm, peer, comm->rank, step & 1);
        if (gets_result(what, peer) && box != result) ah_copy(box, result, part.nbytes, false);
        if (!gets_result(what, peer)) ah_dirty_lines(box, part.nbytes);
    }
    ah_publish_consumed(comm, step + 1);
    return AH_OK;
}

/* Each rank's part of the result of a step, from the next one on; goes on where it stopped. */
static ah_status consume(ah_comm *comm, const reduction *what, uint64_t step) {
    if (!gets_result(what, comm->rank)) return AH_OK;
    for (; comm->course.peer < comm->size; comm->course.peer++) {
        int peer = (comm->rank + comm->course.peer) % comm->size;
        ah_status status = ah_await_consumed(comm, AH_BIT(peer), step + 1);
        if (status != AH_OK) return status;
        ah_slice part = ah_slice_of(comm, what->nbytes, step, peer);
        ah_copy(what->out + part.at, ah_staging_box(comm, comm->rank, peer, step & 1), part.nbytes,
                false);
    }
    return AH_OK;
}

/* One step, while the next is produced already; goes on where it stopped. */
static ah_status run_step(ah_comm *comm, const reduction *what, uint64_t steps) {
    ah_course *course = &comm->course;
    for (; course->unproduced < ah_min(course->step + 2, steps); course->unproduced++) {
        ah_status status = produce(comm, what, course->unproduced);
        if (status != AH_OK) return status;
    }
    if (!course->is_folded) {
        ah_status status = fold(comm, what, course->step);
        if (status != AH_OK) return status;
        course->is_folded = true;
        course->peer = 1;
    }
    ah_status status = consume(comm, what, course->step);
    if (status == AH_OK) course->is_folded = false;
    return status;
}

void ah_mailbox_reduce_open(ah_comm *comm, const void *in, size_t nbytes) {
    if (!comm->boxes_returned || !nbytes) return;
    reduction what = {.in = in, .nbytes = nbytes, .root = -1};
    comm->boxes_returned = false;
    produce(comm, &what, 0);
}

ah_status ah_mailbox_reduce(ah_comm *comm, ah_op op, ah_type type, const char *in, char *out,
                            size_t nbytes, int root) {
    reduction what = {op, type, in, out, nbytes, root};
    ah_course *course = &comm->course;
    uint64_t steps = ah_steps(nbytes, ah_step_bytes(comm, nbytes));
    ah_status status = AH_OK;
    comm->call->variant = AH_MAILBOXES;
    if (!course->is_begun) {
        bool early = comm->produced > comm->base; /* ah_mailbox_reduce_open has put the first */
        ah_forget_staging(comm);
        *course = (ah_course){.is_begun = true, .unproduced = early};
    }
    for (; course->step < steps && status == AH_OK; course->step++) {
        status = run_step(comm, &what, steps);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
        if (status != AH_OK) break;
    }
    if (status != AH_PENDING) comm->boxes_returned = status == AH_OK && root < 0;
    return status;
}
