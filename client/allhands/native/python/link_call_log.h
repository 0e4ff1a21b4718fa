/* The latest calls over links that were made on their callers' threads, found by their numbers. */
#ifndef ALLHANDS_LINK_CALL_LOG_H
#define ALLHANDS_LINK_CALL_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "python/call_totals.h"
#include "python/start_times.h"

typedef struct {
    uint64_t sequence;                /* 0: none, or it went on elsewhere */
    int64_t started, finished;        /* nanoseconds; 0: not yet */
    PyObject *signature, *how, *code; /* owned; NULL: none */
    size_t nbytes;
    int32_t instruction; /* in the code */
} LinkCallEntry;

typedef struct {
    LinkCallEntry *ring; /* NULL: none are kept */
    size_t mask;
    uint64_t newest;
    StartTimes start_times;
    CallTotals totals;
} LinkCallLog;

/* Room for so many; false: there is no memory. */
bool link_log_new(LinkCallLog *self, size_t wanted);
void link_log_free(LinkCallLog *self);

/* Write down what begins, with the GIL held. */
void link_log_begin(LinkCallLog *self, uint64_t sequence, PyObject *signature, PyObject *how,
                    size_t nbytes);
/* Write down that it has ended well. */
void link_log_end(LinkCallLog *self, uint64_t sequence);
/* It goes on elsewhere, and is written down there. */
void link_log_drop(LinkCallLog *self, uint64_t sequence);

/* The last so many, as a list of tuples. */
PyObject *link_log_rows(LinkCallLog *self, size_t last);
/* (file, line, function) of a call; None: unknown. */
PyObject *link_log_site(LinkCallLog *self, uint64_t sequence);

#endif
