#include "python/atomic_calls.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "python/call_records.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/inline_calls.h"
#include "python/plan.h"

/* Larger copies are made without the GIL. */
#define PAUSE_BYTES ((size_t)64 << 10)
#define PAST_BYTES ((size_t)8 << 20)

typedef enum {
    ATOMIC_IDLE,
    ATOMIC_RUNNING,
    /* And not queued yet. The queue says when it is, for it may go on before the call's thread. */
    ATOMIC_FAILED,
} AtomicState;

/* Stands for the communicators that a resilient group has, one after the other. A call on it is
 * what `membership/resilient.py` makes of one, under the same two numbers of the communicator: the
 * call, and a barrier. So a rank that calls here, and one whose calls are queued, fit together.
 * What fails is handed over to the queue, with a copy of what the outputs were. */
typedef struct AtomicObject {
    PyObject_HEAD
    CommObject *comm;                /* NULL: calls take the other way */
    PyObject *on_failure, *on_ended; /* take a failed call over, and wait for its end */
    uint64_t last_number;            /* of the group's calls as callers see them */
    uint64_t last_call;              /* number of the latest one here, at the communicator */
    Py_ssize_t queued;               /* calls that have a number and have not ended */
    unsigned long long computed;     /* calls that have a result; since they were asked for */
    unsigned long long returned;     /* calls that all ranks are known to have the result of */
    unsigned long long failures;     /* calls that were handed over */
    int64_t timeout_ns, confirm_ns;
    AtomicState state;
    char *backup; /* also for a call that was taken over: none begins here before that has ended */
    size_t backup_bytes, backup_room;
    const char *name; /* of the method that was called, and what it was called with */
    PyObject *const *args;
    Py_ssize_t nargs;
} AtomicObject;

static PyTypeObject *Atomic_Type;

static void forget_comm(AtomicObject *self) {
    if (self->comm != NULL && self->comm->atomic == self) self->comm->atomic = NULL;
    Py_CLEAR(self->comm);
}

/* ---------------------------------------------------------------- copies of outputs */

typedef struct {
    char *at;
    size_t nbytes;
} Output;

static int list_outputs(const CommObject *self, Output outputs[]) {
    const Plan *plan = &self->plan;
    size_t nbytes = plan->count * plan->itemsize;
    if (plan->kind == AH_KIND_BARRIER) return 0;
    int count = ah_kind_has_blocks(plan->kind) ? self->size : 1;
    for (int at = 0; at < count; at++)
        outputs[at] =
            (Output){plan->out[at], ah_kind_has_splits(plan->kind) ? plan->recv[at] : nbytes};
    if (plan->out[0] == NULL) count = 0; /* of a reduce, another rank's */
    return count;
}

static void copy_outputs(AtomicObject *self, const Output outputs[], int count, bool back) {
    bool pauses = self->backup_bytes > PAUSE_BYTES;
    PyThreadState *saved = pauses ? PyEval_SaveThread() : NULL;
    char *place = self->backup;
    for (int at = 0; at < count; at++) {
        /* What no cache could keep anyway, and nobody reads soon, goes past them. */
        ah_copy(back ? outputs[at].at : place, back ? place : outputs[at].at, outputs[at].nbytes,
                self->backup_bytes >= PAST_BYTES);
        place += outputs[at].nbytes;
    }
    if (pauses) PyEval_RestoreThread(saved);
}

/* False: there is no memory. */
static bool back_up(AtomicObject *self, const Output outputs[], int count) {
    size_t nbytes = 0;
    for (int at = 0; at < count; at++) nbytes += outputs[at].nbytes;
    if (nbytes > self->backup_room) {
        char *room = aligned_alloc(64, ah_round_up(nbytes, 64));
        if (room == NULL) return false;
        free(self->backup);
        self->backup = room;
        self->backup_room = nbytes;
    }
    self->backup_bytes = nbytes;
    copy_outputs(self, outputs, count, false);
    return true;
}

/* ---------------------------------------------------------------- the call */

/* The barrier behind a call: who comes out of it knows that all ranks have the result. */
static int confirm(AtomicObject *atomic, CommObject *self, uint64_t number, PyObject *label,
                   bool *was_left) {
    Plan *plan = &self->plan;
    plan->kind = AH_KIND_BARRIER;
    plan->count = plan->itemsize = 0;
    plan->typesig = 0;
    plan->op = plan->root = -1;
    plan->dtype = NULL;
    plan_no_shape(plan);
    if (number > self->limit) ah_comm_interrupt(self->comm, number);
    RunningCall running;
    call_begin(self, &running, number, atomic->confirm_ns, 0, label);
    running.is_confirmation = true;
    int failed = call_end(self, &running, run_plan(self, &running.call), label);
    *was_left = running.call.is_left;
    return failed;
}

