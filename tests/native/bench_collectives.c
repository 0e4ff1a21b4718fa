/* Latency of the collectives between forked ranks, microseconds (median of rank 0), and what a call
 * costs each rank in processor time and in context switches, its own and others'; not a test.
 *
 *     bench_collectives OPERATIONS RANKS SIZES [key=value...]
 *     bench_collectives all_reduce,barrier 2,4 8,1K,64K,1M slot_max=8K chunk=256K attach_min=64K
 *                 heap=1 attach=0 huge=1 pin=1 seconds=0.3 type=f32|f16|bf16|f64|i32
 *
 * SIZES are bytes of a rank's contribution (all_gather: per rank; reduce_scatter, all_to_all: in
 * all). From 64 KiB up data is written anew before every call, outside of the time, as torch or
 * NumPy programs do; below, calls are timed in batches.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives/collectives.h"

enum { MOST = 4000 };

static struct {
    bool heap, attach, huge, pin;
    double seconds;
    ah_type type;
    ah_limits limits;
    bool custom[3];
} options = {.attach = true, .huge = true, .seconds = 0.3, .type = AH_FLOAT32};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void *map(size_t nbytes, int flags) {
    void *at =
        mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    if (options.huge) madvise(at, nbytes, MADV_HUGEPAGE);
    return at;
}

static int by_size(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

typedef struct {
    const char *name;
    int size;
    size_t nbytes;
    ah_limits limits;
    void *area[AH_MAX_RANKS], *heap[AH_MAX_RANKS];
    size_t heap_bytes;
    _Atomic int *pids;
} job;

static ah_comm *comm;
static uint64_t sequence;
static ah_variant variant;

static void nothing(void *owner) { (void)owner; }

static void call(const job *j, int rank, char *x, char *y) {
    ah_call c = {.sequence = ++sequence,
                 .signature = 1,
                 .deadline = INT64_MAX,
                 .pause = nothing,
                 .resume = nothing};
    const size_t n = j->nbytes, each = n / (size_t)j->size / 8 * 8, size = (size_t)j->size;
    const void *in[AH_MAX_RANKS];
    void *out[AH_MAX_RANKS];
    size_t sizes[AH_MAX_RANKS];
    ah_status status;
    const bool gathers = strcmp(j->name, "all_gather") == 0 || strcmp(j->name, "gather") == 0;
    for (size_t r = 0; r < size; r++) {
        in[r] = x + r * each;
        out[r] = y + r * (gathers ? n : each);
        sizes[r] = each;
    }
    if (strcmp(j->name, "barrier") == 0)
        status = ah_barrier(comm, &c);
    else if (strcmp(j->name, "all_reduce") == 0)
        status = ah_all_reduce(comm, &c, AH_SUM, options.type, x, n / ah_type_size(options.type));
    else if (strcmp(j->name, "reduce") == 0)
        status = ah_reduce(comm, &c, AH_SUM, options.type, x, y, n / ah_type_size(options.type), 0);
    else if (strcmp(j->name, "reduce_scatter") == 0)
        status = ah_reduce_scatter(comm, &c, AH_SUM, options.type, in, y,
                                   each / ah_type_size(options.type));
    else if (strcmp(j->name, "broadcast") == 0)
        status = ah_broadcast(comm, &c, x, n, 0);
    else if (strcmp(j->name, "all_gather") == 0)
        status = ah_all_gather(comm, &c, x, out, n);
    else if (strcmp(j->name, "gather") == 0)
        status = ah_gather(comm, &c, x, out, n, 0);
    else if (strcmp(j->name, "scatter") == 0)
        status = ah_scatter(comm, &c, in, y, each, 0);
    else if (strcmp(j->name, "all_to_all") == 0)
        status = ah_all_to_all(comm, &c, in, sizes, out, sizes);
    else if (strcmp(j->name, "scan") == 0)
        status = ah_scan(comm, &c, AH_SUM, options.type, x, n / ah_type_size(options.type));
    else if (strcmp(j->name, "exscan") == 0)
        status = ah_exscan(comm, &c, AH_SUM, options.type, x, n / ah_type_size(options.type));
    else
        exit(2);
    if (status != AH_OK) {
        fprintf(stderr, "rank %d: status %d\n", rank, status);
        exit(1);
    }
    variant = c.variant;
}

static void meet(void) {
    ah_call c = {.sequence = ++sequence, .signature = 2, .deadline = INT64_MAX};
    if (ah_barrier(comm, &c) != AH_OK) exit(1);
}

/* Rank 0 says whether to go on. */
static bool go_on(int rank, bool more) {
    char word = more;
    ah_call c = {.sequence = ++sequence, .signature = 3, .deadline = INT64_MAX};
    (void)rank;
    if (ah_broadcast(comm, &c, &word, 1, 0) != AH_OK) exit(1);
    return word;
}

