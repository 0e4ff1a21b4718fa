/* AtomicCalls: its state, which its files share.
 *
 * atomic_calls.c has the object and its calls over a communicator, atomic_links.c those over links.
 */
#ifndef ALLHANDS_ATOMIC_CALLS_STATE_H
#define ALLHANDS_ATOMIC_CALLS_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "collectives/kinds.h"

struct CommObject;
struct LinkCollectivesObject;

typedef enum {
    ATOMIC_IDLE,
    ATOMIC_RUNNING,
    /* And not queued yet. The queue says when it is, for it may go on before the call's thread. */
    ATOMIC_FAILED,
} AtomicState;

/* Stands for the communicators that a resilient group has, one after the other, or for its links. A
 * call on it is what `membership/resilient.py` makes of one, under the same two numbers: the call,
 * and a barrier. So a rank that calls here, and one whose calls are queued, fit together. What
 * fails is handed over to the queue, with a copy of what the outputs were. */
typedef struct AtomicObject {
    PyObject_HEAD
    struct CommObject *comm;             /* NULL: calls go over the links */
    struct LinkCollectivesObject *links; /* without both calls take the other way */
    PyObject *on_failure, *on_ended;     /* take a failed call over, and wait for its end */
    PyObject *make_barrier; /* makes the next call over links where the core does not */
    PyObject *on_idle;      /* hears that a call is over, if that is awaited */
    uint64_t last_number;   /* of the group's calls as callers see them */
    uint64_t last_call;     /* number of the latest one over the communicator */
    PyObject *last_how;     /* the latest one over links was carried out; NULL: there was none */
    ah_kind last_kind;
    size_t last_bytes;
    Py_ssize_t queued;           /* calls that have a number and have not ended */
    unsigned long long computed; /* calls that have a result; since they were asked for */
    unsigned long long returned; /* calls that all ranks are known to have the result of */
    unsigned long long failures; /* calls that were handed over */
    int64_t timeout_ns, confirm_ns;
    AtomicState state;
    char is_awaited; /* the queue waits for the end of a call over links */
    char *backup; /* also for a call that was taken over: none begins here before that has ended */
    size_t backup_bytes, backup_room;
    const char *name; /* of the method that was called, and what it was called with */
    PyObject *const *args;
    Py_ssize_t nargs;
} AtomicObject;

typedef struct {
    char *at;
    size_t nbytes;
} AtomicOutput;

/* What is known of a call that has failed. */
typedef struct {
    uint64_t number; /* of the call; its barrier has the next one */
    bool is_computed, was_left;
    PyObject *confirming; /* the work of its barrier over links; NULL: there is none */
} AtomicFailure;

/* Copy the outputs before a call; false: there is no memory. */
bool atomic_back_up(AtomicObject *self, const AtomicOutput outputs[], int count);

/* Hand a failed call over to the queue, and wait for its end there. The exception is set. */
PyObject *atomic_hand_over(AtomicObject *self, const AtomicFailure *failure,
                           const AtomicOutput outputs[], int count);

/* Make a call over the links, if they take it: as the methods of LinkCollectives. */
PyObject *atomic_call_over_links(AtomicObject *self, ah_kind kind);

#endif
