#define _GNU_SOURCE
#include "python/async_calls.h"

#include <sched.h>
#include <structmember.h>

#include "comm/call.h"
#include "comm/host.h"
#include "python/async_run.h"
#include "python/call_records.h"
#include "python/call_run.h"
#include "python/call_site.h"
#include "python/clock.h"
#include "python/due_timer.h"
#include "python/plan.h"
#include "python/turn.h"

#define SPINS 64 /* looks at other ranks' slots with the GIL held: about two microseconds */
#define TURN_POLL_US 50000
/* What a loop moves itself, of calls that are awaited: some tens of microseconds' worth. */
#define AWAITED_BYTES ((size_t)1 << 20)
/* Who hands a call over to a thread comes to the next one too late for the others, and would do so
 * for ever: in so many calls of a period, by number, all ranks hold their loops longer, and meet.
 */
#define MEETING_PERIOD 16
#define MEETING_CALLS 2
#define MEETING_NS 300000
/* Where ranks outnumber processors a loop is held so many times as long: others have their turn. */
#define CROWDED 5
/* A yield that takes so many times as long as that was for another program's work: for a while no
 * loop is held then. */
#define LONG_YIELD 10
#define NO_HOLD_NS 20000000

static PyTypeObject *Call_Type;
static PyObject *kind_texts[AH_KINDS];

/* ---------------------------------------------------------------- beginning them */

static bool is_type_of_works(PyObject *given) {
    return PyType_Check(given) && PyType_IsSubtype((PyTypeObject *)given, Call_Type);
}

PyObject *comm_set_async(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 4 || !is_type_of_works(args[0]) || !is_type_of_works(args[1]) ||
        !PyCallable_Check(args[3]))
        return PyErr_Format(PyExc_TypeError,
                            "set_async(type of works, type of read works, context, get_timer)");
    if (self->async_type != NULL) Py_RETURN_NONE;
    self->async_context = Py_NewRef(args[2]);
    self->get_timer = Py_NewRef(args[3]);
    self->finish_async = async_finish;
    self->async_read_type = (PyTypeObject *)Py_NewRef(args[1]);
    self->async_type = (PyTypeObject *)Py_NewRef(args[0]);
    Py_RETURN_NONE;
}

/* Have the timer that looks after what is queued; false with an exception. */
static bool open_timer(CommObject *self) {
    PyObject *timer = PyObject_CallNoArgs(self->get_timer);
    if (timer == NULL) return false;
    if (self->timer != NULL) { /* another thread has it meanwhile */
        Py_DECREF(timer);
        return true;
    }
    if (!timer_check(timer))
        PyErr_Format(PyExc_TypeError, "get_timer gave %R", timer);
    else if (!timer_add(timer, self))
        PyErr_NoMemory();
    else {
        self->timer = timer;
        return true;
    }
    Py_DECREF(timer);
    return false;
}

/* The name of a plan's operation, which outlives the plan; NULL with an exception. */
static PyObject *keep_name(const Plan *plan) {
    if (plan->call == NULL) return Py_NewRef(kind_texts[plan->kind]);
    return PyUnicode_InternFromString(plan->call_name);
}

static AsyncCall *new_call(CommObject *self, PyTypeObject *type, const Plan *plan, PyObject *label,
                           PyObject *value, PyObject *arrays) {
    AsyncCall *call = (AsyncCall *)type->tp_alloc(type, 0);
    if (call == NULL) return NULL;
    if ((call->name = keep_name(plan)) == NULL) {
        Py_DECREF(call);
        return NULL;
    }
    call->comm = (CommObject *)Py_NewRef(self);
    call->label = Py_NewRef(label);
    call->value = Py_NewRef(value);
    call->arrays = Py_NewRef(arrays);
    if (self->records_all) call->code = call_site_here(&call->instruction);
    call->nbytes = call_bytes(self, plan);
    if (async_keep_plan(call, plan)) return call;
    PyErr_NoMemory();
    Py_DECREF(call);
    return NULL;
}

