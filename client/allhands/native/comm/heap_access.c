#define _GNU_SOURCE
#include "comm/heap_access.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/host.h"
#include "comm/wait.h"

/* A rank that runs is out within a piece of its work: microseconds. */
#define PATIENCE INT64_C(20000000)

/* ---- places in heaps */

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

/* ---- accesses */

void ah_expose(ah_comm *comm, void *at, size_t nbytes) {
    comm->exposed = at;
    comm->exposed_bytes = nbytes;
}

ah_status ah_access_begin(ah_comm *comm, uint64_t ranks) {
    atomic_store(&comm->area[comm->rank]->access_epoch, comm->call->sequence);
    if (!ah_abandoning(comm, ranks)) return AH_OK;
    atomic_store(&comm->area[comm->rank]->access_epoch, 0);
    return AH_ABANDONED;
}

ah_status ah_access_end(ah_comm *comm, uint64_t ranks) {
    uint64_t gone = ah_abandoning(comm, ranks);
    atomic_store(&comm->area[comm->rank]->access_epoch, 0);
    return gone ? AH_ABANDONED : AH_OK;
}

static bool anyone_accessing(const ah_comm *comm, bool of_this_process) {
    for (uint64_t rest = comm->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (of_this_process && comm->pid[rank] != comm->pid[comm->rank]) continue;
        if (atomic_load(&comm->area[rank]->access_epoch) == comm->call->sequence) return true;
    }
    return false;
}

/* Private pages in the place of shared ones. Who else has the heap mapped keeps the old ones. */
static bool exchange_pages(char *from, size_t nbytes) {
    void *copy = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, from, nbytes);
    if (mremap(copy, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, from) == from) return true;
    munmap(copy, nbytes);
    return false;
}

static void make_private(ah_comm *comm) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)comm->exposed / page * page;
    uintptr_t to = ah_round_up((uintptr_t)comm->exposed + comm->exposed_bytes, page);
    while (!exchange_pages((char *)from, to - from) && anyone_accessing(comm, false))
        sched_yield(); /* out of memory: nothing is safe but to wait */
    ah_comm_unshare(comm, (void *)from, to - from);
    comm->call->unshared = (void *)from;
    comm->call->unshared_bytes = to - from;
}

void ah_await_no_access(ah_comm *comm) {
    int64_t patient = ah_now() + PATIENCE;
    bool access_epoch = comm->exposes && anyone_accessing(comm, false);
    while (access_epoch && ah_now() < patient) {
        sched_yield();
        access_epoch = anyone_accessing(comm, false);
    }
    /* Ranks in this very process cannot be stopped alone, and have the same pages. */
    while (access_epoch && anyone_accessing(comm, true)) sched_yield();
    if (access_epoch && comm->exposed && anyone_accessing(comm, false)) make_private(comm);
}