/* Hand a failed call over to the queue, and wait for its end there. The exception is set. */
static PyObject *hand_over(AtomicObject *self, uint64_t number, bool is_computed, bool was_left,
                           const Output outputs[], int count) {
    PyObject *type, *error, *traceback, *work = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    PyObject *args = PyTuple_New(self->nargs);
    for (Py_ssize_t at = 0; args != NULL && at < self->nargs; at++)
        PyTuple_SET_ITEM(args, at, Py_NewRef(self->args[at]));
    PyObject *backup =
        PyMemoryView_FromMemory(self->backup ? self->backup : (char *)&self->backup_bytes,
                                (Py_ssize_t)self->backup_bytes, PyBUF_READ);
    self->failures++;
    while (args != NULL && backup != NULL) {
        work = PyObject_CallFunction(self->on_failure, "KsOOKOOO", self->failures, self->name, args,
                                     error, (unsigned long long)number,
                                     is_computed ? Py_True : Py_False,
                                     was_left ? Py_True : Py_False, backup);
        if (work != NULL || PyErr_ExceptionMatches(PyExc_Exception)) break;
        /* A signal's: once more, for a call that nobody takes over would leave ranks in different
         * states. It is raised when that is done. */
        Py_DECREF(error);
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
    }
    if (work == NULL) { /* the world is over */
        copy_outputs(self, outputs, count, true);
        forget_comm(self);
        self->state = ATOMIC_IDLE;
    }
    PyObject *done = NULL;
    if (work != NULL) done = PyObject_CallFunctionObjArgs(self->on_ended, work, error, NULL);
    Py_XDECREF(args);
    Py_XDECREF(backup);
    Py_XDECREF(work);
    Py_DECREF(error);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    Py_RETURN_TRUE;
}

/* CommObject.run_atomic */
static PyObject *atomic_run(CommObject *self, int64_t timeout, PyObject *label) {
    AtomicObject *atomic = self->atomic;
    Output outputs[AH_MAX_RANKS];
    int count = list_outputs(self, outputs);
    if (atomic == NULL || atomic->state != ATOMIC_IDLE || atomic->queued > 0) {
        PyThread_release_lock(self->turn);
        Py_RETURN_FALSE;
    }
    /* Both numbers at once, and before others may have the GIL: a call that is queued from here on
     * comes after both. */
    uint64_t number = self->last_number + 1;
    self->last_number += 2;
    atomic->state = ATOMIC_RUNNING;
    if (!back_up(atomic, outputs, count)) {
        self->last_number -= 2; /* aligned_alloc has kept the GIL */
        atomic->state = ATOMIC_IDLE;
        PyThread_release_lock(self->turn);
        Py_RETURN_FALSE;
    }
    self->inline_thread = PyThread_get_thread_ident();
    PyObject *name = label == Py_None ? NULL : label;
    bool is_computed = false, was_left = false;
    int failed = call_run(self, number, timeout, 0, name);
    if (!failed) {
        is_computed = true;
        atomic->computed++;
        failed = confirm(atomic, self, number + 1, name, &was_left);
    }
    self->inline_thread = 0;
    if (failed) {
        atomic->state = ATOMIC_FAILED;
    } else {
        atomic->returned++;
        atomic->last_number++;
        atomic->last_call = number;
        atomic->state = ATOMIC_IDLE;
    }
    PyThread_release_lock(self->turn);
    if (failed) return hand_over(atomic, number, is_computed, was_left, outputs, count);
    Py_RETURN_TRUE;
}

static PyObject *call_atomically(AtomicObject *self, CommMethod *method, const char *name,
                                 PyObject *const *args, Py_ssize_t nargs) {
    if (self->comm == NULL || self->state != ATOMIC_IDLE || self->queued > 0) Py_RETURN_FALSE;
    CommObject *comm = (CommObject *)Py_NewRef(self->comm);
    self->name = name;
    self->args = args;
    self->nargs = nargs;
    comm->timeout_ns = self->timeout_ns;
    PyObject *done = method((PyObject *)comm, args, nargs);
    Py_DECREF(comm);
    return done;
}

