/* LinkCollectives: its state, which its files share. */
#ifndef ALLHANDS_LINK_COLLECTIVES_STATE_H
#define ALLHANDS_LINK_COLLECTIVES_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "python/link_call_log.h"
#include "python/link_gate.h"
#include "python/link_plan.h"

typedef struct {
    PyObject_HEAD
    LinkGate gate;
    PyObject *order;         /* a CallNumbering */
    PyObject *progress;      /* a GroupProgress */
    PyObject *lock, *unlock; /* of the order */
    PyObject *group;         /* the number of the group on the wire */
    PyObject *signatures;    /* of this rank's latest calls on the wire, by their numbers */
    PyObject *calls;         /* the same calls, as people read them */
    PyObject *completed;     /* the latest call that has ended, by group */
    PyObject *note_duration; /* hears how many seconds a call took */
    int rank, size;
    LinkPlans plans;
    uint8_t *staging;
    size_t staging_bytes;
    LinkCallLog log;
    /* The call that a thread is in; 0: none. */
    unsigned long thread;
    uint64_t sequence; /* its number, or that of the latest such call */
    ah_kind kind;
    PyObject *how; /* it was carried out, and how many bytes this rank brought; NULL: none was */
    size_t nbytes;
    unsigned long long prepared; /* the last call for which the owner has prepared */
} LinkCollectivesObject;

/* A call as its caller makes it. */
typedef struct {
    LinkArguments arguments;
    PyObject *const *rest; /* what follows the arrays: from these the owner makes it elsewhere */
    PyObject *timeout, *label;
    PyObject *value; /* of a call that is only begun, the result of its work; NULL: it is waited for
                      */
} LinkCallRequest;

/* Carry out a call: True; False: nothing has happened, it is to go another way; NULL with an
 * exception. */
PyObject *link_collectives_run(LinkCollectivesObject *self, const LinkCallRequest *request);

/* Begin a call, and end it if its peers come at once: its work, ended or not; None: nothing has
 * happened, it is to go another way; NULL with an exception. */
PyObject *link_collectives_start(LinkCollectivesObject *self, const LinkCallRequest *request);

#endif