PyObject *async_enqueue(CommObject *self, const Plan *plan, PyObject *label, PyObject *value,
                        PyObject *arrays, int64_t timeout, AsyncFlags flags) {
    if (self->async_type == NULL || timeout <= 0 || !comm_is_open(self)) Py_RETURN_NONE;
    if (self->timer == NULL) { /* not in a forked child, where locks may be held for ever */
        if (!open_timer(self)) return NULL;
        if (!comm_is_open(self)) Py_RETURN_NONE;
    }
    if ((self->inline_thread != 0 || self->last_async != NULL) &&
        comm_refuse_clash(self, plan_name(plan), label) < 0)
        return NULL;
    PyTypeObject *type = flags & ASYNC_READ ? self->async_read_type : self->async_type;
    AsyncCall *call = new_call(self, type, plan, label, value, arrays);
    if (call == NULL) return NULL;
    int64_t now = self->records_all ? clock_now() : ah_now();
    call->timeout = timeout;
    call->deadline = now + timeout;
    if (flags & ASYNC_WAITS) call->waiting_thread = PyThread_get_thread_ident();
    call->sequence = ++self->last_number;
    Py_INCREF(call);
    async_append(self, call);
    if (self->first_async == call && async_run_ready(call, self->comm->limits.slot_max) < 0) {
        Py_DECREF(call);
        return NULL;
    }
    if (call->state == CALL_WAITING && call->sequence - self->begun <= self->mask / 2) {
        const AsyncCall *runs = self->running_async;
        self->running_async = call; /* where it was made */
        call_record(self, plan, call->sequence, now, async_label_or_null(call));
        self->running_async = runs;
    }
    async_set_due_at(self, now);
    return (PyObject *)call;
}

/* ---------------------------------------------------------------- waiting for them */

/* Wait for the turn, to run calls up to this one; 1: it has ended without; -1 with an exception. */
static int await_turn(AsyncCall *call) {
    CommObject *self = call->comm;
    while (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) {
        PyLockStatus got;
        self->waiters++;
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->turn, TURN_POLL_US, 1);
        Py_END_ALLOW_THREADS
        self->waiters--;
        if (got == PY_LOCK_ACQUIRED) break;
        if (Py_MakePendingCalls() < 0) return -1;
        if (async_has_ended(call)) return 1;
    }
    return 0;
}

static PyObject *raise_error(AsyncCall *call) {
    PyErr_SetObject((PyObject *)Py_TYPE(call->error), call->error);
    return NULL;
}

static PyObject *call_wait(AsyncCall *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *names) {
    static const char *const parameter = "timeout";
    Py_ssize_t given = nargs + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    if (given > 1 || (names != NULL && PyTuple_GET_SIZE(names) == 1 &&
                      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), parameter)))
        return PyErr_Format(PyExc_TypeError, "wait(timeout=None)");
    if (given == 1 && args[0] != Py_None)
        return PyObject_CallMethod((PyObject *)self, "wait_at_most", "O", args[0]);
    if (self->comm == NULL) return PyErr_Format(PyExc_RuntimeError, "no call");
    if (self->is_left && !async_has_ended(self))
        return PyObject_CallMethod((PyObject *)self, "wait_for_thread", NULL);
    while (!async_has_ended(self)) {
        if (!comm_is_own(self->comm)) return NULL;
        int turn = await_turn(self);
        if (turn < 0) return NULL;
        if (turn > 0) break;
        if (async_finish(self->comm, self) < 0) return NULL;
        PyThread_release_lock(self->comm->turn);
    }
    if (self->error != NULL) return raise_error(self);
    Py_RETURN_TRUE;
}

