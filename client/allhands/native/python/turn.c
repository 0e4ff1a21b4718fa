#include "python/turn.h"

#include "python/async_queue.h"
#include "python/call_run.h"
#include "python/plan.h"

bool comm_is_open(const CommObject *self) {
    return !self->closed && self->queued == 0 && self->last_number < self->limit &&
           self->generation == comm_generation;
}

static int refuse(CommObject *self, const char *operation, unsigned long thread, uint64_t sequence,
                  const char *other) {
    PyObject *done = PyObject_CallFunction(self->on_clash, "skKs", operation, thread,
                                           (unsigned long long)sequence, other);
    if (done == NULL) return -1;
    Py_DECREF(done);
    return 0;
}

int comm_refuse_clash(CommObject *self, const char *operation, PyObject *label) {
    uint64_t sequence;
    const char *other;
    unsigned long thread = async_waiting_thread(self, label, &sequence, &other);
    if (self->on_clash == NULL) return 0;
    if (thread != 0) return refuse(self, operation, thread, sequence, other);
    if (self->inline_thread == 0 || self->inline_thread == PyThread_get_thread_ident()) return 0;
    Plan mine;
    if (!plan_label(&mine, label) || mine.labelsig != self->plan.labelsig) return 0;
    return refuse(self, operation, self->inline_thread, self->begun, plan_name(&self->plan));
}

/* Finish what was begun or queued before; as CommObject.finish_async. */
static int finish_earlier(CommObject *self) {
    if (self->first_async != NULL) return self->finish_async(self, NULL);
    if (self->pending == NULL || self->finish_pending(self) == 0) return 0;
    PyThread_release_lock(self->turn);
    return -1;
}

int comm_try_enter(CommObject *self, const char *operation, PyObject *label) {
    if (!comm_is_open(self)) return 0;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK))
        return comm_refuse_clash(self, operation, label);
    if (self->pending == NULL && self->first_async == NULL) return 1;
    if (self->first_async != NULL && comm_refuse_clash(self, operation, label) < 0) {
        PyThread_release_lock(self->turn);
        return -1;
    }
    if (finish_earlier(self) < 0) return -1;
    /* That took time, in which others may have taken a number. */
    bool entered = comm_is_open(self) && self->first_async == NULL;
    if (!entered) PyThread_release_lock(self->turn);
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
    return finish_earlier(self);
}
