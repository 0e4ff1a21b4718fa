#define _GNU_SOURCE
#include "python/async_run.h"

#include "comm/call.h"
#include "comm/host.h"
#include "python/call_run.h"
#include "python/due_timer.h"
#include "python/kind_calls.h"
#include "python/turn.h"

/* How long calls may wait for somebody to run them, before a thread is told to. One that is
 * published keeps no other rank waiting. */
#define GRACE_NS (100 * 1000LL)
#define PUBLISHED_GRACE_NS (2 * 1000 * 1000LL)
/* Calls so large take so long that it matters when they begin: beside what the program computes. */
#define LARGE_BYTES ((size_t)4 << 20)

static void begin(AsyncCall *call) {
    CommObject *self = call->comm;
    async_load_plan(call);
    if (call->sequence > self->limit) /* which may have been set after it took its number */
        ah_comm_interrupt(self->comm, call->sequence);
    call_begin(self, &call->running, call->sequence, call->timeout, call->deadline,
               async_label_or_null(call));
}

void async_try_publish(AsyncCall *call) {
    CommObject *self = call->comm;
    const Plan *plan = (const Plan *)call->plan;
    if (call->kind != AH_KIND_ALL_REDUCE || call->state != CALL_WAITING || call->is_cancelled ||
        !ah_all_reduce_splits(self->comm, plan->type, plan->count) || self->closed ||
        call->sequence > self->limit || self->comm->interrupted >= call->sequence)
        return;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) return;
    if (self->pending == NULL && self->first_async == call &&
        ah_slot_is_free(self->comm, call->sequence)) {
        self->running_async = call;
        begin(call);
        ah_status status = ah_all_reduce_start(self->comm, &call->running.call, plan->op,
                                               plan->type, call->out, plan->count);
        self->running_async = NULL;
        if (status != AH_OK) Py_FatalError("allhands: a call that had room was not published");
        call->state = CALL_PUBLISHED;
    }
    PyThread_release_lock(self->turn);
}

