/* ShmComm: its state, the plan of a call, and records of calls, which its files share.
 *
 * inline_calls.c has the calls on the caller's thread, queued_calls.c those from the queue,
 * async_calls.c those that nobody waits for at once, request_object.c persistent ones; all take the
 * turn (turn.c) and run a plan (call_run.c).
 */
#ifndef ALLHANDS_COMM_OBJECT_STATE_H
#define ALLHANDS_COMM_OBJECT_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "collectives/collectives.h"
#include "collectives/kinds.h"
#include "python/arrays.h"
#include "python/call_totals.h"
#include "python/kind_names.h"
#include "python/segment_object.h"
#include "python/start_times.h"

#define NANOSECONDS 1000000000LL
#define WAITS 64
#define RECORDS_MOST (1 << 24)
#define SHAPE_LONG 14 /* in place of the number of dimensions: there is a tuple */
#define SHAPE_NONE 15

/* What one call does, checked: the arguments of collectives.h. */
typedef struct {
    ah_kind kind;
    ah_type type;     /* of what is reduced */
    uint64_t typesig; /* equal on all ranks exactly when their dtypes are */
    int op;
    int root;
    size_t count; /* elements of the array, or of each rank's block */
    size_t itemsize;
    PyObject *dtype; /* borrowed; NULL: none */
    int ndim;        /* of what this rank brings; SHAPE_NONE: ranks may differ in its shape */
    Py_ssize_t dims[SHAPE_DIMS];
    PyObject *shape;             /* borrowed; a shape that does not fit there, else NULL */
    uint64_t shapesig, labelsig; /* equal on all ranks exactly when their shapes, and labels, are */
    PyObject *call; /* borrowed; a composite call that is carried out as this one: what Python has
                     * to say of it. NULL: none */
    const char *call_name; /* its operation */
    ah_messages messages;  /* of an exchange */
    /* Last, because calls that wait keep only the items of their ranks: async_queue.c. */
    const void *in[AH_MAX_RANKS];
    void *out[AH_MAX_RANKS];
    size_t send[AH_MAX_RANKS], recv[AH_MAX_RANKS]; /* bytes; only of all_to_all */
} Plan;

static inline const char *plan_name(const Plan *plan) {
    return plan->call ? plan->call_name : kind_names[plan->kind];
}

typedef enum {
    OUTCOME_RUNNING,
    OUTCOME_OK,
    OUTCOME_TIMEOUT,
    OUTCOME_MISMATCH,
    OUTCOME_ABORTED,
    OUTCOME_FAILED,
    OUTCOME_CANCELLED,
    OUTCOMES
} Outcome;

/* What a call was and how it went, for people and for peers that made another one. In one line, and
 * written only with the GIL held. */
typedef struct {
    _Alignas(64) uint64_t sequence;
    int64_t started, finished;      /* nanoseconds; 0: not yet */
    PyObject *dtype, *code, *label; /* owned; NULL: none; for the dtype the call of a Plan */
    size_t amount; /* elements; of all_to_all and composite calls the bytes that this rank sends */
    int32_t instruction;        /* in the code */
    uint8_t kind : 4, ndim : 4; /* one dimension is `amount`, more are in the record's Shape */
    int8_t op, root;
    uint8_t outcome_bits; /* Outcome, then 4 bits on: ah_variant; RECORD_QUEUED */
} Record;
_Static_assert(sizeof(Record) == 64 && AH_MAX_RANKS <= 128 && OUTCOMES <= 16, "records fit");
_Static_assert(AH_KINDS <= 16 && SHAPE_DIMS < SHAPE_LONG, "kinds and dimensions fit");

/* What a record has no room for: most calls need none of it. */
typedef union {
    Py_ssize_t dims[SHAPE_DIMS];
    PyObject *tuple; /* owned */
} Shape;

#define RECORD_QUEUED 0x80 /* it is told in Python when and where it was made */

/* A v-variant as it travels, of arrays of one dtype; all owned, NULL: not met yet. */
typedef struct {
    PyObject *dtype, *call;
    int root;
    uint64_t signature;
} SignedVector;
#define VECTOR_CALLS 4

/* The same of reduce_scatter_v. */
typedef struct {
    PyObject *dtype, *call;
    int op;
    uint64_t signature;
    npy_intp *shapes; /* of each rank's block, owned */
} SignedBlocks;

