/* The latest messages from point to point that were sent or received on their callers' threads. */
#ifndef ALLHANDS_P2P_LOG_H
#define ALLHANDS_P2P_LOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "p2p/p2p.h"
#include "python/call_totals.h"

#define LOG_MAX (1 << 24)

/* By ah_outcome and by ah_way. */
extern const char *const outcome_names[], *const way_names[];

typedef struct {
    uint64_t number;                /* 0: none */
    int64_t started, finished;      /* nanoseconds; 0: not yet */
    PyObject *dtype, *code, *label; /* owned; NULL: none */
    size_t count, nbytes;
    int32_t instruction; /* in the code */
    uint32_t tag;
    int16_t peer; /* place in the group; -1: whoever sends */
    bool receives;
    uint8_t outcome, way;
} LogEntry;

typedef struct {
    LogEntry *ring; /* NULL: none are kept */
    uint64_t last_number;
    size_t mask;
    CallTotals totals;
} P2PLog;

/* Room for so many; false: there is no memory. */
bool log_new(P2PLog *self, size_t wanted);
void log_free(P2PLog *self);

/* Write down what begins, with the GIL held, and return its number; 0: nothing is written down. */
uint64_t log_begin(P2PLog *self, const ah_message *message, PyObject *dtype, int64_t now,
                   PyObject *label);
/* Write down how it ended. */
void log_end(P2PLog *self, uint64_t number, const ah_message *message, int outcome);

/* The last so many, as a list of tuples. */
PyObject *log_rows(P2PLog *self, size_t last);

#endif
