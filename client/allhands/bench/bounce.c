/* How long a cache line takes from one core to another: two threads, one on each, take turns in
 * writing to it. Prints nanoseconds one way. Compiled when `allhands bench` runs, if there is a
 * compiler: a loop in Python takes longer than what is measured. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUND_TRIPS = 5000, SAMPLES = 15 };

static _Alignas(64) atomic_int line;

static int stay_on(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *answer(void *core)
{
    if (stay_on(*(int *)core) != 0)
        exit(1);
    for (int i = 0; i < SAMPLES * ROUND_TRIPS; i++) {
        while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 1)
            ;
        atomic_store_explicit(&line, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    int mine = atoi(words[1]), theirs = atoi(words[2]);
    pthread_t other;
    if (stay_on(mine) != 0 || pthread_create(&other, NULL, answer, &theirs) != 0)
        return 1;
    double nanoseconds[SAMPLES];
    for (int sample = 0, i = 0; sample < SAMPLES; sample++) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int end = i + ROUND_TRIPS; i < end; i++) {
            atomic_store_explicit(&line, 2 * i + 1, memory_order_release);
            while (atomic_load_explicit(&line, memory_order_acquire) != 2 * i + 2)
                ;
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        nanoseconds[sample] = ((ended.tv_sec - begun.tv_sec) * 1e9
                               + (ended.tv_nsec - begun.tv_nsec)) / (2.0 * ROUND_TRIPS);
    }
    pthread_join(other, NULL);
    qsort(nanoseconds, SAMPLES, sizeof *nanoseconds, compare);
    printf("%.1f\n", nanoseconds[SAMPLES / 2]);
    return 0;
}
