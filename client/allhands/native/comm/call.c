#include "comm/call.h"

#include <string.h>

#include "comm/heap_access.h"
#include "comm/result_check.h"
#include "comm/wait.h"

/* The ranks that have posted the call under way. */
static uint64_t ranks_posted(const ah_comm *comm) {
    uint64_t ranks = 0, sequence = comm->call->sequence;
    for (uint64_t rest = comm->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (atomic_load(&ah_slot_of(comm, rank, sequence)->sequence) == sequence)
            ranks |= AH_BIT(rank);
    }
    return ranks;
}

ah_status ah_call_start(ah_comm *comm, ah_call *call) {
    if (call->is_posted && comm->call == call) return AH_OK; /* it goes on */
    comm->call = call;
    comm->paused = false;
    comm->base = comm->produced > comm->consumed ? comm->produced : comm->consumed;
    call->waiting = call->offenders = 0;
    call->touches_output = false;
    call->variant = AH_NONE;
    call->unshared = NULL;
    comm->exposes = false;
    comm->exposed = NULL;
    comm->course = (ah_course){0};
    return atomic_load(&comm->interrupted) >= call->sequence ? AH_INTERRUPTED : AH_OK;
}

ah_status ah_call_finish(ah_comm *comm, ah_status status) {
    ah_call *call = comm->call;
    if (status == AH_PENDING) {
        ah_unpause(comm);
        return status;
    }
    if (status == AH_OK && call->digest != NULL && comm->others) status = ah_compare_results(comm);
    if (status != AH_OK && status != AH_DIFFERENT && !call->is_left) {
        if (status == AH_ABANDONED) call->offenders = ah_abandoning(comm, comm->others);
        ah_forget_staging(comm); /* others may go on in this call, in staging memory too */
        atomic_store(&comm->area[comm->rank]->abandoned, call->sequence);
        /* Our buffers may change from here on; a rank that sees that sees this word: law 6. */
        atomic_thread_fence(memory_order_seq_cst);
        ah_wake_all(comm);
        ah_await_no_access(comm);
        /* Other ranks write into what is exposed once all have posted, seen by us or not. */
        if (comm->exposed && ranks_posted(comm) == comm->others && status != AH_MISMATCH)
            call->touches_output = true;
    }
    ah_unpause(comm);
    comm->call = NULL;
    return status;
}

static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

/* AH_UNSIGNED is for tests/native/bench_signatures.py, which measures what signatures cost. */
uint64_t ah_sign_call(const ah_call *call, int operation, uint64_t a, uint64_t b, uint64_t c) {
#ifdef AH_UNSIGNED
    return (void)call, (void)operation, (void)a, (void)b, (void)c, (void)mix, 0;
#endif
    return mix(mix(mix(mix(call->signature, (uint64_t)operation), a), b), c);
}

uint64_t ah_sign_sizes(const size_t sizes[], int count) {
    uint64_t hash = 0;
    for (int at = 0; at < count; at++) hash = mix(hash, sizes[at]);
    return hash;
}

static ah_wait_goal posted(const ah_comm *comm, uint64_t sequence) {
    size_t slot = (size_t)((char *)ah_slot_of(comm, 0, sequence) - (char *)comm->area[0]);
    return (ah_wait_goal){.offset = slot + offsetof(ah_slot, sequence), .least = sequence};
}

/* Posted or abandoned. */
static ah_wait_goal reached_call(const ah_comm *comm, uint64_t sequence) {
    ah_wait_goal goal = posted(comm, sequence);
    goal.left = sequence;
    return goal;
}

/* Ranks that are not known to have begun call number `need`. */
static uint64_t ranks_behind(const ah_comm *comm, uint64_t need) {
    uint64_t behind = 0;
    for (uint64_t rest = comm->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (comm->reached[rank] < need) behind |= AH_BIT(rank);
    }
    return behind;
}

/* The call that all have to have posted before the slot of that one may be overwritten. */
static uint64_t needed(uint64_t sequence) { return sequence - AH_SLOTS_PER_RANK + 1 + AH_AHEAD; }

bool ah_slot_is_free(const ah_comm *comm, uint64_t sequence) {
    return sequence <= AH_SLOTS_PER_RANK || !ranks_behind(comm, needed(sequence));
}

bool ah_have_posted_alike(const ah_comm *comm, uint64_t ranks, uint64_t sequence) {
    uint64_t signature = ah_slot_of(comm, comm->rank, sequence)->signature;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        const ah_slot *slot = ah_slot_of(comm, __builtin_ctzll(rest), sequence);
        if (atomic_load(&slot->sequence) != sequence || slot->signature != signature) return false;
    }
    return true;
}

ah_status ah_acquire_slot(ah_comm *comm, ah_slot **slot) {
    uint64_t sequence = comm->call->sequence;
    *slot = ah_slot_of(comm, comm->rank, sequence);
    if (sequence <= AH_SLOTS_PER_RANK) return AH_OK; /* nobody has used this slot */
    uint64_t need = needed(sequence), behind = ranks_behind(comm, need);
    if (!behind) return AH_OK;
    /* Who is as far ahead as can be rests until the others have come half of the way: else it would
     * be woken for each slot. Who is not looks at them once for as many calls, if they are near. */
    uint64_t half = need + (AH_SLOTS_PER_RANK - AH_AHEAD) / 2;
    if (!ah_has_reached(comm, behind, reached_call(comm, half)) &&
        ah_has_reached(comm, behind, reached_call(comm, need)))
        half = need;
    ah_status status = ah_await(comm, behind, reached_call(comm, half));
    if (status != AH_OK) return status;
    for (uint64_t rest = behind; rest; rest &= rest - 1)
        comm->reached[__builtin_ctzll(rest)] = half;
    return AH_OK;
}

