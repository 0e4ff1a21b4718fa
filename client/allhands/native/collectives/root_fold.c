#include "collectives/root_fold.h"

#include "collectives/calls.h"
#include "collectives/staged_copy.h"

/* More of either, and each rank had better fold a part. */
enum { MOST_RANKS = 3 };
#define MOST_BYTES ((size_t)128 << 10)

typedef struct {
    const char *in;
    size_t nbytes;
} contribution;

bool ah_folds_at_root(const ah_comm *comm, size_t nbytes) {
    return comm->size == MOST_RANKS && nbytes <= ah_min(MOST_BYTES, comm->limits.chunk);
}

static size_t count(const void *given, int source, int reader) {
    (void)source, (void)reader;
    return ((const contribution *)given)->nbytes;
}

static void produce(const void *given, int reader, size_t at, size_t nbytes, char *box) {
    (void)reader;
    ah_copy(box, ((const contribution *)given)->in + at, nbytes, false);
}

ah_status ah_root_fold(ah_comm *comm, uint64_t signature, ah_op op, ah_type type, const char *in,
                       char *out, size_t nbytes, int root) {
    contribution what = {in, nbytes};
    ah_staged_copy staged = {
        signature, ah_all_ranks(comm) & ~AH_BIT(root), AH_BIT(root), &what, count, produce, NULL};
    if (comm->rank != root) return ah_staged_copy_run(comm, &staged);
    comm->call->variant = AH_STAGED;
    ah_status status = ah_staged_await_filled(comm, comm->others, 0);
    if (status != AH_OK) return status;
    const void *parts[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++)
        parts[r] = r == root ? in : ah_staged_box(comm, &staged, r, root, 0);
    ah_fold(op, type, out, parts, comm->size, nbytes / ah_type_size(type), (size_t)comm->size);
    for (int r = 0; r < comm->size; r++)
        if (r != root) ah_dirty_lines(parts[r], nbytes);
    ah_staged_take(comm, &staged, 0);
    return AH_OK;
}