/* Run what ends at once, and look for so many nanoseconds whether more does; has it ended? */
static PyObject *call_poll(AsyncCall *self, PyObject *given) {
    long long span = PyLong_AsLongLong(given);
    if (span == -1 && PyErr_Occurred()) return NULL;
    CommObject *comm = self->comm;
    if (comm == NULL || async_has_ended(self) || comm->generation != comm_generation)
        return PyBool_FromLong(async_has_ended(self));
    int64_t until = 0;
    bool yields = comm->comm->oversubscribed; /* who is awaited may need this processor */
    if (yields)
        span = ah_now() < comm->no_hold_until ? 0 : span * CROWDED;
    else if (span != 0 && self->sequence % MEETING_PERIOD < MEETING_CALLS && span < MEETING_NS)
        span = MEETING_NS;
    size_t nbytes = span == 0 ? comm->comm->limits.slot_max : AWAITED_BYTES;
    for (int spin = 0; !async_has_ended(self); spin++) {
        if (async_is_ready(comm, nbytes) && async_run_ready(self, nbytes) < 0) return NULL;
        const AsyncCall *first = comm->first_async;
        if (async_has_ended(self) || span == 0 || first == NULL || first->state != CALL_PUBLISHED ||
            comm->first_running.call.waiting == 0)
            break;
        /* A call that is ready and has not ended is in the hands of another thread. */
        if (!yields && spin < SPINS && !async_is_ready(comm, nbytes)) {
            ah_cpu_relax();
            continue;
        }
        int64_t now = ah_now();
        if (until == 0) until = now + span;
        if (now >= until) break;
        uint64_t sequence = first->sequence, waiting = comm->first_running.call.waiting;
        Py_BEGIN_ALLOW_THREADS
        if (yields) sched_yield();
        for (int look = 0; !yields && look < SPINS; look++) {
            ah_cpu_relax();
            if (ah_have_posted_alike(comm->comm, waiting, sequence)) break;
        }
        Py_END_ALLOW_THREADS
        if (yields && ah_now() - now > LONG_YIELD * span) {
            comm->no_hold_until = now + NO_HOLD_NS;
            span = 0;
        }
    }
    return PyBool_FromLong(async_has_ended(self));
}

/* ---------------------------------------------------------------- the type */

/* Refuse it before its turn, with an error; whether that was possible. */
static PyObject *call_withdraw(AsyncCall *self, PyObject *error) {
    if (self->state != CALL_WAITING) Py_RETURN_FALSE;
    self->is_cancelled = true;
    self->error = Py_NewRef(error);
    self->state = CALL_FAILED;
    Py_RETURN_TRUE;
}

/* Have it be run by a thread, not by who waits: a call that is about to be cancelled is not to wait
 * for those before it. */
static PyObject *call_leave(AsyncCall *self, PyObject *unused) {
    (void)unused;
    self->is_left = true;
    Py_RETURN_NONE;
}

/* Attach a future, unless it has one; return that which it has. Who attached it completes it if the
 * call had ended. */
static PyObject *call_attach(AsyncCall *self, PyObject *future) {
    if (self->future == NULL) self->future = Py_NewRef(future);
    return Py_NewRef(self->future);
}

static PyObject *call_summary(AsyncCall *self, PyObject *unused) {
    (void)unused;
    if (self->state != CALL_ENDED) Py_RETURN_NONE;
    return Py_BuildValue("KOns", self->sequence, self->name, (Py_ssize_t)self->nbytes,
                         variant_names[self->variant]);
}

/* Give what an exchange has given, once; None: nothing. */
static PyObject *call_take_received(AsyncCall *self, PyObject *unused) {
    (void)unused;
    PyObject *received = self->received;
    self->received = NULL;
    return received == NULL ? Py_NewRef(Py_None) : received;
}

static int call_traverse(AsyncCall *self, visitproc visit, void *arg) {
    Py_VISIT(self->next);
    Py_VISIT(self->comm);
    Py_VISIT(self->value);
    Py_VISIT(self->received);
    Py_VISIT(self->arrays);
    Py_VISIT(self->error);
    Py_VISIT(self->future);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int call_clear(AsyncCall *self) {
    Py_CLEAR(self->value);
    Py_CLEAR(self->received);
    Py_CLEAR(self->error);
    Py_CLEAR(self->future);
    return 0;
}

static void call_dealloc(AsyncCall *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    call_clear(self);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->label);
    Py_XDECREF(self->arrays);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->shape);
    Py_XDECREF(self->composite);
    Py_XDECREF(self->name);
    Py_XDECREF(self->code);
    PyMem_Free(self->places);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_ended(AsyncCall *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(async_has_ended(self));
}