static double cpu_of(const struct rusage *usage) {
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e6 +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void measure(const job *j, int rank) {
    static double times[MOST];
    static const char *const variants[] = {"-",         "slots",  "staged", "swap",
                                           "mailboxes", "direct", "attach"};
    const size_t room = j->nbytes + 64, many = j->nbytes * (size_t)j->size + 64;
    char *x, *y;
    pid_t pids[AH_MAX_RANKS];
    atomic_store(&j->pids[rank], (int)getpid());
    for (int r = 0; r < j->size; r++)
        while (!(pids[r] = atomic_load(&j->pids[r]))) {
        }
    sequence = 0;
    comm = ah_comm_new(rank, j->size, j->area, pids, options.heap ? j->heap : NULL, j->heap_bytes,
                       &j->limits);
    if (options.pin) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(rank % (int)sysconf(_SC_NPROCESSORS_ONLN), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    meet();
    if (options.attach && !ah_comm_probe_attach(comm)) exit(1);
    if (options.heap) {
        x = j->heap[rank];
        y = x + (room + 4095) / 4096 * 4096;
    } else {
        x = map(room, MAP_PRIVATE);
        y = map(many, MAP_PRIVATE);
    }
    memset(x, 0, room);
    memset(y, 0, many);
    const bool large = j->nbytes >= 65536;
    const int batch = large ? 1 : 200;
    int count = 0;
    for (int i = 0; i < 3 * batch; i++) call(j, rank, x, y);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    int64_t end = now() + (int64_t)(options.seconds * 1e9);
    do {
        if (large)
            for (size_t i = 0; i + 8 <= j->nbytes; i += 8) *(volatile uint64_t *)(x + i) = i;
        meet();
        int64_t begun = now();
        for (int i = 0; i < batch; i++) call(j, rank, x, y);
        times[count++] = (double)(now() - begun) / batch / 1000;
    } while (go_on(rank, count < MOST && now() < end));
    getrusage(RUSAGE_SELF, &after);
    if (rank == 0) {
        double calls = (double)count * (batch + 2);
        qsort(times, (size_t)count, sizeof *times, by_size);
        double median = times[count / 2];
        printf("%-14s %2d ranks %10zu B  %9.2f us  (%.2f-%.2f, %d)  %6.2f GB/s  %-9s "
               "%8.2f us CPU  %6.2f + %.2f switches\n",
               j->name, j->size, j->nbytes, median, times[count / 10], times[count * 9 / 10], count,
               (double)j->nbytes / median / 1000, variants[variant],
               (cpu_of(&after) - cpu_of(&before)) / calls,
               (double)(after.ru_nvcsw - before.ru_nvcsw) / calls,
               (double)(after.ru_nivcsw - before.ru_nivcsw) / calls);
        fflush(stdout);
    }
}

static size_t bytes_of(const char *text) {
    char *end;
    size_t n = strtoull(text, &end, 10);
    return *end == 'K' ? n << 10 : *end == 'M' ? n << 20 : *end == '-' ? SIZE_MAX : n;
}

static void run(const char *name, int size, size_t nbytes) {
    job j = {.name = name, .size = size, .nbytes = nbytes};
    j.limits = ah_default_limits(size);
    if (options.custom[0]) j.limits.slot_max = options.limits.slot_max;
    if (options.custom[1]) j.limits.chunk = options.limits.chunk;
    if (options.custom[2]) j.limits.attach_min = options.limits.attach_min;
    j.heap_bytes = (nbytes * (size_t)(size + 1) + 8191 + 128) / 4096 * 4096;
    size_t area = ah_area_bytes(size, &j.limits);
    for (int r = 0; r < size; r++) {
        j.area[r] = map(area, MAP_SHARED);
        if (options.heap) j.heap[r] = map(j.heap_bytes, MAP_SHARED);
    }
    j.pids = map(4096, MAP_SHARED);
    fflush(NULL);
    for (int r = 0; r < size; r++)
        if (fork() == 0) {
            measure(&j, r);
            exit(0);
        }
    for (int r = 0; r < size; r++) {
        int status;
        if (wait(&status) < 0 || status) exit(1);
    }
    for (int r = 0; r < size; r++) {
        munmap(j.area[r], area);
        if (options.heap) munmap(j.heap[r], j.heap_bytes);
    }
    munmap(j.pids, 4096);
}

static void limit(int which, size_t *limit, const char *value) {
    options.custom[which] = true;
    *limit = bytes_of(value);
}

static void option(const char *text) {
    const char *value = strchr(text, '=');
    if (!value++) exit(2);
    if (!strncmp(text, "heap", 4))
        options.heap = atoi(value);
    else if (!strncmp(text, "slot_max", 8))
        limit(0, &options.limits.slot_max, value);
    else if (!strncmp(text, "chunk", 5))
        limit(1, &options.limits.chunk, value);
    else if (!strncmp(text, "attach_min", 10))
        limit(2, &options.limits.attach_min, value);
    else if (!strncmp(text, "attach", 6))
        options.attach = atoi(value);
    else if (!strncmp(text, "huge", 4))
        options.huge = atoi(value);
    else if (!strncmp(text, "pin", 3))
        options.pin = atoi(value);
    else if (!strncmp(text, "seconds", 7))
        options.seconds = atof(value);
    else if (!strcmp(text, "type=f16"))
        options.type = AH_FLOAT16;
    else if (!strcmp(text, "type=bf16"))
        options.type = AH_BFLOAT16;
    else if (!strcmp(text, "type=f64"))
        options.type = AH_FLOAT64;
    else if (!strcmp(text, "type=i32"))
        options.type = AH_INT32;
    else if (strcmp(text, "type=f32"))
        exit(2);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s OPERATIONS RANKS SIZES [key=value...]\n", argv[0]);
        return 2;
    }
    for (int i = 4; i < argc; i++) option(argv[i]);
    char *operations, *ranks, *sizes;
    for (char *o = strtok_r(argv[1], ",", &operations); o; o = strtok_r(NULL, ",", &operations)) {
        char *all_ranks = strdup(argv[2]);
        for (char *r = strtok_r(all_ranks, ",", &ranks); r; r = strtok_r(NULL, ",", &ranks)) {
            char *all_sizes = strdup(argv[3]);
            for (char *s = strtok_r(all_sizes, ",", &sizes); s; s = strtok_r(NULL, ",", &sizes))
                run(o, atoi(r), bytes_of(s));
            free(all_sizes);
        }
        free(all_ranks);
    }
    return 0;
}