static void publish(ah_comm *comm, ah_slot *slot, uint64_t sequence, uint64_t signature) {
    slot->signature = signature;
    atomic_store(&slot->sequence, sequence);
    /* The store waits until the line is ours alone. Ask for it a call before: not for the next one,
     * at which a rank that is ahead of us may look already, which would share it again. */
    ah_prefetch_to_write(ah_slot_of(comm, comm->rank, sequence + 2));
    ah_wake(comm, comm->others);
}

void ah_post(ah_comm *comm, ah_slot *slot, uint64_t signature) {
    publish(comm, slot, comm->call->sequence, signature);
    comm->call->is_posted = true;
}

bool ah_post_ahead(ah_comm *comm, uint64_t sequence, uint64_t signature, const void *data,
                   size_t nbytes) {
    if (!ah_slot_is_free(comm, sequence)) return false;
    ah_slot *slot = ah_slot_of(comm, comm->rank, sequence);
    if (nbytes) memcpy(ah_slot_data_of(comm, comm->rank, sequence, nbytes), data, nbytes);
    publish(comm, slot, sequence, signature);
    return true;
}

/* Whether a call that only tries has to be left to who waits. */
static bool is_pending(ah_comm *comm, uint64_t ranks) {
    ah_call *call = comm->call;
    if (call->digest == NULL && ah_have_posted_alike(comm, ranks, call->sequence)) return false;
    call->waiting = call->digest == NULL ? ranks : 0;
    return true;
}

static ah_status compare(ah_comm *comm, uint64_t ranks, uint64_t signature) {
    ah_call *call = comm->call;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        comm->reached[rank] = call->sequence;
#ifdef AH_UNSIGNED
        continue;
#endif
        if (ah_slot_of(comm, rank, call->sequence)->signature != signature)
            call->offenders |= AH_BIT(rank);
    }
    return call->offenders ? AH_MISMATCH : AH_OK;
}

ah_status ah_await_posted(ah_comm *comm, uint64_t ranks, uint64_t signature) {
    if (comm->call->only_tries && is_pending(comm, ranks)) return AH_PENDING;
    ah_wait_goal goal = posted(comm, comm->call->sequence);
    goal.is_slot = true;
    goal.signature = signature;
    ah_status status = ah_await(comm, ranks, goal);
    if (status == AH_MISMATCH) return ah_check_posted(comm, signature);
    if (status == AH_OK) status = compare(comm, ranks, signature);
    comm->call->touches_output |= status == AH_OK && ranks == comm->others;
    return status;
}

ah_status ah_await_posted_rooted(ah_comm *comm, uint64_t ranks, uint64_t signature) {
    uint64_t *known_signatures =
        &comm->known_signatures[signature >> 32 & (AH_KNOWN_SIGNATURES - 1)];
    if (*known_signatures == signature) {
        if (comm->call->only_tries && is_pending(comm, ranks | ranks_posted(comm)))
            return AH_PENDING;
        ah_status status = ranks ? ah_await_posted(comm, ranks, signature) : AH_OK;
        return status == AH_OK ? ah_check_posted(comm, signature) : status;
    }
    ah_status status = ah_await_posted(comm, comm->others, signature);
    if (status == AH_OK) *known_signatures = signature;
    return status;
}

ah_status ah_check_posted(ah_comm *comm, uint64_t signature) {
    return compare(comm, ranks_posted(comm), signature);
}

void ah_post_header(ah_comm *comm, ah_slot *slot, uint64_t signature, ah_call_header header) {
    if (comm->can_attach) header.flags |= AH_CAN_ATTACH;
    if (comm->oversubscribed) header.flags |= AH_CROWDED;
    if (header.flags & AH_IN_HEAP) comm->exposes = true;
    header.base = comm->base;
    comm->header[comm->rank] = header;
    memcpy(slot->small, &header, sizeof header);
    ah_post(comm, slot, signature);
}

static void read_headers(ah_comm *comm, uint64_t ranks) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        memcpy(&comm->header[rank], ah_slot_of(comm, rank, comm->call->sequence)->small,
               sizeof(ah_call_header));
    }
}

ah_status ah_await_headers(ah_comm *comm, uint64_t signature) {
    if (comm->call->has_headers) return AH_OK;
    ah_status status = ah_await_posted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    read_headers(comm, comm->others);
    comm->call->has_headers = true;
    return AH_OK;
}

ah_status ah_await_headers_of(ah_comm *comm, uint64_t ranks, uint64_t signature) {
    if (comm->call->has_headers) return AH_OK;
    ah_status status = ah_await_posted_rooted(comm, ranks, signature);
    if (status != AH_OK) return status;
    read_headers(comm, ranks);
    comm->call->has_headers = ranks == comm->others;
    return AH_OK;
}

ah_status ah_exchange_headers(ah_comm *comm, uint64_t signature, ah_call_header header) {
    ah_slot *slot;
    if (comm->call->is_posted) return ah_await_headers(comm, signature);
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    ah_post_header(comm, slot, signature, header);
    return ah_await_headers(comm, signature);
}

void ah_publish_produced(ah_comm *comm, uint64_t steps) {
    comm->produced = comm->base + steps;
    atomic_store(&comm->area[comm->rank]->produced, comm->produced);
    ah_wake(comm, comm->others);
}

void ah_publish_consumed(ah_comm *comm, uint64_t steps) {
    comm->consumed = comm->base + steps;
    atomic_store(&comm->area[comm->rank]->consumed, comm->consumed);
    ah_wake(comm, comm->others);
}
