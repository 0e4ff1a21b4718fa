/* The monotonic clock, for times that are recorded: read at less than half the price.
 *
 * The processor counts ticks, and clock_now makes nanoseconds of them with what the system's clock
 * said at most a second ago. Where ticks cannot be trusted it asks the system every time. With the
 * GIL held only.
 */
#ifndef ALLHANDS_CLOCK_H
#define ALLHANDS_CLOCK_H

#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#define AH_TICKS() ((uint64_t)__rdtsc())
#elif defined(__aarch64__)
static inline uint64_t ah_counter(void) {
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#define AH_TICKS() ah_counter()
#endif

typedef struct {
    uint64_t ticks; /* when it was `ns` */
    int64_t ns;
    uint64_t rate;  /* nanoseconds of a tick, times 2^32 */
    uint64_t valid; /* for so many ticks; 0: not known yet, or never */
} ah_clock;

extern ah_clock clock_rate;

/* Ask the system, and learn from it what ticks are. */
int64_t clock_calibrate(void);

static inline int64_t clock_now(void) {
#ifdef AH_TICKS
    uint64_t past = AH_TICKS() - clock_rate.ticks;
    if (past < clock_rate.valid) return clock_rate.ns + (int64_t)(past * clock_rate.rate >> 32);
#endif
    return clock_calibrate();
}

#endif
