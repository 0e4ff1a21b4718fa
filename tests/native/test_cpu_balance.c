/* Ranks that wait on a processor with more of them than another has move over, and only they. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/cpu_balance.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "test_cpu_balance:%d: not so: %s\n", __LINE__, #what);                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { RANKS = 4 };

static ah_area *areas[RANKS];
static cpu_set_t all;

/* Rank `rank` of four, which lately waited on these processors. */
static ah_comm *lane_of(int rank, const int cpus[RANKS]) {
    static const ah_limits limits = {.slot_max = 64, .chunk = 64, .attach_min = SIZE_MAX};
    void *given[RANKS];
    pid_t pids[RANKS];
    for (int r = 0; r < RANKS; r++) {
        size_t nbytes = ah_area_bytes(RANKS, &limits);
        if (!areas[r])
            areas[r] =
                mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (areas[r] == MAP_FAILED) abort();
        memset(areas[r], 0, sizeof *areas[r]);
        atomic_store(&areas[r]->cpu, cpus[r] + 1);
        given[r] = areas[r];
        pids[r] = getpid();
    }
    ah_comm *comm = ah_comm_new(rank, RANKS, given, pids, NULL, 0, &limits);
    if (!comm) abort();
    return comm;
}

static void go_to(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one)) abort();
}

static bool may_run_on(const cpu_set_t *wanted) {
    cpu_set_t now;
    return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, wanted);
}

/* Let rank `rank` wait on `here`, free to run anywhere; return where it is then said to be. */
static int waits(int rank, int here, const int cpus[RANKS], int64_t now, int64_t delayed,
                 int of_rank) {
    ah_comm *comm = lane_of(rank, cpus);
    if (delayed) atomic_store(&areas[of_rank]->delayed, delayed);
    go_to(here);
    if (sched_setaffinity(0, sizeof all, &all)) abort();
    if (sched_getcpu() != here) return here; /* moved by the system: says nothing */
    ah_balance_cpus(comm, now);
    CHECK(may_run_on(&all));
    int said = atomic_load(&areas[rank]->cpu) - 1;
    ah_comm_free(comm);
    return said;
}

static void moves(int here, int there) {
    const int now = 1000000000;
    const int three[RANKS] = {here, there, here, here};
    const int even[RANKS] = {here, there, there, here};
    const int four[RANKS] = {here, here, here, here};
    const int unknown[RANKS] = {here, there, here, -1};
    bool moved = false;
    for (int i = 0; i < 100 && !moved; i++) moved = waits(3, here, three, now, 0, 0) == there;
    CHECK(moved);
    moved = false;
    for (int i = 0; i < 100 && !moved; i++) moved = waits(3, here, four, now, 0, 0) != here;
    CHECK(moved);
    CHECK(waits(2, here, three, now, 0, 0) ==
          here); /* the highest rank there moves, not this one */
    CHECK(waits(3, here, even, now, 0, 0) == here);
    CHECK(waits(2, here, unknown, now, 0, 0) == here);
    CHECK(waits(3, here, three, now, now - 1000, 1) == here); /* others need the processor there */
}

/* Who is delayed where it has moved to goes back, and stays for a while. */
static void comes_back(int here, int there) {
    const int64_t now = 1000000000;
    const int three[RANKS] = {here, there, here, here};
    ah_comm *comm = NULL;
    int said = here;
    for (int i = 0; i < 100 && said != there; i++) {
        ah_comm_free(comm);
        comm = lane_of(3, three);
        go_to(here);
        if (sched_setaffinity(0, sizeof all, &all)) abort();
        ah_balance_cpus(comm, now);
        said = atomic_load(&areas[3]->cpu) - 1;
    }
    CHECK(said == there);
    ah_record_delay(comm, now, now + 1000000); /* another rank is there, and may have had work */
    CHECK(atomic_load(&areas[3]->cpu) - 1 == there && !atomic_load(&areas[3]->delayed));
    ah_record_delay(comm, now, now + 5000000); /* not so much */
    CHECK(atomic_load(&areas[3]->cpu) - 1 == here);
    CHECK(may_run_on(&all));
    atomic_store(&areas[3]->delayed, 0);
    for (int i = 0; i < 20; i++) {
        ah_balance_cpus(comm, now + 100 * 1000000);
        int at = atomic_load(&areas[3]->cpu) - 1;
        CHECK(at == sched_getcpu() || at == here || at == there);
        CHECK(comm->previous_cpu < 0);
    }
    ah_comm_free(comm);
}

/* Where a rank may run on one processor only, it stays there. */
static void obeys(int here, int there) {
    const int three[RANKS] = {here, there, here, here};
    cpu_set_t one;
    ah_comm *comm = lane_of(3, three);
    go_to(here);
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    ah_balance_cpus(comm, 1000000000);
    CHECK(may_run_on(&one) && sched_getcpu() == here);
    CHECK(atomic_load(&areas[3]->cpu) - 1 == here);
    CHECK(ah_ranks_on_my_cpu(comm) == (AH_BIT(0) | AH_BIT(2)));
    ah_comm_free(comm);
}

int main(void) {
    int cpus[2], found = 0;
    if (sched_getaffinity(0, sizeof all, &all)) abort();
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &all)) cpus[found++] = cpu;
    if (found < 2) {
        printf("test_cpu_balance: one processor: nowhere to go\n");
        return 0;
    }
    moves(cpus[0], cpus[1]);
    moves(cpus[1], cpus[0]);
    comes_back(cpus[0], cpus[1]);
    obeys(cpus[0], cpus[1]);
    printf("test_cpu_balance: all right\n");
    return 0;
}
