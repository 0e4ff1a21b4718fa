#define _GNU_SOURCE
#include "python/async_run.h"

#include "comm/call.h"
#include "comm/host.h"
#include "python/call_run.h"
#include "python/due_timer.h"
#include "python/kind_calls.h"
#include "python/received.h"
#include "python/turn.h"

/* How long calls may wait for somebody to run them, before a thread is told to. One that is
 * published keeps no other rank waiting. */
#define GRACE_NS (100 * 1000LL)
#define PUBLISHED_GRACE_NS (2 * 1000 * 1000LL)
/* A thread that has to share a processor with what the program computes hides nothing, and each of
 * its waits for other ranks' threads costs a turn of the scheduler: whoever waits does it better.
 */
#define SHARED_CPU_GRACE_NS (10 * 1000 * 1000LL)
/* Calls so large take so long that it matters when they begin: beside what the program computes. */
#define LARGE_BYTES ((size_t)4 << 20)

static void begin(AsyncCall *call) {
    CommObject *self = call->comm;
    async_load_plan(call);
    if (call->sequence > self->limit) /* which may have been set after it took its number */
        ah_comm_interrupt(self->comm, call->sequence);
    call_begin(self, &self->first_running, call->sequence, call->timeout, call->deadline,
               async_label_or_null(call));
    self->first_running.call.is_posted = call->is_ahead;
}

/* Whether the call can be posted before its turn, and those behind it. */
static bool posts_ahead(const AsyncCall *call) {
    const CommObject *self = call->comm;
    return call->kind == AH_KIND_ALL_REDUCE && call->nbytes <= self->comm->limits.slot_max &&
           !self->verifies && !call->is_cancelled && call->sequence <= self->limit;
}

static bool lie_apart(const AsyncCall *call, const AsyncCall *other) {
    const char *from = call->out, *others = other->out;
    return from + call->nbytes <= others || others + other->nbytes <= from;
}

/* Whether an array is of no call before this one, whose result it would have to have first. */
static bool is_of_no_call_before(const AsyncCall *call) {
    for (const AsyncCall *before = call->comm->first_async; before != call; before = before->next)
        if (!lie_apart(call, before)) return false;
    return true;
}

/* Post what follows the first call, by who has the turn: other ranks find the more in one turn of
 * theirs. A batch at a time, because whoever posts looks at those before. */
static void post_ahead(CommObject *self) {
    AsyncCall *call = self->first_async;
    if (call->is_ahead || self->size == 1 || !posts_ahead(call)) return;
    uint64_t number = call->sequence, last = number + AH_AHEAD;
    for (AsyncCall *next = call->next; next != NULL && number < last; next = next->next) {
        if (next->sequence != ++number) return; /* that one is in other hands */
        if (next->is_ahead) continue;
        if (!posts_ahead(next) || !is_of_no_call_before(next)) return;
        const Plan *plan = (const Plan *)next->plan;
        ah_call posted = {.sequence = next->sequence, .signature = call_signature(plan)};
        if (!ah_all_reduce_post(self->comm, &posted, plan->op, plan->type, next->out, plan->count))
            return;
        next->is_ahead = true;
    }
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
    PyObject *done = PyObject_CallMethod(self->async_context, "on_skipped", "K", call->sequence);
    if (done == NULL) PyErr_WriteUnraisable(self->async_context);
    Py_XDECREF(done);
}

/* Keep what a composite call has given: arrays of an exchange as the value, all else for Python. -1
 * with an exception. */
static int keep_received(AsyncCall *call) {
    if (call->kind == AH_KIND_REDUCE_SCATTER_V)
        call->received = Py_NewRef(PyTuple_GET_ITEM(call->arrays, 1));
    if (call->kind != AH_KIND_EXCHANGE) return 0;
    PyObject *received = take_received(call->comm);
    if (received == NULL) return -1;
    if (call->value == Py_None)
        Py_DECREF(received);
    else if (PyArray_Check(call->value)) {
        PyObject *arrays = list_received_arrays(received, (PyArrayObject *)call->value);
        Py_DECREF(received);
        if (arrays == NULL) return -1;
        Py_SETREF(call->value, arrays);
    } else
        call->received = received;
    return 0;
}

/* End what run_first has run; -1 with an exception unless it ended well. */
static int end_first(AsyncCall *call, ah_status status) {
    CommObject *self = call->comm;
    int failed = call_end(self, &self->first_running, status, async_label_or_null(call));
    if (!failed && call->composite != NULL) failed = keep_received(call);
    Py_CLEAR(self->received); /* of one that failed */
    return failed;
}