#define DEFINE_METHOD(name, kind)                                                                  \
    static PyObject *atomic_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {      \
        return call_atomically((AtomicObject *)self, comm_##name, #name, args, nargs);             \
    }

/* clang-format off */
PLAIN_METHODS(DEFINE_METHOD)
/* clang-format on */

/* Those that nobody waits for at once are queued. */
static PyObject *atomic_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self, (void)args, (void)nargs;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- numbers */

static PyObject *atomic_take_number(AtomicObject *self, PyObject *unused) {
    (void)unused;
    self->queued++;
    return PyLong_FromUnsignedLongLong(++self->last_number);
}

static PyObject *atomic_release(AtomicObject *self, PyObject *unused) {
    (void)unused;
    self->queued--;
    Py_RETURN_NONE;
}

static PyObject *atomic_take_over(AtomicObject *self, PyObject *unused) {
    (void)unused;
    self->state = ATOMIC_IDLE;
    Py_RETURN_NONE;
}

static PyObject *atomic_take_counts(AtomicObject *self, PyObject *unused) {
    (void)unused;
    PyObject *counts = Py_BuildValue("KK", self->computed, self->returned);
    if (counts != NULL) self->computed = self->returned = 0;
    return counts;
}

static PyObject *atomic_set_comm(AtomicObject *self, PyObject *given) {
    if (given != Py_None && !PyObject_TypeCheck(given, Comm_Type))
        return PyErr_Format(PyExc_TypeError, "a communicator or None, not %R", given);
    if (given == (PyObject *)self->comm) Py_RETURN_NONE;
    forget_comm(self); /* a call that runs there goes on as what it is */
    if (given == Py_None) Py_RETURN_NONE;
    self->comm = (CommObject *)Py_NewRef(given);
    self->comm->atomic = self;
    self->comm->run_atomic = atomic_run; /* for good: it declines where there is none of these */
    Py_RETURN_NONE;
}

static PyObject *atomic_inline_call(AtomicObject *self, PyObject *unused) {
    (void)unused;
    if (self->comm == NULL) Py_RETURN_NONE;
    return PyObject_CallMethod((PyObject *)self->comm, "inline_call", NULL);
}

/* Of the call itself, not of its barrier, under its number in the group. */
static PyObject *atomic_last_call(AtomicObject *self, PyObject *unused) {
    (void)unused;
    if (self->comm == NULL || self->last_call == 0) Py_RETURN_NONE;
    const Record *record = record_of(self->comm, self->last_call);
    if (record->sequence != self->last_call) Py_RETURN_NONE;
    return Py_BuildValue("KNns", (unsigned long long)self->last_number, record_operation(record),
                         (Py_ssize_t)record_bytes(record),
                         variant_names[record->outcome_bits >> 4 & 7]);
}

/* ---------------------------------------------------------------- the type */

static PyObject *atomic_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"on_failure", "on_ended", "timeout", "confirm_timeout", NULL};
    PyObject *on_failure, *on_ended;
    double timeout, confirm_timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOdd", names, &on_failure, &on_ended, &timeout,
                                     &confirm_timeout))
        return NULL;
    AtomicObject *self = (AtomicObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->on_failure = Py_NewRef(on_failure);
    self->on_ended = Py_NewRef(on_ended);
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->confirm_ns = (int64_t)(confirm_timeout * NANOSECONDS);
    return (PyObject *)self;
}

static int atomic_traverse(AtomicObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->comm);
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_ended);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int atomic_clear(AtomicObject *self) {
    forget_comm(self);
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_ended);
    return 0;
}

static void atomic_dealloc(AtomicObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    atomic_clear(self);
    free(self->backup);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *atomic_timeout(AtomicObject *self, void *unused) {
    (void)unused;
    return PyFloat_FromDouble((double)self->timeout_ns / NANOSECONDS);
}

static int atomic_set_timeout(AtomicObject *self, PyObject *value, void *unused) {
    (void)unused;
    return read_timeout(value, &self->timeout_ns);
}

static PyObject *atomic_is_busy(AtomicObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->state != ATOMIC_IDLE);
}

static PyObject *atomic_has_failed(AtomicObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->state == ATOMIC_FAILED);
}

static PyGetSetDef atomic_getset[] = {
    {"timeout", (getter)atomic_timeout, (setter)atomic_set_timeout, NULL, NULL},
    {"is_busy", (getter)atomic_is_busy, NULL, NULL, NULL},
    {"has_failed", (getter)atomic_has_failed, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef atomic_members[] = {
    {"last_number", T_ULONGLONG, offsetof(AtomicObject, last_number), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define METHODS(name, kind)                                                                        \
    {#name, (PyCFunction)(void (*)(void))atomic_##name, METH_FASTCALL, NULL},                      \
        {"start_" #name, (PyCFunction)(void (*)(void))atomic_start, METH_FASTCALL, NULL},

static PyMethodDef atomic_methods[] = {
    /* clang-format off */
    PLAIN_METHODS(METHODS)
    /* clang-format on */
    {"take_number", (PyCFunction)atomic_take_number, METH_NOARGS, NULL},
    {"release", (PyCFunction)atomic_release, METH_NOARGS, NULL},
    {"take_over", (PyCFunction)atomic_take_over, METH_NOARGS, NULL},
    {"take_counts", (PyCFunction)atomic_take_counts, METH_NOARGS, NULL},
    {"set_comm", (PyCFunction)atomic_set_comm, METH_O, NULL},
    {"inline_call", (PyCFunction)atomic_inline_call, METH_NOARGS, NULL},
    {"last_call", (PyCFunction)atomic_last_call, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot atomic_slots[] = {
    {Py_tp_doc, "The calls of a resilient group over shared memory; described in _native.pyi."},
    {Py_tp_new, atomic_new},
    {Py_tp_dealloc, atomic_dealloc},
    {Py_tp_traverse, atomic_traverse},
    {Py_tp_clear, atomic_clear},
    {Py_tp_methods, atomic_methods},
    {Py_tp_members, atomic_members},
    {Py_tp_getset, atomic_getset},
    {0, NULL},
};

static PyType_Spec atomic_spec = {
    .name = "allhands._native.AtomicCalls",
    .basicsize = sizeof(AtomicObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = atomic_slots,
};

int add_atomic_type(PyObject *module) {
    Atomic_Type = (PyTypeObject *)PyType_FromSpec(&atomic_spec);
    if (Atomic_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "AtomicCalls", (PyObject *)Atomic_Type);
}