static PyObject *get_context(AsyncCall *self, void *unused) {
    (void)unused;
    PyObject *context = self->comm->async_context; /* NULL: both are being freed */
    return Py_NewRef(context == NULL ? Py_None : context);
}

static PyObject *get_group(AsyncCall *self, void *unused) {
    (void)unused;
    PyObject *context = self->comm->async_context; /* NULL: both are being freed */
    return context == NULL ? Py_NewRef(Py_None) : PyObject_GetAttrString(context, "name");
}

/* Where the program made it, if another thread began it. */
static PyObject *call_set_call_site(AsyncCall *self, PyObject *args) {
    PyObject *code;
    int instruction;
    if (!PyArg_ParseTuple(args, "Oi", &code, &instruction)) return NULL;
    if (self->comm == NULL || !self->comm->records_all || !PyCode_Check(code)) Py_RETURN_NONE;
    Py_XSETREF(self->code, Py_NewRef(code));
    self->instruction = instruction;
    Record *record = record_of(self->comm, self->sequence);
    if (record->sequence == self->sequence) { /* it has begun */
        Py_XSETREF(record->code, Py_NewRef(code));
        record->instruction = instruction;
    }
    Py_RETURN_NONE;
}

static PyMethodDef call_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))call_wait, METH_FASTCALL | METH_KEYWORDS,
     "Block until the operation has ended; see Work.wait."},
    {"poll", (PyCFunction)call_poll, METH_O, NULL},
    {"withdraw", (PyCFunction)call_withdraw, METH_O, NULL},
    {"leave", (PyCFunction)call_leave, METH_NOARGS, NULL},
    {"attach", (PyCFunction)call_attach, METH_O, NULL},
    {"_set_call_site", (PyCFunction)call_set_call_site, METH_VARARGS, NULL},
    {"summary", (PyCFunction)call_summary, METH_NOARGS, NULL},
    {"take_received", (PyCFunction)call_take_received, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef call_members[] = {
    {"sequence", T_ULONGLONG, offsetof(AsyncCall, sequence), READONLY, NULL},
    {"nbytes", T_PYSSIZET, offsetof(AsyncCall, nbytes), READONLY, NULL},
    {"waiting_thread", T_ULONG, offsetof(AsyncCall, waiting_thread), 0, NULL},
    {"operation", T_OBJECT, offsetof(AsyncCall, name), READONLY, NULL},
    {"label", T_OBJECT, offsetof(AsyncCall, label), READONLY, NULL},
    {"comm", T_OBJECT, offsetof(AsyncCall, comm), READONLY, NULL},
    {"value", T_OBJECT, offsetof(AsyncCall, value), READONLY, NULL},
    {"error", T_OBJECT, offsetof(AsyncCall, error), READONLY, NULL},
    {"future", T_OBJECT, offsetof(AsyncCall, future), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef call_getset[] = {
    {"has_ended", (getter)get_ended, NULL, NULL, NULL},
    {"context", (getter)get_context, NULL, NULL, NULL},
    {"group", (getter)get_group, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_doc, "A call that is not waited for at once; described in _native.pyi."},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},
    {Py_tp_methods, call_methods},
    {Py_tp_members, call_members},
    {Py_tp_getset, call_getset},
    {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "allhands._native.AsyncCall",
    .basicsize = sizeof(AsyncCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = call_slots,
};

int add_async_types(PyObject *module) {
    for (int kind = 0; kind < AH_KINDS; kind++)
        if ((kind_texts[kind] = PyUnicode_InternFromString(kind_names[kind])) == NULL) return -1;
    Call_Type = (PyTypeObject *)PyType_FromSpec(&call_spec);
    if (Call_Type == NULL || add_timer_type(module) < 0) return -1;
    return PyModule_AddObjectRef(module, "AsyncCall", (PyObject *)Call_Type);
}
