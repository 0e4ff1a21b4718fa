#define _GNU_SOURCE
#include "python/clock.h"

#include <stdbool.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define LEAST_NS (5 * 1000000LL)   /* between two looks from which a rate is told */
#define VALID_NS (500 * 1000000LL) /* in which a clock that is being set right moves by 0.25 ms */
#define NARROW_NS 2000             /* a look that took longer was interrupted */

ah_clock clock_rate;

static int64_t system_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

#ifdef AH_TICKS

static bool is_steady(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1; /* "invariant TSC" */
#else
    return true;
#endif
}

int64_t clock_calibrate(void) {
    static enum { UNKNOWN, STEADY, UNFIT } ticks;
    static uint64_t first_ticks;
    static int64_t first_ns;
    if (ticks == UNKNOWN) ticks = is_steady() ? STEADY : UNFIT;
    if (ticks == UNFIT) return system_ns();
    int64_t before = system_ns();
    uint64_t count = AH_TICKS();
    int64_t now = system_ns();
    if (now - before > NARROW_NS) return now;
    int64_t past = before - first_ns;
    if (first_ns == 0 || past < LEAST_NS) {
        if (first_ns == 0) {
            first_ns = before;
            first_ticks = count;
        }
        return now;
    }
    uint64_t counted = count - first_ticks;
    double rate = (double)past / (double)counted;
    double known = (double)clock_rate.rate / 4294967296.0;
    /* A tick is 0.2 ns to 1 ns on one kind of processor, up to 50 ns on the other. A rate that is
     * suddenly another one is that of a machine that was moved, or of a counter that stood still.
     */
    if (!(rate > 0.1) || !(rate < 100) ||
        (known > 0 && !(rate > known * 0.99 && rate < known * 1.01))) {
        ticks = UNFIT;
        clock_rate.valid = 0;
        return now;
    }
    clock_rate = (ah_clock){
        .ticks = count,
        .ns = before + (now - before) / 2,
        .rate = (uint64_t)(rate * 4294967296.0),
        .valid = (uint64_t)(VALID_NS / rate), /* so their product fits in 63 bits */
    };
    first_ns = before;
    first_ticks = count;
    return now;
}

#else

int64_t clock_calibrate(void) { return system_ns(); }

#endif
