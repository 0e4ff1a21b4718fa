#define _GNU_SOURCE
#include "python/due_timer.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/host.h"

/* While calls are made, sleep no longer than this, so that they need not wake this thread. */
#define BUSY_SLEEP_NS (2 * 1000 * 1000LL)
#define SLACK_NS 1000 /* of the thread's sleep; the kernel's default is as long as a call */

typedef struct {
    PyObject_HEAD
    pthread_mutex_t lock; /* of the list; changed with the GIL held too */
    CommObject **comms;
    size_t count, room;
    _Atomic uint32_t changes;
    _Atomic int64_t sleeps_until; /* INT64_MAX: it looks, or sleeps till it is woken */
    _Atomic bool was_used, is_closed;
} TimerObject;

static PyTypeObject *Timer_Type;

static void wake(TimerObject *self) {
    atomic_fetch_add(&self->changes, 1);
    syscall(SYS_futex, &self->changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool timer_check(PyObject *timer) { return PyObject_TypeCheck(timer, Timer_Type); }

bool timer_add(PyObject *timer, CommObject *comm) {
    TimerObject *self = (TimerObject *)timer;
    bool added = true;
    pthread_mutex_lock(&self->lock);
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 8;
        CommObject **more = realloc(self->comms, room * sizeof *more);
        if ((added = more != NULL)) {
            self->comms = more;
            self->room = room;
        }
    }
    if (added) self->comms[self->count++] = comm;
    pthread_mutex_unlock(&self->lock);
    return added;
}

void timer_remove(PyObject *timer, CommObject *comm) {
    TimerObject *self = (TimerObject *)timer;
    pthread_mutex_lock(&self->lock);
    for (size_t at = 0; at < self->count; at++)
        if (self->comms[at] == comm) self->comms[at--] = self->comms[--self->count];
    pthread_mutex_unlock(&self->lock);
}

void timer_note(PyObject *timer, int64_t due, bool may_be_late) {
    TimerObject *self = (TimerObject *)timer;
    atomic_store_explicit(&self->was_used, true, memory_order_relaxed);
    if (atomic_load(&self->sleeps_until) > (may_be_late ? due + BUSY_SLEEP_NS : due)) wake(self);
}

static int64_t first_due(TimerObject *self) {
    int64_t first = INT64_MAX;
    pthread_mutex_lock(&self->lock);
    for (size_t at = 0; at < self->count; at++) {
        int64_t due = atomic_load(&self->comms[at]->due);
        if (due < first) first = due;
    }
    pthread_mutex_unlock(&self->lock);
    return first;
}

/* Return when some are due, or it is closed. */
static void sleep_until_due(TimerObject *self) {
    prctl(PR_SET_TIMERSLACK, SLACK_NS);
    while (!atomic_load(&self->is_closed)) {
        uint32_t changes = atomic_load(&self->changes);
        atomic_store(&self->sleeps_until,
                     INT64_MAX); /* before it looks: who comes later wakes it */
        int64_t due = first_due(self), now = ah_now();
        if (due <= now) return;
        if (due == INT64_MAX && atomic_exchange(&self->was_used, false)) due = now + BUSY_SLEEP_NS;
        atomic_store(&self->sleeps_until, due);
        struct timespec span = {(due - now) / NANOSECONDS, (due - now) % NANOSECONDS};
        syscall(SYS_futex, &self->changes, FUTEX_WAIT_PRIVATE, changes,
                due == INT64_MAX ? NULL : &span, NULL, 0);
    }
}

/* A communicator that is due now, as a new reference; NULL: none is any more. */
static PyObject *take_due(TimerObject *self) {
    int64_t now = ah_now();
    CommObject *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (size_t at = 0; at < self->count && found == NULL; at++) {
        CommObject *comm = self->comms[at];
        if (atomic_load(&comm->due) > now) continue;
        if (comm->first_async == NULL || comm->handed_over)
            atomic_store(&comm->due, INT64_MAX);
        else if (comm->running_async != NULL || comm->waiters > 0) /* somebody runs them */
            atomic_store(&comm->due, now + BUSY_SLEEP_NS);
        else
            found = comm;
    }
    pthread_mutex_unlock(&self->lock);
    if (found != NULL) {
        found->handed_over = true;
        atomic_store(&found->due, INT64_MAX);
    }
    return Py_XNewRef((PyObject *)found);
}

static PyObject *timer_next(TimerObject *self, PyObject *unused) {
    (void)unused;
    PyObject *found = NULL;
    while (found == NULL && !atomic_load(&self->is_closed)) {
        Py_BEGIN_ALLOW_THREADS
        sleep_until_due(self);
        Py_END_ALLOW_THREADS
        if (!atomic_load(&self->is_closed)) found = take_due(self);
    }
    if (found == NULL) Py_RETURN_NONE;
    return found;
}

static PyObject *timer_close(TimerObject *self, PyObject *unused) {
    (void)unused;
    atomic_store(&self->is_closed, true);
    wake(self);
    Py_RETURN_NONE;
}

static PyObject *timer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (PyTuple_GET_SIZE(args) > 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0))
        return PyErr_Format(PyExc_TypeError, "DueTimer takes no arguments");
    TimerObject *self = (TimerObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    atomic_store(&self->sleeps_until, INT64_MAX);
    return (PyObject *)self;
}

static void timer_dealloc(TimerObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    free(self->comms);
    pthread_mutex_destroy(&self->lock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef timer_methods[] = {
    {"next", (PyCFunction)timer_next, METH_NOARGS, NULL},
    {"close", (PyCFunction)timer_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot timer_slots[] = {
    {Py_tp_doc, "When queued calls should be run; described in _native.pyi."},
    {Py_tp_new, timer_new},
    {Py_tp_dealloc, timer_dealloc},
    {Py_tp_methods, timer_methods},
    {0, NULL},
};

static PyType_Spec timer_spec = {
    .name = "allhands._native.DueTimer",
    .basicsize = sizeof(TimerObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = timer_slots,
};

int add_timer_type(PyObject *module) {
    Timer_Type = (PyTypeObject *)PyType_FromSpec(&timer_spec);
    if (Timer_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "DueTimer", (PyObject *)Timer_Type);
}