/* How a call that runs and the hooks find each other. */
typedef struct {
    struct CommObject *self;
    ah_call call;
    PyThreadState *saved;
    int64_t timeout;
    int64_t slow_at;
    bool was_slow;
    bool is_confirmation; /* a signal's exception leaves it to be gone on with: ah_call.is_left */
} RunningCall;

typedef struct CommObject {
    PyObject_HEAD
    ah_comm *comm;
    PyObject *segments; /* what keeps the areas mapped */
    PyObject *ops;
    PyObject *on_failure, *on_slow;
    PyThread_type_lock turn; /* held by the call that runs */
    int rank, size;
    int64_t timeout_ns;
    uint64_t last_number; /* number of the latest call that has one */
    uint64_t limit;       /* calls above need a rank that has left */
    Py_ssize_t queued; /* calls that have a number and not ended, but for those of fast callers */
    uint64_t begun, ended, completed;
    const char *current; /* the operation under way; "" between calls */
    int64_t since_ns;
    unsigned generation;
    int unshared_seen; /* of the own segment's unshared pages */
    int attach_tries;  /* that are left of asking for cross-memory attach */
    size_t attach_min;
    bool closed;
    bool verifies; /* ranks compare the results of their calls, where those are to be the same */
    struct AtomicObject *atomic; /* whose calls those on callers' threads are; borrowed */
    /* Carries out the plan as such a call, by who has the turn, which is given back: True; False,
     * nothing has happened; NULL with an exception. NULL: calls are plain. */
    PyObject *(*run_atomic)(struct CommObject *self, int64_t timeout, PyObject *label);
    PyObject *pending; /* a persistent call that was started and not finished yet; NULL: none */
    /* Finishes it before another call, as on all ranks. Its failure is for the thread that waits
     * for it; but Ctrl-C is for this caller: -1. */
    int (*finish_pending)(struct CommObject *self);
    Plan plan;          /* of the call that runs; too large for the stack of a fast call */
    ah_variant variant; /* of the call that ended last */
    PyObject *received; /* what an exchange has given so far; NULL: nothing */
    bool records_all;   /* else only what they are, not when and where */
    bool from_queue;    /* the call that runs */
    struct AsyncCall *first_async, *last_async; /* owned; those that have a number and not ended */
    int64_t no_hold_until;                      /* of event loops: see call_poll */
    /* Runs those up to one, NULL: all, and what was pending before; by who has the turn, who may
     * lose it meanwhile. 0; or -1 with an exception, without the turn: of a signal handler. */
    int (*finish_async)(struct CommObject *self, const struct AsyncCall *last);
    PyTypeObject *async_type;      /* of their works; NULL: there can be none */
    PyTypeObject *async_read_type; /* of those of which Python makes the result */
    PyObject *async_context; /* has what those works need; lives as long as the communicator */
    PyObject *get_timer;     /* function of it: it has a thread, which many programs do without */
    PyObject *timer;         /* of threads for those that nobody waits for; NULL: not yet */
    _Atomic int64_t due;     /* when one should run them; INT64_MAX: not at all, or it was told */
    bool handed_over;        /* a thread was told to run them, and has not returned */
    bool is_urgent;          /* somebody wants to hear of their end, without waiting */
    int waiters;             /* threads that wait for the turn to run them */
    const struct AsyncCall *running_async; /* the call that runs is this one; NULL: none of them */
    RunningCall first_running;             /* the first of them, once it has been begun */
    unsigned long
        inline_thread;  /* the thread that made the call that runs, and waits for it; 0: none */
    PyObject *on_clash; /* NULL: threads may do as they like */
    size_t mask;        /* of `records`, whose number is a power of two */
    Record *records;
    Shape *shapes;        /* of the records, at their places */
    int64_t waits[WAITS]; /* of the latest calls: nanoseconds to the end of a wait that others could
                           * see; else 0 */
    uint64_t waiting;     /* ranks for which the call that runs was last seen to wait */
    SignedVector signed_vectors[VECTOR_CALLS]; /* the latest of each: vector_calls.c */
    SignedBlocks signed_blocks;                /* the latest: ragged_reduction.c */
    StartTimes start_times;
    CallTotals totals;
} CommObject;

extern PyTypeObject *Comm_Type;
extern unsigned comm_generation; /* counts forks: a child shares the memory, but is no member */

static inline Record *record_of(CommObject *self, uint64_t sequence) {
    return &self->records[sequence & self->mask];
}

#endif
