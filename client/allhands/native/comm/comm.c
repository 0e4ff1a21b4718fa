#define _GNU_SOURCE
#include "comm/comm_state.h"

#include <stdlib.h>
#include <string.h>

#include "comm/heap_access.h"
#include "comm/wait.h"

/* ---- layout */

static size_t stride_of(const ah_limits *limits) {
    return sizeof(ah_slot) + AH_TABLES + ah_round_up(limits->slot_max, AH_CACHE_LINE);
}

static size_t staging_of(const ah_limits *limits) {
    return ah_round_up(sizeof(ah_area) + AH_SLOTS_PER_RANK * stride_of(limits), 4096);
}

/* Whole lines, so that no chunk or box cuts an element of any type. */
static size_t chunk_of(const ah_limits *limits) {
    return ah_round_up(limits->chunk ? limits->chunk : 1, AH_CACHE_LINE);
}

/* A rank's chunk, cut for each of the others. */
static size_t box_of(int size, const ah_limits *limits) {
    size_t others = size > 1 ? (size_t)size - 1 : 1;
    return ah_round_up((chunk_of(limits) + others - 1) / others, AH_CACHE_LINE);
}

size_t ah_area_bytes(int size, const ah_limits *limits) {
    return ah_round_up(staging_of(limits) + 2 * (size_t)size * box_of(size, limits), 4096);
}

/* A slot saves a second meeting, and the exchange of two ranks is as fast from 16 KiB on. Attach
 * saves a copy, but is a system call for each piece and walks page tables: staging is faster as
 * long as data fits into caches. */
ah_limits ah_default_limits(int size) {
    return (ah_limits){
        .slot_max = 8192,
        .chunk = size > 2 ? (size_t)1 << 20 : (size_t)256 << 10,
        .attach_min = (size_t)8 << 20,
    };
}

/* ---- life */

ah_comm *ah_comm_new(int rank, int size, void *const areas[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_limits *limits) {
    ah_comm *comm = aligned_alloc(AH_CACHE_LINE, ah_round_up(sizeof *comm, AH_CACHE_LINE));
    if (!comm) return NULL;
    memset(comm, 0, sizeof *comm);
    comm->rank = rank;
    comm->size = size;
    comm->others = (size == 64 ? UINT64_MAX : AH_BIT(size) - 1) & ~AH_BIT(rank);
    comm->limits = *limits;
    comm->limits.chunk = chunk_of(limits);
    comm->heap_bytes = heap_bytes;
    comm->slot_stride = stride_of(limits);
    comm->staging_offset = staging_of(limits);
    comm->box_bytes = box_of(size, limits);
    comm->oversubscribed = size > ah_cpu_count();
    comm->previous_cpu = -1;
    for (int r = 0; r < size; r++) {
        comm->area[r] = areas[r];
        comm->heap[r] = heaps ? heaps[r] : NULL;
        comm->pid[r] = pids[r];
    }
    comm->nonce = ah_new_nonce();
    atomic_store(&comm->area[rank]->nonce, comm->nonce);
    atomic_store(&comm->area[rank]->nonce_at, (uint64_t)(uintptr_t)&comm->nonce);
    return comm;
}

void ah_comm_leave(ah_comm *comm) {
    if (!comm->has_left) atomic_store(&comm->area[comm->rank]->nonce_at, 0);
    comm->has_left = true;
}

void ah_comm_free(ah_comm *comm) {
    if (comm) ah_comm_leave(comm);
    free(comm);
}

void ah_comm_interrupt(ah_comm *comm, uint64_t sequence) {
    uint64_t before = atomic_load(&comm->interrupted);
    while (before < sequence &&
           !atomic_compare_exchange_weak(&comm->interrupted, &before, sequence)) {
    }
    ah_wake_rank(comm->area[comm->rank]);
}

void ah_comm_skip(ah_comm *comm, uint64_t sequence) {
    _Atomic uint64_t *abandoned = &comm->area[comm->rank]->abandoned;
    if (atomic_load(abandoned) >= sequence) return;
    atomic_store(abandoned, sequence); /* none of them is in progress here: the buffers are free */
    ah_wake(comm, comm->others);
}

void ah_comm_unshare(ah_comm *comm, const void *at, size_t nbytes) {
    int last =
        comm->unshared_count < AH_MAX_UNSHARED ? comm->unshared_count++ : AH_MAX_UNSHARED - 1;
    uintptr_t from = (uintptr_t)at, to = from + nbytes;
    if (comm->unshared[last].to) { /* the last place is taken: let it cover both */
        if (comm->unshared[last].from < from) from = comm->unshared[last].from;
        if (comm->unshared[last].to > to) to = comm->unshared[last].to;
    }
    comm->unshared[last].from = from;
    comm->unshared[last].to = to;
}

/* ---- begin and end of a call */

/* Who has posted the call in progress. */
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
    comm->call = call;
    comm->paused = false;
    comm->base = comm->produced > comm->consumed ? comm->produced : comm->consumed;
    call->waiting = call->offenders = 0;
    call->all_arrived = false;
    call->variant = AH_NONE;
    call->unshared = NULL;
    comm->exposes = false;
    comm->exposed = NULL;
    return atomic_load(&comm->interrupted) >= call->sequence ? AH_INTERRUPTED : AH_OK;
}

