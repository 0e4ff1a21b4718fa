#include "python/atomic_calls_state.h"
#include "python/first_error.h"
#include "python/link_collectives_state.h"

#define NANOSECONDS 1e9

/* Let the queue know that a call is over, if it waits for that; -1 with an exception, the first
 * that was set. */
static int tell_idle(AtomicObject *self) {
    FirstError first = first_error_keep();
    for (int i = 0; i < FIRST_ERROR_ATTEMPTS && self->is_awaited; i++) {
        Py_XDECREF(PyObject_CallNoArgs(self->on_idle));
        first_error_add(&first);
    }
    return first_error_raise(&first);
}

static int list_outputs(const LinkCollectivesObject *links, const LinkArguments *given,
                        AtomicOutput outputs[]) {
    int count = link_count_outputs(given, links->rank);
    for (int at = 0; at < count; at++)
        outputs[at] = (AtomicOutput){PyArray_DATA(given->arrays[at]),
                                     (size_t)PyArray_NBYTES(given->arrays[at])};
    return count;
}

/* Begin the barrier behind a call: True: it has ended; else its work; NULL with an exception: it
 * was not begun. Within a delay of the gate. */
static PyObject *begin_barrier(AtomicObject *self, LinkCollectivesObject *links) {
    PyObject *timeout = PyFloat_FromDouble((double)self->confirm_ns / NANOSECONDS);
    if (timeout == NULL) return NULL;
    LinkCallRequest request = {
        .arguments = {.kind = AH_KIND_BARRIER, .root = -1},
        .timeout = timeout,
        .label = Py_None,
        .mode = LINK_CONFIRM,
        .value = Py_None,
    };
    PyObject *begun = link_collectives_run(links, &request);
    Py_DECREF(timeout);
    if (begun != Py_False) return begun;
    Py_DECREF(begun);
    gate_before_python(&links->gate);
    return PyObject_CallNoArgs(self->make_barrier);
}

/* Make the barrier behind a call: who comes out of it knows that all ranks have the result. An
 * exception of a signal leaves it to be gone on with, by its work if there is one. */
static int confirm(AtomicObject *self, LinkCollectivesObject *links, AtomicFailure *failure) {
    GateDelay delay;
    failure->was_left = true;
    gate_begin_delay(&links->gate, &delay);
    PyObject *begun = begin_barrier(self, links);
    int interrupted = gate_end_delay(&links->gate);
    if (begun == Py_True) { /* whatever came meanwhile, the call is done for all */
        Py_DECREF(begun);
        self->returned++;
        return interrupted;
    }
    failure->confirming = begun;
    if (interrupted) return -1;
    PyObject *waited = PyObject_CallMethod(begun, "wait", NULL);
    if (waited == NULL) {
        failure->was_left = !PyErr_ExceptionMatches(PyExc_Exception);
        return -1;
    }
    Py_DECREF(waited);
    self->returned++;
    return 0;
}

static PyObject *carry_out(AtomicObject *self, LinkCollectivesObject *links,
                           const LinkCallRequest *request) {
    AtomicOutput outputs[LINK_ARRAYS];
    int count = list_outputs(links, &request->arguments, outputs);
    self->state = ATOMIC_RUNNING;
    if (!atomic_back_up(self, outputs, count)) {
        self->state = ATOMIC_IDLE;
        return tell_idle(self) < 0 ? NULL : Py_NewRef(Py_False);
    }
    uint64_t before = links->sequence;
    unsigned long long returned = self->returned;
    PyObject *done = link_collectives_run(links, request);
    AtomicFailure failure = {links->sequence, done == Py_True, false, NULL};
    bool has_begun = links->sequence != before;
    int failed = done == NULL ? -1 : 0;
    if (failure.is_computed) {
        Py_XSETREF(self->last_how, Py_XNewRef(links->how));
        self->last_kind = request->arguments.kind;
        self->last_bytes = links->nbytes;
        self->computed++;
        failed = confirm(self, links, &failure);
    }
    if (self->returned > returned) self->last_number++;
    bool is_open = has_begun && failed && self->returned == returned;
    self->state = is_open ? ATOMIC_FAILED : ATOMIC_IDLE;
    if (tell_idle(self) < 0) Py_CLEAR(done);
    if (is_open) done = atomic_hand_over(self, &failure, outputs, count);
    Py_XDECREF(failure.confirming);
    return done;
}

PyObject *atomic_call_over_links(AtomicObject *self, ah_kind kind) {
    if (self->links == NULL) Py_RETURN_FALSE;
    LinkCollectivesObject *links = (LinkCollectivesObject *)Py_NewRef(self->links);
    LinkCallRequest request;
    int read = link_collectives_read(links, kind, self->args, self->nargs, LINK_WAIT, &request);
    PyObject *done = NULL, *timeout = NULL;
    if (read > 0 && request.timeout == Py_None)
        request.timeout = timeout = PyFloat_FromDouble((double)self->timeout_ns / NANOSECONDS);
    if (read == 0 || (read > 0 && (request.label != Py_None || !link_collectives_takes(&request))))
        done = Py_NewRef(Py_False);
    else if (read > 0 && request.timeout != NULL) {
        link_hold_arrays(&request.arguments); /* of a list that another thread changes */
        done = carry_out(self, links, &request);
        link_release_arrays(&request.arguments);
    }
    Py_XDECREF(timeout);
    Py_DECREF(links);
    return done;
}
