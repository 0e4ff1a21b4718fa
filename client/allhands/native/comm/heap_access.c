#define _GNU_SOURCE
#include "comm/heap_access.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/wait.h"

/* A rank that runs is out within a piece of its work: microseconds. */
#define PATIENCE INT64_C(20000000)

void ah_lend(ah_lane *lane, void *at, size_t nbytes) {
    lane->lent = at;
    lane->lent_bytes = nbytes;
}

ah_status ah_enter(ah_lane *lane, uint64_t ranks) {
    atomic_store(&lane->area[lane->rank]->inside, lane->call->sequence);
    if (!ah_gave_up(lane, ranks)) return AH_OK;
    atomic_store(&lane->area[lane->rank]->inside, 0);
    return AH_ABANDONED;
}

ah_status ah_exit(ah_lane *lane, uint64_t ranks) {
    uint64_t gone = ah_gave_up(lane, ranks);
    atomic_store(&lane->area[lane->rank]->inside, 0);
    return gone ? AH_ABANDONED : AH_OK;
}

static bool anyone_inside(const ah_lane *lane, bool of_this_process) {
    for (uint64_t rest = lane->others; rest; rest &= rest - 1) {
        int rank = __builtin_ctzll(rest);
        if (of_this_process && lane->pid[rank] != lane->pid[lane->rank]) continue;
        if (atomic_load(&lane->area[rank]->inside) == lane->call->sequence) return true;
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

static void take_out(ah_lane *lane) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)lane->lent / page * page;
    uintptr_t to = ah_up((uintptr_t)lane->lent + lane->lent_bytes, page);
    while (!exchange_pages((char *)from, to - from) && anyone_inside(lane, false))
        sched_yield(); /* out of memory: nothing is safe but to wait */
    ah_lane_unshare(lane, (void *)from, to - from);
    lane->call->unshared = (void *)from;
    lane->call->unshared_bytes = to - from;
}

void ah_reclaim(ah_lane *lane) {
    int64_t patient = ah_now() + PATIENCE;
    bool inside = lane->lends && anyone_inside(lane, false);
    while (inside && ah_now() < patient) {
        sched_yield();
        inside = anyone_inside(lane, false);
    }
    /* Ranks in this very process cannot be stopped alone, and have the same pages. */
    while (inside && anyone_inside(lane, true)) sched_yield();
    if (inside && lane->lent && anyone_inside(lane, false)) take_out(lane);
}
