#include "comm/result_check.h"

#include "comm/wait.h"

/* Larger results take longer to look at than others should wait for what the shell holds. */
#define PAUSE_BYTES ((size_t)64 << 10)

static uint64_t digest_of(const ah_comm *comm, int rank) {
    return ah_slot_of(comm, rank, comm->call->sequence)->digest;
}

static uint64_t ranks_with(const ah_comm *comm, uint64_t digest) {
    uint64_t ranks = 0;
    for (int rank = 0; rank < comm->size; rank++)
        if (digest_of(comm, rank) == digest) ranks |= AH_BIT(rank);
    return ranks;
}

/* The ranks outside the majority; all ranks where there is none: nobody can tell who is wrong. */
static uint64_t ranks_unlike_most(const ah_comm *comm) {
    uint64_t all = ah_all_ranks(comm);
    for (int rank = 0; rank < comm->size; rank++) {
        uint64_t alike = ranks_with(comm, digest_of(comm, rank));
        if (2 * __builtin_popcountll(alike) > comm->size) return all & ~alike;
    }
    return all;
}

ah_status ah_compare_results(ah_comm *comm) {
    ah_call *call = comm->call;
    if (call->nbytes > PAUSE_BYTES) ah_pause(comm);
    ah_slot *slot = ah_slot_of(comm, comm->rank, call->sequence);
    slot->digest = call->digest(call->owner);
    atomic_store(&slot->digested, call->sequence);
    ah_wake(comm, comm->others);
    ah_wait_goal goal = {
        .offset = (size_t)((char *)&slot->digested - (char *)comm->area[comm->rank]),
        .least = call->sequence,
    };
    ah_status status = ah_await(comm, comm->others, goal);
    if (status != AH_OK) return status;
    call->offenders = ranks_unlike_most(comm);
    return call->offenders ? AH_DIFFERENT : AH_OK;
}
