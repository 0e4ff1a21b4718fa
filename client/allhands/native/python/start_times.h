/* When calls began, for heartbeats: of some of a period's calls, as recorder/call_samples.py. */
#ifndef ALLHANDS_START_TIMES_H
#define ALLHANDS_START_TIMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define STARTS_KEPT 64

/* Those whose numbers divide by `stride`, which doubles when they become too many. So ranks whose
 * periods differ a little report the same calls. */
typedef struct {
    uint64_t stride; /* a power of two */
    int count;
    uint64_t sequence[STARTS_KEPT];
    int64_t at[STARTS_KEPT]; /* nanoseconds of the monotonic clock */
} StartTimes;

void start_times_init(StartTimes *self);

void start_times_add(StartTimes *self, uint64_t sequence, int64_t at);

static inline void start_times_note(StartTimes *self, uint64_t sequence, int64_t at) {
    if ((sequence & (self->stride - 1)) == 0) start_times_add(self, sequence, at);
}

/* The pairs of number and seconds, as a list; they are forgotten. NULL with an exception. */
PyObject *start_times_take(StartTimes *self);

#endif
