#define _GNU_SOURCE
#include "comm/cpu_balance.h"

#include <sched.h>

#define MILLISECONDS INT64_C(1000000)

/* A rank moves at most as often; the system moves ranks too. */
#define MOVE (5 * MILLISECONDS)
/* More than what ranks do between two waits, mostly. */
#define WORK (4 * MILLISECONDS)
/* For so long a processor counts as shared with others. */
#define SHARED (1000 * MILLISECONDS)

static bool move(int to) {
    cpu_set_t allowed, there;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0 || !CPU_ISSET(to, &allowed))
        return false;
    CPU_ZERO(&there);
    CPU_SET(to, &there);
    if (sched_setaffinity(0, sizeof there, &there) < 0) return false;
    sched_setaffinity(0, sizeof allowed, &allowed);
    return true;
}

static int where(const ah_lane *lane, int rank) {
    return atomic_load_explicit(&lane->area[rank]->cpu, memory_order_relaxed) - 1;
}

/* Whether a rank that waits there has been delayed lately. */
static bool is_shared(const ah_lane *lane, int cpu, int64_t now) {
    for (int r = 0; r < lane->size; r++) {
        int64_t delayed = atomic_load_explicit(&lane->area[r]->delayed, memory_order_relaxed);
        if (where(lane, r) == cpu && delayed && now - delayed < SHARED) return true;
    }
    return false;
}

void ah_spread(ah_lane *lane, int64_t now) {
    int own = sched_getcpu();
    if (own < 0 || own >= CPU_SETSIZE) return;
    if (where(lane, lane->rank) != own)
        atomic_store_explicit(&lane->area[lane->rank]->cpu, own + 1, memory_order_relaxed);
    if (now < lane->next_move) return;
    lane->came_from = -1; /* it was right to move, or long ago */
    unsigned char ranks[CPU_SETSIZE] = {0};
    for (int r = 0; r < lane->size; r++) {
        int cpu = where(lane, r);
        if (cpu < 0 || cpu >= CPU_SETSIZE) return; /* somebody has never waited */
        if (cpu == own && r > lane->rank) return;  /* the highest rank moves */
        ranks[cpu]++;
    }
    cpu_set_t allowed;
    if (ranks[own] < 2) return;
    lane->next_move = now + MOVE;
    if (sched_getaffinity(0, sizeof allowed, &allowed) < 0) return;
    int to = own;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && ranks[cpu] < ranks[to]) to = cpu;
    if (ranks[to] + 2 > ranks[own] || is_shared(lane, to, now) || !move(to)) return;
    lane->came_from = own;
    atomic_store_explicit(&lane->area[lane->rank]->cpu, to + 1, memory_order_relaxed);
}

void ah_delayed(ah_lane *lane, int64_t began, int64_t now) {
    if (ah_neighbours(lane) && now - began < WORK) return;
    atomic_store_explicit(&lane->area[lane->rank]->delayed, now, memory_order_relaxed);
    if (lane->came_from >= 0 && move(lane->came_from))
        atomic_store_explicit(&lane->area[lane->rank]->cpu, lane->came_from + 1,
                              memory_order_relaxed);
    lane->came_from = -1;
    lane->next_move = now + SHARED;
}

uint64_t ah_neighbours(const ah_lane *lane) {
    int own = sched_getcpu();
    uint64_t found = 0;
    for (int r = 0; r < lane->size; r++)
        if (where(lane, r) == own) found |= AH_BIT(r);
    return found & lane->others;
}