/* Keep the exception that is set for who waits. */
static void keep_error(AsyncCall *call) {
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &call->error, &traceback);
    PyErr_NormalizeException(&type, &call->error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(call->error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
}

static void skip(AsyncCall *call) {
    CommObject *self = call->comm;
    ah_comm_skip(self->comm, call->sequence);
    PyObject *done = PyObject_CallMethod(call->context, "on_skipped", "K", call->sequence);
    if (done == NULL) PyErr_WriteUnraisable(call->context);
    Py_XDECREF(done);
}

/* Run the first one, by who has the turn. -1 with an exception of a signal handler set, which is
 * for this thread; what it ended has an error of its own. */
static int run_first(CommObject *self) {
    AsyncCall *call = self->first_async;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    self->running_async = call;
    if (call->is_cancelled)
        skip(call);
    else {
        ah_status status;
        if (call->state == CALL_PUBLISHED) {
            async_load_plan(call);
            status = ah_all_reduce_finish(self->comm, self->plan.op, self->plan.type, call->out,
                                          self->plan.count);
        } else {
            call->state = CALL_RUNNING;
            begin(call);
            status = run_plan(self, &call->running.call);
        }
        bool failed = call_end(self, &call->running, status, async_label_or_null(call)) < 0;
        if (failed && !PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            call_raise(self, &call->running, AH_INTERRUPTED, async_label_or_null(call));
        }
        call->variant = self->variant;
        if (failed) keep_error(call);
        call->state = failed ? CALL_FAILED : CALL_ENDED;
    }
    self->running_async = NULL;
    async_remove_first(self);
    Py_CLEAR(call->arrays);
    if (type == NULL) return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Let those know of the end of a call who have its future; without the turn, since they may run
 * anything. -1 with an exception of a signal handler. */
static int tell_future(AsyncCall *call) {
    PyObject *done = PyObject_CallMethod((PyObject *)call, "complete_future", NULL);
    Py_XDECREF(done);
    if (done != NULL) return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_WriteUnraisable((PyObject *)call);
    return 0;
}

void async_set_due(CommObject *self) {
    if (self->first_async == NULL) {
        self->is_urgent = false;
        atomic_store_explicit(&self->due, INT64_MAX, memory_order_relaxed);
        return;
    }
    if (self->handed_over) return;
    bool is_published =
        self->first_async->state == CALL_PUBLISHED && self->first_async->next == NULL;
    int64_t grace = self->is_urgent ? 0 : is_published ? PUBLISHED_GRACE_NS : GRACE_NS;
    int64_t due = ah_now() + grace;
    if (due >= atomic_load_explicit(&self->due, memory_order_relaxed)) return;
    atomic_store(&self->due, due);
    timer_note(self->timer, due, !self->is_urgent && self->last_async->nbytes < LARGE_BYTES);
}

int async_finish(CommObject *self, const AsyncCall *last) {
    if (self->pending != NULL && self->finish_pending(self) < 0) {
        PyThread_release_lock(self->turn);
        return -1;
    }
    if (self->first_async == NULL) return 0;
    while (self->first_async != NULL && (last == NULL || last->state < CALL_ENDED)) {
        AsyncCall *call = self->first_async;
        int interrupted = run_first(self);
        if (interrupted == 0 && call->future == NULL) {
            Py_DECREF(call);
            continue;
        }
        PyThread_release_lock(self->turn);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (call->future != NULL && tell_future(call) < 0) interrupted = -1;
        if (type != NULL) PyErr_Restore(type, value, traceback);
        Py_DECREF(call);
        if (interrupted) {
            async_set_due(self);
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->turn, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    async_set_due(self);
    return 0;
}

bool async_is_ready(CommObject *self) {
    const AsyncCall *first = self->first_async;
    return first != NULL && first->state == CALL_PUBLISHED && self->pending == NULL &&
           self->comm->interrupted < first->sequence &&
           ah_all_posted_alike(self->comm, first->sequence);
}

int async_run_ready(AsyncCall *call) {
    CommObject *self = call->comm;
    while (!async_has_ended(call) && async_is_ready(self) &&
           PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) {
        AsyncCall *first = self->first_async;
        int failed = async_is_ready(self) ? run_first(self) : 1;
        PyThread_release_lock(self->turn);
        if (failed == 1) continue;
        if (self->first_async != NULL) async_try_publish(self->first_async);
        if (failed == 0 && first->future != NULL) failed = tell_future(first);
        Py_DECREF(first);
        if (failed) return -1;
    }
    if (!self->handed_over) async_set_due(self);
    return 0;
}

/* Run the first call and return it; None: there is none, or another thread waits to run it. */
PyObject *comm_run_next(CommObject *self, PyObject *unused) {
    (void)unused;
    if (!comm_is_own(self)) return NULL;
    if (self->first_async == NULL) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    if (self->pending != NULL && self->finish_pending(self) < 0) {
        PyThread_release_lock(self->turn);
        return NULL;
    }
    AsyncCall *call = self->waiters > 0 ? NULL : self->first_async;
    int failed = call == NULL ? 0 : run_first(self);
    PyThread_release_lock(self->turn);
    if (failed < 0) {
        Py_DECREF(call);
        return NULL;
    }
    if (call == NULL) Py_RETURN_NONE;
    return (PyObject *)call;
}

/* Whether a thread is to be told to run what is queued: it is, and the caller does. */
PyObject *comm_hand_over(CommObject *self, PyObject *unused) {
    (void)unused;
    self->is_urgent = self->first_async != NULL;
    if (self->handed_over || self->first_async == NULL) Py_RETURN_FALSE;
    self->handed_over = true;
    atomic_store(&self->due, INT64_MAX);
    Py_RETURN_TRUE;
}

/* Say that the thread that was told does something else from here on. */
PyObject *comm_take_back(CommObject *self, PyObject *unused) {
    (void)unused;
    self->handed_over = false;
    async_set_due(self);
    Py_RETURN_NONE;
}