enum { INTERRUPTED = -1, ENDED, PENDING };

/* Run the first one, by who has the turn; one that only tries may still be PENDING then.
 * INTERRUPTED with an exception of a signal handler set, which is for this thread; what it ended
 * has an error of its own. */
static int run_first(CommObject *self, bool only_tries) {
    AsyncCall *call = self->first_async;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    self->running_async = call;
    if (call->is_cancelled)
        skip(call);
    else {
        if (call->state == CALL_PUBLISHED)
            async_load_plan(call);
        else
            begin(call);
        call->state = CALL_RUNNING;
        self->first_running.call.only_tries = only_tries;
        ah_status status = run_plan(self, &self->first_running.call);
        if (status == AH_PENDING) {
            call->state = CALL_PUBLISHED;
            self->plan.call = NULL;
            self->running_async = NULL;
            return PENDING;
        }
        bool failed = end_first(call, status) < 0;
        if (failed && !PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            call_raise(self, &self->first_running, AH_INTERRUPTED, async_label_or_null(call));
        }
        call->variant = self->variant;
        if (failed) keep_error(call);
        call->state = failed ? CALL_FAILED : CALL_ENDED;
    }
    self->plan.call = NULL; /* which names the call in errors up to here */
    self->running_async = NULL;
    async_remove_first(self);
    Py_CLEAR(call->arrays);
    if (type == NULL) return ENDED;
    PyErr_Restore(type, value, traceback);
    return INTERRUPTED;
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

/* Give up a call that run_first has ended with this result, without the turn; returns the result
 * for this thread. */
static int let_go(AsyncCall *call, int result) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (call->future != NULL && tell_future(call) < 0) result = INTERRUPTED;
    if (type != NULL) PyErr_Restore(type, value, traceback);
    Py_DECREF(call);
    return result;
}

void async_set_due(CommObject *self) {
    async_set_due_at(self, self->first_async == NULL || self->handed_over ? 0 : ah_now());
}

void async_set_due_at(CommObject *self, int64_t now) {
    if (self->first_async == NULL) {
        self->is_urgent = false;
        atomic_store_explicit(&self->due, INT64_MAX, memory_order_relaxed);
        return;
    }
    if (self->handed_over) return;
    const AsyncCall *first = self->first_async;
    bool is_published = first->state == CALL_PUBLISHED && first->next == NULL &&
                        first->nbytes <= self->comm->limits.slot_max;
    int64_t waits = self->comm->has_spare_cpu ? GRACE_NS : SHARED_CPU_GRACE_NS;
    int64_t grace = self->is_urgent ? 0 : is_published ? PUBLISHED_GRACE_NS : waits;
    int64_t due = now + grace;
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
        post_ahead(self);
        int result = run_first(self, false);
        if (result == ENDED && call->future == NULL) {
            Py_DECREF(call);
            continue;
        }
        PyThread_release_lock(self->turn);
        if (let_go(call, result) == INTERRUPTED) {
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

bool async_is_ready(CommObject *self, size_t nbytes) {
    const AsyncCall *first = self->first_async;
    if (first == NULL || self->pending != NULL || first->is_cancelled || self->closed ||
        first->sequence > self->limit || self->comm->interrupted >= first->sequence)
        return false;
    if (first->state == CALL_PUBLISHED)
        return self->first_running.call.waiting != 0 &&
               ah_have_posted_alike(self->comm, self->first_running.call.waiting, first->sequence);
    return first->state == CALL_WAITING && first->nbytes <= nbytes &&
           ah_slot_is_free(self->comm, first->sequence);
}

int async_run_ready(AsyncCall *call, size_t nbytes) {
    CommObject *self = call->comm;
    int result = ENDED;
    while (result == ENDED && async_is_ready(self, nbytes) &&
           PyThread_acquire_lock(self->turn, NOWAIT_LOCK)) {
        AsyncCall *first = self->first_async;
        result = async_is_ready(self, nbytes) ? run_first(self, true) : PENDING;
        if (result == PENDING && self->first_async != NULL) post_ahead(self);
        PyThread_release_lock(self->turn);
        if (result == PENDING) break;
        result = let_go(first, result);
        if (async_has_ended(call)) nbytes = self->comm->limits.slot_max;
    }
    if (!self->handed_over) async_set_due(self);
    return result == INTERRUPTED ? -1 : 0;
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
    if (call != NULL) post_ahead(self);
    int failed = call == NULL ? 0 : run_first(self, false);
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
