#define _GNU_SOURCE
#include "comm/comm_state.h"

#include <stdlib.h>
#include <string.h>

#include "comm/heap_access.h"
#include "comm/wait.h"

/* ---- layout */

static size_t stride_of(const ah_limits *limits) {
    return sizeof(ah_slot) + AH_TABLES + ah_up(limits->slot_max, AH_LINE);
}

static size_t staging_of(const ah_limits *limits) {
    return ah_up(sizeof(ah_area) + AH_RING * stride_of(limits), 4096);
}

/* Whole lines, so that no chunk or box cuts an element of any type. */
static size_t chunk_of(const ah_limits *limits) {
    return ah_up(limits->chunk ? limits->chunk : 1, AH_LINE);
}

/* A rank's chunk, cut for each of the others. */
static size_t box_of(int size, const ah_limits *limits) {
    size_t others = size > 1 ? (size_t)size - 1 : 1;
    return ah_up((chunk_of(limits) + others - 1) / others, AH_LINE);
}

size_t ah_area_bytes(int size, const ah_limits *limits) {
    return ah_up(staging_of(limits) + 2 * (size_t)size * box_of(size, limits), 4096);
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

ah_lane *ah_lane_new(int rank, int size, void *const areas[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_limits *limits) {
    ah_lane *lane = aligned_alloc(AH_LINE, ah_up(sizeof *lane, AH_LINE));
    if (!lane) return NULL;
    memset(lane, 0, sizeof *lane);
    lane->rank = rank;
    lane->size = size;
    lane->others = (size == 64 ? UINT64_MAX : AH_BIT(size) - 1) & ~AH_BIT(rank);
    lane->limits = *limits;
    lane->limits.chunk = chunk_of(limits);
    lane->heap_bytes = heap_bytes;
    lane->stride = stride_of(limits);
    lane->staging = staging_of(limits);
    lane->box = box_of(size, limits);
    lane->crowded = size > ah_processors();
    lane->came_from = -1;
    for (int r = 0; r < size; r++) {
        lane->area[r] = areas[r];
        lane->heap[r] = heaps ? heaps[r] : NULL;
        lane->pid[r] = pids[r];
    }
    lane->nonce = ah_new_nonce();
    atomic_store(&lane->area[rank]->nonce, lane->nonce);
    atomic_store(&lane->area[rank]->nonce_at, (uint64_t)(uintptr_t)&lane->nonce);
    return lane;
}

void ah_lane_leave(ah_lane *lane) {
    if (!lane->left) atomic_store(&lane->area[lane->rank]->nonce_at, 0);
    lane->left = true;
}

void ah_lane_free(ah_lane *lane) {
    if (lane) ah_lane_leave(lane);
    free(lane);
}

void ah_lane_interrupt(ah_lane *lane, uint64_t sequence) {
    uint64_t before = atomic_load(&lane->interrupted);
    while (before < sequence &&
           !atomic_compare_exchange_weak(&lane->interrupted, &before, sequence)) {
    }
    ah_ring_one(lane->area[lane->rank]);
}

void ah_lane_skip(ah_lane *lane, uint64_t sequence) {
    _Atomic uint64_t *abandoned = &lane->area[lane->rank]->abandoned;
    if (atomic_load(abandoned) >= sequence) return;
    atomic_store(abandoned, sequence); /* none of them is in progress here: the buffers are free */
    ah_ring(lane, lane->others);
}

void ah_lane_unshare(ah_lane *lane, const void *at, size_t nbytes) {
    int last = lane->unshared_count < AH_UNSHARED ? lane->unshared_count++ : AH_UNSHARED - 1;
    uintptr_t from = (uintptr_t)at, to = from + nbytes;
    if (lane->unshared[last].to) { /* the last place is taken: let it cover both */
        if (lane->unshared[last].from < from) from = lane->unshared[last].from;
        if (lane->unshared[last].to > to) to = lane->unshared[last].to;
    }
    lane->unshared[last].from = from;
    lane->unshared[last].to = to;
}

/* ---- begin and end of a call */

/* Who has posted the call in progress. */
static uint64_t here(const ah_lane *lane) {
    uint64_t ranks = 0, sequence = lane->call->sequence;
    for (uint64_t rest = lane->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (atomic_load(&ah_slot_of(lane, rank, sequence)->sequence) == sequence)
            ranks |= AH_BIT(rank);
    }
    return ranks;
}

ah_status ah_start(ah_lane *lane, ah_call *call) {
    lane->call = call;
    lane->paused = false;
    lane->base = lane->put > lane->done ? lane->put : lane->done;
    call->waiting = call->culprits = 0;
    call->met = false;
    call->variant = AH_NONE;
    call->unshared = NULL;
    lane->lends = false;
    lane->lent = NULL;
    return atomic_load(&lane->interrupted) >= call->sequence ? AH_INTERRUPTED : AH_OK;
}

ah_status ah_finish(ah_lane *lane, ah_status status) {
    ah_call *call = lane->call;
    if (status != AH_OK) {
        if (status == AH_ABANDONED) call->culprits = ah_gave_up(lane, lane->others);
        ah_unsettle(lane); /* others may go on in this call, in staging memory too */
        atomic_store(&lane->area[lane->rank]->abandoned, call->sequence);
        /* Our buffers may change from here on; who sees that they did sees the word: law 6. */
        atomic_thread_fence(memory_order_seq_cst);
        ah_ring(lane, lane->others);
        ah_reclaim(lane);
        /* Others write into what was lent when all have come, seen by us or not. */
        if (lane->lent && here(lane) == lane->others && status != AH_MISMATCH) call->met = true;
    }
    ah_unpause(lane);
    lane->call = NULL;
    return status;
}

/* ---- posting */

static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

/* AH_UNSIGNED is for tests/native/bench_signatures.py, which measures what signatures cost. */
uint64_t ah_sign(const ah_call *call, int operation, uint64_t a, uint64_t b, uint64_t c) {
#ifdef AH_UNSIGNED
    return (void)call, (void)operation, (void)a, (void)b, (void)c, (void)mix, 0;
#endif
    return mix(mix(mix(mix(call->signature, (uint64_t)operation), a), b), c);
}

static ah_goal posted(const ah_lane *lane, uint64_t sequence) {
    size_t slot = offsetof(ah_area, end) + (sequence & (AH_RING - 1)) * lane->stride;
    return (ah_goal){.offset = slot + offsetof(ah_slot, sequence), .least = sequence};
}

/* Ranks that are not known to have begun call number `need`. */
static uint64_t behind_of(const ah_lane *lane, uint64_t need) {
    uint64_t behind = 0;
    for (uint64_t rest = lane->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (lane->reached[rank] < need) behind |= AH_BIT(rank);
    }
    return behind;
}

bool ah_has_room(const ah_lane *lane, uint64_t sequence) {
    return sequence <= AH_RING || !behind_of(lane, sequence - AH_RING + 1);
}

ah_status ah_room(ah_lane *lane, ah_slot **slot) {
    uint64_t sequence = lane->call->sequence;
    *slot = ah_slot_of(lane, lane->rank, sequence);
    if (sequence <= AH_RING) return AH_OK; /* nobody has used this slot */
    uint64_t need = sequence - AH_RING + 1, behind = behind_of(lane, need);
    if (!behind) return AH_OK;
    ah_goal goal = posted(lane, need);
    goal.left = need;
    ah_status status = ah_await(lane, behind, goal);
    if (status != AH_OK) return status;
    for (uint64_t rest = behind; rest; rest &= rest - 1)
        lane->reached[__builtin_ctzll(rest)] = need;
    return AH_OK;
}

void ah_post(ah_lane *lane, ah_slot *slot, uint64_t signature) {
    slot->signature = signature;
    atomic_store(&slot->sequence, lane->call->sequence);
    ah_ring(lane, lane->others);
}

static ah_status compare(ah_lane *lane, uint64_t ranks, uint64_t signature) {
    ah_call *call = lane->call;
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        lane->reached[rank] = call->sequence;
#ifdef AH_UNSIGNED
        continue;
#endif
        if (ah_slot_of(lane, rank, call->sequence)->signature != signature)
            call->culprits |= AH_BIT(rank);
    }
    return call->culprits ? AH_MISMATCH : AH_OK;
}

ah_status ah_headers(ah_lane *lane, uint64_t ranks, uint64_t signature) {
    ah_goal goal = posted(lane, lane->call->sequence);
    goal.header = true;
    goal.signature = signature;
    ah_status status = ah_await(lane, ranks, goal);
    if (status == AH_MISMATCH) return ah_glance(lane, signature);
    if (status == AH_OK) status = compare(lane, ranks, signature);
    lane->call->met = status == AH_OK && ranks == lane->others;
    return status;
}

ah_status ah_headers_of(ah_lane *lane, uint64_t ranks, uint64_t signature) {
    uint64_t *agreed = &lane->agreed[signature >> 32 & (AH_AGREED - 1)];
    if (*agreed == signature) {
        ah_status status = ranks ? ah_headers(lane, ranks, signature) : AH_OK;
        return status == AH_OK ? ah_glance(lane, signature) : status;
    }
    ah_status status = ah_headers(lane, lane->others, signature);
    if (status == AH_OK) *agreed = signature;
    return status;
}

ah_status ah_glance(ah_lane *lane, uint64_t signature) {
    return compare(lane, here(lane), signature);
}

void ah_post_terms(ah_lane *lane, ah_slot *slot, uint64_t signature, ah_terms terms) {
    if (lane->attach) terms.flags |= AH_CAN_ATTACH;
    if (terms.flags & AH_IN_HEAP) lane->lends = true;
    terms.base = lane->base;
    lane->terms[lane->rank] = terms;
    memcpy(slot->small, &terms, sizeof terms);
    ah_post(lane, slot, signature);
}

ah_status ah_meet_all(ah_lane *lane, uint64_t signature) {
    ah_status status = ah_headers(lane, lane->others, signature);
    if (status != AH_OK) return status;
    for (uint64_t rest = lane->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        memcpy(&lane->terms[rank], ah_slot_of(lane, rank, lane->call->sequence)->small,
               sizeof(ah_terms));
    }
    return AH_OK;
}

ah_status ah_meet(ah_lane *lane, uint64_t signature, ah_terms terms) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    ah_post_terms(lane, slot, signature, terms);
    return ah_meet_all(lane, signature);
}

