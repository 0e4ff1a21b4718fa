/* Ranks of a stress test, as threads or as forked processes, and words between them.
 *
 * A test includes this after its own `world` and `rank_state` (with the fields that are used here)
 * and the macro PROGRAM, its name; it has to define `print_call`, `memory_bytes` and `live`.
 */
#ifndef ALLHANDS_TEST_RANKS_H
#define ALLHANDS_TEST_RANKS_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/layout.h"

#define MILLISECONDS INT64_C(1000000)
#define HEAP_BYTES ((size_t)64 << 20)
#define BOARD_BYTES 4096
#define KILLED 900 /* on the board: a rank is killed on purpose */

/* One rank of a world, and what it does there. */
typedef struct {
    const world *world;
    int rank;
    program run;
} start;

/* The call that a rank is in, for the text of a failure. */
static void print_call(const rank_state *me);
/* Bytes of the memory that each rank shares with the others. */
static size_t memory_bytes(const world *w);
/* Be a rank, from its joining to its leaving. */
static void live(const start *begin);

static const char *stage = "";

static void fail(const rank_state *me, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, PROGRAM ": %s: ", stage);
    if (me) {
        fprintf(stderr, "rank %d of %d", me->rank, me->world->size);
        print_call(me);
        fputs(": ", stderr);
    }
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

#define CHECK(me, condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) fail(me, "line %d: %s", __LINE__, #condition);                           \
    } while (0)

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void *shared(size_t nbytes) {
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

/* ---- words between ranks, apart from what is under test */

/* So many ranks come here before any leaves. */
static inline void line_up_some(const rank_state *me, int slot, int parties) {
    _Atomic int *count = &me->world->board[slot];
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < parties) sched_yield();
}

/* All ranks come here before any leaves. */
static void line_up(const rank_state *me, int slot) { line_up_some(me, slot, me->world->size); }

static void tell(const rank_state *me, int slot) { atomic_store(&me->world->board[slot], 1); }

static void hear(const rank_state *me, int slot) {
    while (!atomic_load(&me->world->board[slot])) sched_yield();
}

/* Tell the others this rank's process, and wait for theirs. */
static void learn_pids(const world *w, int rank, pid_t pids[]) {
    atomic_store(&w->pids[rank], (int)getpid());
    for (int r = 0; r < w->size; r++) {
        int pid;
        while (!(pid = atomic_load(&w->pids[r]))) sched_yield();
        pids[r] = pid;
    }
}

/* ---- a world, from beginning to end */

static void *live_in_thread(void *begin) {
    live(begin);
    return NULL;
}

/* Wait for the ranks' ends; whatever fails ends the test. */
static void join_ranks(const char *name, const world *w, const pthread_t threads[],
                       const pid_t children[]) {
    for (int r = 0; r < w->size; r++) {
        int status = 0;
        if (!w->forks)
            pthread_join(threads[r], NULL);
        else if (waitpid(children[r], &status, 0) < 0)
            abort();
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (status && !(killed && atomic_load(&w->board[KILLED]))) {
            fprintf(stderr, PROGRAM ": %s: rank %d ended with %#x\n", name, r, status);
            for (int other = r; other < w->size; other++) kill(children[other], SIGKILL);
            exit(1);
        }
    }
}

static void run_world(const char *name, world *w, program run) {
    start begins[AH_MAX_RANKS];
    pthread_t threads[AH_MAX_RANKS];
    pid_t children[AH_MAX_RANKS];
    size_t bytes = memory_bytes(w);
    stage = name;
    w->board = shared(BOARD_BYTES);
    w->pids = shared(BOARD_BYTES);
    for (int r = 0; r < w->size; r++) {
        w->memory[r] = shared(bytes);
        w->heap[r] = shared(HEAP_BYTES);
        begins[r] = (start){w, r, run};
    }
    fflush(NULL);
    for (int r = 0; r < w->size; r++) {
        if (!w->forks) {
            if (pthread_create(&threads[r], NULL, live_in_thread, &begins[r])) abort();
        } else if ((children[r] = fork()) == 0) {
            live(&begins[r]);
            exit(0);
        }
    }
    join_ranks(name, w, threads, children);
    for (int r = 0; r < w->size; r++) {
        munmap(w->memory[r], bytes);
        munmap(w->heap[r], HEAP_BYTES);
    }
    munmap(w->board, BOARD_BYTES);
    munmap(w->pids, BOARD_BYTES);
}

/* ---- the command line: threads|forks [rounds [seed]] */

typedef struct {
    bool forks;
    int rounds;
    uint64_t seed;
} arguments;

static arguments read_arguments(int argc, char **argv, int rounds) {
    bool forks = argc > 1 && strcmp(argv[1], "forks") == 0;
    if (argc < 2 || (!forks && strcmp(argv[1], "threads"))) {
        fprintf(stderr, "usage: %s threads|forks [rounds [seed]]\n", argv[0]);
        exit(2);
    }
    return (arguments){forks, argc > 2 ? atoi(argv[2]) : rounds,
                       argc > 3 ? (uint64_t)atoll(argv[3]) : 1};
}

#endif
