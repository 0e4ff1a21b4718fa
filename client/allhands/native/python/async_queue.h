/* The queue of a communicator: calls that have a number and not ended, in the order of numbers.
 *
 * In here is what they are; async_run.c runs them, async_calls.c has their type.
 */
#ifndef ALLHANDS_ASYNC_QUEUE_H
#define ALLHANDS_ASYNC_QUEUE_H

#include "python/comm_object_state.h"

typedef enum { CALL_WAITING, CALL_PUBLISHED, CALL_RUNNING, CALL_ENDED, CALL_FAILED } CallState;

#define PLAN_HEAD offsetof(Plan, messages)

typedef struct AsyncCall {
    PyObject_HEAD
    struct AsyncCall *next;
    CommObject *comm;
    PyObject *label, *value;
    PyObject *arrays;   /* until it has ended */
    PyObject *received; /* what a composite call has given, for Python to read; NULL: nothing */
    PyObject *error;    /* of one that failed; else NULL, as is what nobody asked for */
    PyObject *future;
    PyObject *name;                             /* of the operation */
    PyObject *dtype, *shape, *composite, *code; /* what plan and record borrow */
    int32_t instruction;
    CallState state;
    bool is_cancelled; /* before its turn: then it is skipped */
    bool is_ahead;     /* what this rank brings was posted before its turn */
    bool is_left;      /* to a thread: who waits does not run those before it */
    ah_kind kind;
    ah_variant variant;
    unsigned long waiting_thread; /* made it to wait for it at once; 0: none */
    unsigned long long sequence;
    int64_t timeout, deadline;
    size_t nbytes;
    void **places; /* of the plan, where a rank has a piece for each rank; else NULL */
    const void *in;
    void *out;
    ah_messages messages; /* of an exchange */
    _Alignas(Plan) char plan[PLAN_HEAD];
} AsyncCall;

static inline bool async_has_ended(const AsyncCall *call) { return call->state >= CALL_ENDED; }

static inline PyObject *async_label_or_null(const AsyncCall *call) {
    return call->label == Py_None ? NULL : call->label;
}

/* Keep a plan in a call, which has its communicator and `nbytes`; false: no memory. */
bool async_keep_plan(AsyncCall *call, const Plan *plan);
/* Make it that of the communicator, by who has the turn. */
void async_load_plan(const AsyncCall *call);

/* Append a call, whose reference becomes the queue's; or take the first one, and its reference. */
void async_append(CommObject *self, AsyncCall *call);
void async_remove_first(CommObject *self);

/* Where a call was made; borrowed, NULL: unknown. */
PyObject *async_call_site(const AsyncCall *call, int32_t *instruction);
/* The number of the latest; 0: none is queued. */
uint64_t async_last_number(const CommObject *self);
/* Another thread that is blocked in the latest of them under this label; 0: there is none. */
unsigned long async_waiting_thread(const CommObject *self, PyObject *label, uint64_t *sequence,
                                   const char **operation);
/* Thread, number, operation and label of the latest call of all, if it is one of them in which a
 * thread is blocked; else None. */
PyObject *async_waited_call(const CommObject *self);

int async_traverse(CommObject *self, visitproc visit, void *arg);
void async_clear(CommObject *self);

#endif