/* ---- progress */

void ah_put(ah_lane *lane, uint64_t steps) {
    lane->put = lane->base + steps;
    atomic_store(&lane->area[lane->rank]->put, lane->put);
    ah_ring(lane, lane->others);
}

void ah_done(ah_lane *lane, uint64_t steps) {
    lane->done = lane->base + steps;
    atomic_store(&lane->area[lane->rank]->done, lane->done);
    ah_ring(lane, lane->others);
}

/* ---- heaps */

uint64_t ah_locate(const ah_lane *lane, const void *at, size_t nbytes, uint64_t *where) {
    uintptr_t heap = (uintptr_t)lane->heap[lane->rank], address = (uintptr_t)at;
    *where = nbytes ? address : 0; /* nothing lies anywhere */
    if (!nbytes && heap) return AH_IN_HEAP;
    if (!heap || address < heap || nbytes > lane->heap_bytes ||
        address - heap > lane->heap_bytes - nbytes)
        return 0;
    for (int i = 0; i < lane->unshared_count; i++)
        if (address < lane->unshared[i].to && address + nbytes > lane->unshared[i].from) return 0;
    *where = address - heap;
    return AH_IN_HEAP;
}

uint64_t ah_locate_all(const ah_lane *lane, const void *const at[], const size_t each[],
                       size_t nbytes, uint64_t where[]) {
    uint64_t flags = AH_IN_HEAP;
    for (int r = 0; r < lane->size; r++)
        if (r != lane->rank) flags &= ah_locate(lane, at[r], each ? each[r] : nbytes, &where[r]);
    for (int r = 0; r < lane->size && !flags; r++) where[r] = (uint64_t)(uintptr_t)at[r];
    return flags;
}

char *ah_in_heap(const ah_lane *lane, int rank, uint64_t offset, size_t nbytes) {
    if (!lane->heap[rank] || nbytes > lane->heap_bytes || offset > lane->heap_bytes - nbytes)
        return NULL;
    return lane->heap[rank] + offset;
}
