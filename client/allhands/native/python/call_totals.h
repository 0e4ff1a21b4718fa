/* Bytes and time of the calls that ended well, as counted with the GIL held. */
#ifndef ALLHANDS_CALL_TOTALS_H
#define ALLHANDS_CALL_TOTALS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

typedef struct {
    uint64_t nbytes;
    int64_t nanoseconds;
} CallTotals;

static inline void call_totals_add(CallTotals *self, size_t nbytes, int64_t nanoseconds) {
    self->nbytes += nbytes;
    self->nanoseconds += nanoseconds;
}

static inline PyObject *call_totals_tuple(const CallTotals *self) {
    return Py_BuildValue("Kd", (unsigned long long)self->nbytes, (double)self->nanoseconds / 1e9);
}

#endif