ah_status ah_call_finish(ah_comm *comm, ah_status status) {
    ah_call *call = comm->call;
    if (status != AH_OK) {
        if (status == AH_ABANDONED) call->offenders = ah_abandoning(comm, comm->others);
        ah_forget_phase(comm); /* others may go on in this call, in staging memory too */
        atomic_store(&comm->area[comm->rank]->abandoned, call->sequence);
        /* Our buffers may change from here on; who sees that they did sees the word: law 6. */
        atomic_thread_fence(memory_order_seq_cst);
        ah_wake(comm, comm->others);
        ah_await_no_access(comm);
        /* Others write into what was lent when all have come, seen by us or not. */
        if (comm->exposed && ranks_posted(comm) == comm->others && status != AH_MISMATCH)
            call->all_arrived = true;
    }
    ah_unpause(comm);
    comm->call = NULL;
    return status;
}

/* ---- posting */

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

static ah_wait_goal posted(const ah_comm *comm, uint64_t sequence) {
    size_t slot = offsetof(ah_area, end) + (sequence & (AH_SLOTS_PER_RANK - 1)) * comm->slot_stride;
    return (ah_wait_goal){.offset = slot + offsetof(ah_slot, sequence), .least = sequence};
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

bool ah_slot_is_free(const ah_comm *comm, uint64_t sequence) {
    return sequence <= AH_SLOTS_PER_RANK || !ranks_behind(comm, sequence - AH_SLOTS_PER_RANK + 1);
}

ah_status ah_acquire_slot(ah_comm *comm, ah_slot **slot) {
    uint64_t sequence = comm->call->sequence;
    *slot = ah_slot_of(comm, comm->rank, sequence);
    if (sequence <= AH_SLOTS_PER_RANK) return AH_OK; /* nobody has used this slot */
    uint64_t need = sequence - AH_SLOTS_PER_RANK + 1, behind = ranks_behind(comm, need);
    if (!behind) return AH_OK;
    ah_wait_goal goal = posted(comm, need);
    goal.left = need;
    ah_status status = ah_await(comm, behind, goal);
    if (status != AH_OK) return status;
    for (uint64_t rest = behind; rest; rest &= rest - 1)
        comm->reached[__builtin_ctzll(rest)] = need;
    return AH_OK;
}

void ah_post(ah_comm *comm, ah_slot *slot, uint64_t signature) {
    slot->signature = signature;
    atomic_store(&slot->sequence, comm->call->sequence);
    ah_wake(comm, comm->others);
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
    ah_wait_goal goal = posted(comm, comm->call->sequence);
    goal.is_slot = true;
    goal.signature = signature;
    ah_status status = ah_await(comm, ranks, goal);
    if (status == AH_MISMATCH) return ah_check_posted(comm, signature);
    if (status == AH_OK) status = compare(comm, ranks, signature);
    comm->call->all_arrived = status == AH_OK && ranks == comm->others;
    return status;
}

ah_status ah_await_posted_rooted(ah_comm *comm, uint64_t ranks, uint64_t signature) {
    uint64_t *known_signatures =
        &comm->known_signatures[signature >> 32 & (AH_KNOWN_SIGNATURES - 1)];
    if (*known_signatures == signature) {
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
    if (header.flags & AH_IN_HEAP) comm->exposes = true;
    header.base = comm->base;
    comm->header[comm->rank] = header;
    memcpy(slot->small, &header, sizeof header);
    ah_post(comm, slot, signature);
}

ah_status ah_await_headers(ah_comm *comm, uint64_t signature) {
    ah_status status = ah_await_posted(comm, comm->others, signature);
    if (status != AH_OK) return status;
    for (uint64_t rest = comm->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        memcpy(&comm->header[rank], ah_slot_of(comm, rank, comm->call->sequence)->small,
               sizeof(ah_call_header));
    }
    return AH_OK;
}

ah_status ah_exchange_headers(ah_comm *comm, uint64_t signature, ah_call_header header) {
    ah_slot *slot;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    ah_post_header(comm, slot, signature, header);
    return ah_await_headers(comm, signature);
}

/* ---- progress */

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

/* ---- heaps */

uint64_t ah_locate_buffer(const ah_comm *comm, const void *at, size_t nbytes, uint64_t *where) {
    uintptr_t heap = (uintptr_t)comm->heap[comm->rank], address = (uintptr_t)at;
    *where = nbytes ? address : 0; /* nothing lies anywhere */
    if (!nbytes && heap) return AH_IN_HEAP;
    if (!heap || address < heap || nbytes > comm->heap_bytes ||
        address - heap > comm->heap_bytes - nbytes)
        return 0;
    for (int i = 0; i < comm->unshared_count; i++)
        if (address < comm->unshared[i].to && address + nbytes > comm->unshared[i].from) return 0;
    *where = address - heap;
    return AH_IN_HEAP;
}

uint64_t ah_locate_buffers(const ah_comm *comm, const void *const at[], const size_t each[],
                           size_t nbytes, uint64_t where[]) {
    uint64_t flags = AH_IN_HEAP;
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            flags &= ah_locate_buffer(comm, at[r], each ? each[r] : nbytes, &where[r]);
    for (int r = 0; r < comm->size && !flags; r++) where[r] = (uint64_t)(uintptr_t)at[r];
    return flags;
}

char *ah_heap_address(const ah_comm *comm, int rank, uint64_t offset, size_t nbytes) {
    if (!comm->heap[rank] || nbytes > comm->heap_bytes || offset > comm->heap_bytes - nbytes)
        return NULL;
    return comm->heap[rank] + offset;
}
