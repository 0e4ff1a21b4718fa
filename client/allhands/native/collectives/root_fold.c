#include "collectives/root_fold.h"

#include "collectives/calls.h"
#include "collectives/staged_copy.h"

/* More of either, and each rank had better fold a part. */
enum { MOST_RANKS = 3 };
#define MOST_BYTES ((size_t)128 << 10)

bool ah_folds_at_root(const ah_comm *comm, size_t nbytes) {
    return comm->size == MOST_RANKS && nbytes <= ah_min(MOST_BYTES, comm->limits.chunk);
}

/* Whether the root has read, or will not read, what it was lent last. */
static bool is_given_back(const ah_comm *comm, int root) {
    uint64_t at = comm->lent_at;
    if (comm->lent_to != root) return false;
    if (comm->reached[root] > at) return true;              /* it is in a later call */
    if (comm->call->sequence > at + AH_AHEAD) return false; /* its slot may be another call's */
    const ah_slot *slot = ah_slot_of(comm, root, at);
    if (atomic_load(&slot->sequence) != at) return false;
    ah_call_header header;
    memcpy(&header, slot->small, sizeof header);
    return atomic_load(&comm->area[root]->consumed) > header.base;
}

static void lend(ah_comm *comm, const void *in, size_t nbytes, int root) {
    ah_forget_phase(comm);
    ah_copy(ah_staging_of(comm, comm->rank, 0), in, nbytes, false);
    ah_publish_produced(comm, 1);
    comm->lent_to = root;
    comm->lent_at = comm->call->sequence;
}

void ah_root_fold_open(ah_comm *comm, const void *in, size_t nbytes, int root) {
    if (is_given_back(comm, root)) lend(comm, in, nbytes, root);
}

bool ah_root_fold_is_open(const ah_comm *comm) { return comm->produced > comm->base; }

ah_status ah_root_fold(ah_comm *comm, ah_op op, ah_type type, const char *in, char *out,
                       size_t nbytes, int root) {
    comm->call->variant = AH_STAGED;
    if (comm->rank != root) {
        if (!ah_root_fold_is_open(comm)) lend(comm, in, nbytes, root);
        return AH_OK;
    }
    ah_forget_phase(comm);
    ah_status status = ah_await_produced(comm, comm->others, 1);
    if (status != AH_OK) return status;
    const void *parts[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++)
        parts[r] = r == comm->rank ? in : ah_staging_of(comm, r, 0);
    ah_fold(op, type, out, parts, comm->size, nbytes / ah_type_size(type), (size_t)comm->size);
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank) ah_dirty_lines(parts[r], nbytes);
    ah_publish_consumed(comm, 1);
    return AH_OK;
}
