#define _GNU_SOURCE
#include "comm/host.h"

#include <sched.h>
#include <sys/random.h>
#include <time.h>

int ah_cpu_count(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

uint64_t ah_new_nonce(void) {
    uint64_t nonce;
    return getrandom(&nonce, sizeof nonce, 0) == sizeof nonce ? nonce : (uint64_t)ah_now();
}

int64_t ah_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
