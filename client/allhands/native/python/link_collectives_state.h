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

typedef struct LinkCollectivesObject {
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
    PyObject *checksum;      /* makes the digest of a result */
    int rank, size;
    LinkPlans plans;
    uint8_t *staging;
    size_t staging_bytes;
    LinkCallLog log;
    /* The call that a thread is in until it has ended; 0: none. */
    unsigned long thread;
    uint64_t sequence; /* its number, or that of the latest such call */
    ah_kind kind;
    PyObject *operation; /* name of the composite call of which that is a step; NULL: of none */
    PyObject *label;     /* its label, or None; borrowed from its caller, who is in it */
    PyObject *how; /* it was carried out, and how many bytes this rank brought; NULL: none was */
    size_t nbytes;
    unsigned long long prepared; /* the last call for which the owner has prepared */
    /* The thread that waited, as soon as it had begun the last of them, for calls that were begun
     * and did not end here: it may as well be held. 0: none did. */
    unsigned long soon_waiting;
    double begun_at; /* when the latest call was begun, in seconds of the monotonic clock */
} LinkCollectivesObject;

typedef enum {
    LINK_WAIT,    /* its caller waits for its end: True */
    LINK_BEGIN,   /* it ends here if its peers come at once: its work, ended or not */
    LINK_CONFIRM, /* True if it ends within the time that a call holds the loop, else its work; made
                   * within a delay of the gate */
} LinkMode;

/* What the thread that makes a call does then; as Caller in engine/routes.py. */
typedef enum {
    LINK_BLOCKS,  /* it waits for the end of the call, at once */
    LINK_AWAITS,  /* its event loop goes on until the call has ended */
    LINK_GOES_ON, /* anything else */
} LinkCaller;

/* The first step of a composite call: True if the call has ended with it, else the work. */
typedef struct {
    PyObject *state;     /* a `FirstStep` of the owner; NULL: the call is none */
    PyObject *signature; /* CallSignature of the composite call, with its label */
    PyObject *number;    /* its 64 bits */
} LinkStep;

/* A call as its caller makes it. */
typedef struct {
    LinkArguments arguments;
    PyObject *const *rest; /* what follows the arrays: from these the owner makes it elsewhere */
    PyObject *timeout, *label;
    LinkMode mode;
    LinkCaller caller;
    PyObject *value; /* the result of its work */
    LinkStep step;
} LinkCallRequest;

/* Read the arguments of a call, as its method has them: 1; 0: they are not plain, or such calls do
 * not go this way; -1 with an exception. */
int link_collectives_read(LinkCollectivesObject *self, ah_kind kind, PyObject *const *args,
                          Py_ssize_t nargs, LinkMode mode, LinkCallRequest *request);

/* Whether a call may go this way, as far as its label and its size say. */
bool link_collectives_takes(const LinkCallRequest *request);

/* Carry out a call: what its mode says; False: nothing has happened, it is to go another way; NULL
 * with an exception. */
PyObject *link_collectives_run(LinkCollectivesObject *self, const LinkCallRequest *request);

/* Whether the caller of a call that is only begun goes on with other things: not, if it waited at
 * once for those before, and has come from them at once. */
bool link_collectives_goes_on(const LinkCollectivesObject *self);

/* Begin a call likewise; None: nothing has happened, or others are under way. */
PyObject *link_collectives_start(LinkCollectivesObject *self, LinkCallRequest *request);

#endif
