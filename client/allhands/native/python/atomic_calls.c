#include "python/atomic_calls.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "comm/comm_state.h"
#include "python/atomic_calls_state.h"
#include "python/call_records.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/inline_calls.h"
#include "python/kind_calls.h"
#include "python/link_collectives.h"
#include "python/plan.h"

/* Larger copies are made without the GIL. */
#define PAUSE_BYTES ((size_t)64 << 10)
/* Copies from here on are kept by no cache until they are read, if they ever are: they are written
 * past them. Where ranks share processors, smaller ones would push out what all of them work on. */
#define PAST_BYTES ((size_t)8 << 20)
#define CROWDED_PAST_BYTES ((size_t)512 << 10)

static PyTypeObject *Atomic_Type;

static void forget_way(AtomicObject *self) {
    if (self->comm != NULL && self->comm->atomic == self) self->comm->atomic = NULL;
    Py_CLEAR(self->comm);
    Py_CLEAR(self->links);
}

/* ---------------------------------------------------------------- copies of outputs */

static int list_outputs(const CommObject *self, AtomicOutput outputs[]) {
    const Plan *plan = &self->plan;
    size_t nbytes = plan->count * plan->itemsize;
    if (plan->kind == AH_KIND_BARRIER) return 0;
    int count = ah_kind_has_blocks(plan->kind) ? self->size : 1;
    for (int at = 0; at < count; at++)
        outputs[at] =
            (AtomicOutput){plan->out[at], ah_kind_has_splits(plan->kind) ? plan->recv[at] : nbytes};
    if (plan->out[0] == NULL) count = 0; /* of a reduce, another rank's */
    return count;
}

static void copy_outputs(AtomicObject *self, const AtomicOutput outputs[], int count, bool back) {
    bool pauses = self->backup_bytes > PAUSE_BYTES;
    bool is_crowded = self->comm != NULL && self->comm->comm->oversubscribed;
    bool past = self->backup_bytes >= (is_crowded ? CROWDED_PAST_BYTES : PAST_BYTES);
    PyThreadState *saved = pauses ? PyEval_SaveThread() : NULL;
    char *place = self->backup;
    for (int at = 0; at < count; at++) {
        ah_copy(back ? outputs[at].at : place, back ? place : outputs[at].at, outputs[at].nbytes,
                past);
        place += outputs[at].nbytes;
    }
    if (pauses) PyEval_RestoreThread(saved);
}

