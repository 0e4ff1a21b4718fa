#include "python/turn.h"

#include "python/call_run.h"
#include "python/plan.h"

static bool is_open(const CommObject *self) {
    return !self->closed && self->queued == 0 && self->last_number < self->limit &&
           self->generation == comm_generation;
}

/* Refuse a call while another thread is in one under the same label: -1. Ranks could not tell which
 * of the two belongs to which of theirs. */
static int refuse_clash(CommObject *self, const char *operation, PyObject *label) {
    if (self->on_clash == NULL || self->inline_thread == 0 ||
        self->inline_thread == PyThread_get_thread_ident())
        return 0;
    Plan mine;
    if (!plan_label(&mine, label) || mine.labelsig != self->plan.labelsig) return 0;
    PyObject *done = PyObject_CallFunction(self->on_clash, "skKs", operation, self->inline_thread,
                                           (unsigned long long)self->begun, plan_name(&self->plan));
    if (done == NULL) return -1;
    Py_DECREF(done);
    return 0;
}

int comm_try_enter(CommObject *self, const char *operation, PyObject *label) {
    if (!is_open(self)) return 0;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK))
        return refuse_clash(self, operation, label);
    if (self->pending == NULL) return 1;
    /* That takes time, in which others may have taken a number. */
    int entered = self->finish_pending(self) < 0 ? -1 : is_open(self);
    if (entered <= 0) PyThread_release_lock(self->turn);
    return entered;
}

bool comm_is_own(const CommObject *self) {
    if (self->generation == comm_generation) return true;
    PyObject *errors = PyImport_ImportModule("allhands.errors");
    PyObject *error = errors ? PyObject_GetAttrString(errors, "ForkedProcess") : NULL;
    Py_XDECREF(errors);
    if (error != NULL) PyErr_SetNone(error);
    Py_XDECREF(error);
    return false;
}

int comm_acquire_turn(CommObject *self) {
    if (!comm_is_own(self)) return -1;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    if (self->pending == NULL || self->finish_pending(self) == 0) return 0;
    PyThread_release_lock(self->turn);
    return -1;
}
