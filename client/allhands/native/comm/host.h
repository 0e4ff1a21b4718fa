/* The host: its clock and processors, numbers that no other process has, and how long to spin. */
#ifndef ALLHANDS_HOST_H
#define ALLHANDS_HOST_H

#include "comm/layout.h"

/* Nanoseconds on CLOCK_MONOTONIC. */
int64_t ah_now(void);
/* How many processors this process may run on. */
int ah_cpu_count(void);
/* A number that no other process has. */
uint64_t ah_new_nonce(void);

/* Between looks of a spinning thread. */
static inline void ah_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* How long to yield, in nanoseconds, before sleep: a sleeper that has a processor to itself is slow
 * to wake, so not before others can have moved what they move meanwhile. */
static inline int64_t ah_yield_time(size_t nbytes) {
    const size_t most = (size_t)64 << 20, slowest = 4; /* bytes a nanosecond */
    return 200000 + (int64_t)(ah_min(nbytes, most) / slowest);
}

#endif
