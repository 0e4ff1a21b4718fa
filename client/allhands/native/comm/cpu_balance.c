#define _GNU_SOURCE
#include "comm/cpu_balance.h"

#include <sched.h>

#define MILLISECONDS INT64_C(1000000)

/* A rank moves at most as often; the system moves ranks too. */
#define MIGRATION_INTERVAL (5 * MILLISECONDS)
/* More than what ranks do between two waits, mostly. */
#define USUAL_WORK (4 * MILLISECONDS)
/* For so long a processor counts as shared with others. */
#define SHARED_FOR (1000 * MILLISECONDS)

static bool migrate_to(int to) {
    cpu_set_t allowed, there;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0 || !CPU_ISSET(to, &allowed))
        return false;
    CPU_ZERO(&there);
    CPU_SET(to, &there);
    if (sched_setaffinity(0, sizeof there, &there) < 0) return false;
    sched_setaffinity(0, sizeof allowed, &allowed);
    return true;
}

static int cpu_of(const ah_comm *comm, int rank) {
    return atomic_load_explicit(&comm->area[rank]->cpu, memory_order_relaxed) - 1;
}

/* Whether a rank that waits there has been delayed lately. */
static bool is_shared(const ah_comm *comm, int cpu, int64_t now) {
    for (int r = 0; r < comm->size; r++) {
        int64_t delayed = atomic_load_explicit(&comm->area[r]->delayed, memory_order_relaxed);
        if (cpu_of(comm, r) == cpu && delayed && now - delayed < SHARED_FOR) return true;
    }
    return false;
}

void ah_balance_cpus(ah_comm *comm, int64_t now) {
    int own = sched_getcpu();
    if (own < 0 || own >= CPU_SETSIZE) return;
    if (cpu_of(comm, comm->rank) != own)
        atomic_store_explicit(&comm->area[comm->rank]->cpu, own + 1, memory_order_relaxed);
    if (now < comm->next_migration) return;
    comm->previous_cpu = -1; /* it was right to move, or long ago */
    unsigned char ranks[CPU_SETSIZE] = {0};
    for (int r = 0; r < comm->size; r++) {
        int cpu = cpu_of(comm, r);
        if (cpu < 0 || cpu >= CPU_SETSIZE) return; /* somebody has never waited */
        if (cpu == own && r > comm->rank) return;  /* the highest rank moves */
        ranks[cpu]++;
    }
    cpu_set_t allowed;
    if (ranks[own] < 2) return;
    comm->next_migration = now + MIGRATION_INTERVAL;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0) return;
    int to = own;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && ranks[cpu] < ranks[to]) to = cpu;
    if (ranks[to] + 2 > ranks[own] || is_shared(comm, to, now) || !migrate_to(to)) return;
    comm->previous_cpu = own;
    atomic_store_explicit(&comm->area[comm->rank]->cpu, to + 1, memory_order_relaxed);
}

void ah_record_delay(ah_comm *comm, int64_t began, int64_t now) {
    if (ah_ranks_on_my_cpu(comm) && now - began < USUAL_WORK) return;
    atomic_store_explicit(&comm->area[comm->rank]->delayed, now, memory_order_relaxed);
    if (comm->previous_cpu >= 0 && migrate_to(comm->previous_cpu))
        atomic_store_explicit(&comm->area[comm->rank]->cpu, comm->previous_cpu + 1,
                              memory_order_relaxed);
    comm->previous_cpu = -1;
    comm->next_migration = now + SHARED_FOR;
}

uint64_t ah_ranks_on_my_cpu(const ah_comm *comm) {
    int own = sched_getcpu();
    uint64_t found = 0;
    for (int r = 0; r < comm->size; r++)
        if (cpu_of(comm, r) == own) found |= AH_BIT(r);
    return found & comm->others;
}
