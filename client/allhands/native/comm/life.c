#define _GNU_SOURCE
#include "comm/comm_state.h"

#include <stdlib.h>
#include <string.h>

#include "comm/host.h"
#include "comm/wait.h"

/* ---- sizes */

static size_t body_of(const ah_limits *limits) {
    return AH_TABLES + ah_round_up(limits->slot_max, AH_CACHE_LINE);
}

static size_t staging_of(const ah_limits *limits) {
    size_t slots = AH_SLOTS_PER_RANK * (sizeof(ah_slot) + body_of(limits));
    return ah_round_up(sizeof(ah_area) + slots, 4096);
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
 * long as data fits into caches, and as writers and readers copy at the same time. */
#define ATTACH_CROWDED ((size_t)1 << 20)
#define ATTACH_ALONE ((size_t)8 << 20)

ah_limits ah_default_limits(int size) {
    return (ah_limits){
        .slot_max = 8192,
        .chunk = size > 2 ? (size_t)1 << 20 : (size_t)256 << 10,
        .attach_min = size > 2 ? ATTACH_CROWDED : ATTACH_ALONE,
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
    bool is_measured = limits->attach_min == ah_default_limits(size).attach_min;
    comm->attach_alone_min = is_measured ? ATTACH_ALONE : limits->attach_min;
    comm->heap_bytes = heap_bytes;
    comm->body_stride = body_of(limits);
    comm->staging_offset = staging_of(limits);
    comm->box_bytes = box_of(size, limits);
    int cpus = ah_cpu_count();
    comm->oversubscribed = size > cpus;
    comm->has_spare_cpu = size < cpus;
    comm->ranks_per_cpu = (size + cpus - 1) / cpus;
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
    atomic_store(abandoned, sequence); /* none of them is under way here: the buffers are free */
    ah_wake_all(comm);
}