bool atomic_back_up(AtomicObject *self, const AtomicOutput outputs[], int count) {
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

PyObject *atomic_hand_over(AtomicObject *self, const AtomicFailure *failure,
                           const AtomicOutput outputs[], int count) {
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
        work = PyObject_CallFunction(self->on_failure, "KsOOKOOOO", self->failures, self->name,
                                     args, error, (unsigned long long)failure->number,
                                     failure->is_computed ? Py_True : Py_False,
                                     failure->was_left ? Py_True : Py_False, backup,
                                     failure->confirming == NULL ? Py_None : failure->confirming);
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
        forget_way(self);
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
    AtomicOutput outputs[AH_MAX_RANKS];
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
    if (!atomic_back_up(atomic, outputs, count)) {
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
    AtomicFailure failure = {number, is_computed, was_left, NULL};
    if (failed) return atomic_hand_over(atomic, &failure, outputs, count);
    Py_RETURN_TRUE;
}

static PyObject *call_atomically(AtomicObject *self, CommMethod *method, ah_kind kind,
                                 const char *name, PyObject *const *args, Py_ssize_t nargs) {
    if (self->state != ATOMIC_IDLE || self->queued > 0) Py_RETURN_FALSE;
    self->name = name;
    self->args = args;
    self->nargs = nargs;
    if (self->comm == NULL) return atomic_call_over_links(self, kind);
    CommObject *comm = (CommObject *)Py_NewRef(self->comm);
    comm->timeout_ns = self->timeout_ns;
    PyObject *done = method((PyObject *)comm, args, nargs);
    Py_DECREF(comm);
    return done;
}

#define DEFINE_METHOD(name, kind)                                                                  \
    static PyObject *atomic_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {      \
        return call_atomically((AtomicObject *)self, comm_##name, kind, #name, args, nargs);       \
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

static PyObject *atomic_set_way(AtomicObject *self, PyObject *given) {
    bool is_comm = PyObject_TypeCheck(given, Comm_Type);
    if (given != Py_None && !is_comm && !PyObject_TypeCheck(given, LinkCollectives_Type))
        return PyErr_Format(PyExc_TypeError, "a communicator, links or None, not %R", given);
    if (given == (PyObject *)self->comm || given == (PyObject *)self->links) Py_RETURN_NONE;
    forget_way(self); /* a call that runs there goes on as what it is */
    if (is_comm) {
        self->comm = (CommObject *)Py_NewRef(given);
        self->comm->atomic = self;
        /* For good: it declines where there is none of these. */
        self->comm->run_atomic = atomic_run;
    } else if (given != Py_None) {
        self->links = (struct LinkCollectivesObject *)Py_NewRef(given);
    }
    Py_RETURN_NONE;
}

static PyObject *atomic_inline_call(AtomicObject *self, PyObject *unused) {
    (void)unused;
    PyObject *way = self->comm != NULL ? (PyObject *)self->comm : (PyObject *)self->links;
    if (way == NULL) Py_RETURN_NONE;
    return PyObject_CallMethod(way, "inline_call", NULL);
}

/* Of the call itself, not of its barrier, under its number in the group. */
static PyObject *atomic_last_call(AtomicObject *self, PyObject *unused) {
    (void)unused;
    unsigned long long number = self->last_number;
    if (self->links != NULL && self->last_how != NULL)
        return Py_BuildValue("KsnO", number, kind_names[self->last_kind],
                             (Py_ssize_t)self->last_bytes, self->last_how);
    if (self->comm == NULL || self->last_call == 0) Py_RETURN_NONE;
    const Record *record = record_of(self->comm, self->last_call);
    if (record->sequence != self->last_call) Py_RETURN_NONE;
    return Py_BuildValue("KNns", number, record_operation(record), (Py_ssize_t)record_bytes(record),
                         variant_names[record->outcome_bits >> 4 & 7]);
}

/* ---------------------------------------------------------------- the type */

static PyObject *atomic_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"on_failure",      "on_ended", "make_barrier", "on_idle", "timeout",
                            "confirm_timeout", NULL};
    PyObject *on_failure, *on_ended, *make_barrier, *on_idle;
    double timeout, confirm_timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOdd", names, &on_failure, &on_ended,
                                     &make_barrier, &on_idle, &timeout, &confirm_timeout))
        return NULL;
    AtomicObject *self = (AtomicObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->on_failure = Py_NewRef(on_failure);
    self->on_ended = Py_NewRef(on_ended);
    self->make_barrier = Py_NewRef(make_barrier);
    self->on_idle = Py_NewRef(on_idle);
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->confirm_ns = (int64_t)(confirm_timeout * NANOSECONDS);
    return (PyObject *)self;
}

static int atomic_traverse(AtomicObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->comm);
    Py_VISIT(self->links);
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_ended);
    Py_VISIT(self->make_barrier);
    Py_VISIT(self->on_idle);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int atomic_clear(AtomicObject *self) {
    forget_way(self);
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_ended);
    Py_CLEAR(self->make_barrier);
    Py_CLEAR(self->on_idle);
    return 0;
}

static void atomic_dealloc(AtomicObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    atomic_clear(self);
    Py_XDECREF(self->last_how);
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
    {"is_awaited", T_BOOL, offsetof(AtomicObject, is_awaited), 0, NULL},
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
    {"set_way", (PyCFunction)atomic_set_way, METH_O, NULL},
    {"inline_call", (PyCFunction)atomic_inline_call, METH_NOARGS, NULL},
    {"last_call", (PyCFunction)atomic_last_call, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot atomic_slots[] = {
    {Py_tp_doc, "The calls of a resilient group, all or nothing; described in _native.pyi."},
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
