#include "python/start_times.h"

void start_times_init(StartTimes *self) {
    self->stride = 1;
    self->count = 0;
}

void start_times_add(StartTimes *self, uint64_t sequence, int64_t at) {
    if (self->count == STARTS_KEPT) {
        self->stride *= 2;
        self->count = 0;
        for (int old = 0; old < STARTS_KEPT; old++)
            if ((self->sequence[old] & (self->stride - 1)) == 0) {
                self->sequence[self->count] = self->sequence[old];
                self->at[self->count++] = self->at[old];
            }
        if (sequence & (self->stride - 1)) return;
    }
    self->sequence[self->count] = sequence;
    self->at[self->count++] = at;
}

PyObject *start_times_take(StartTimes *self) {
    int count = self->count;
    PyObject *list = PyList_New(count);
    for (int at = 0; list != NULL && at < count; at++) {
        PyObject *pair =
            Py_BuildValue("Kd", (unsigned long long)self->sequence[at], (double)self->at[at] / 1e9);
        if (pair == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, at, pair);
    }
    /* Sparse because an earlier period had more: closer again. */
    if (count < STARTS_KEPT / 4 && self->stride > 1) self->stride /= 2;
    self->count = 0;
    return list;
}
