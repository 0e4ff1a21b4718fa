#include "python/inline_calls.h"

#include <stdlib.h>

#include "python/block_pool.h"
#include "python/call_run.h"
#include "python/plan.h"
#include "python/turn.h"

/* Where the bytes lie that a rank sends; arrays are borrowed from the caller, who waits. */
typedef struct {
    ah_message to[AH_MAX_RANKS];
    ah_buffer *buffers;
    size_t buffer_count;
    Py_buffer *views; /* of what is no array */
    size_t view_count;
} Sources;

static void sources_release(Sources *sources) {
    for (size_t at = 0; at < sources->view_count; at++) PyBuffer_Release(&sources->views[at]);
    free(sources->buffers);
    free(sources->views);
}

static bool add_buffer(Sources *sources, PyObject *given) {
    ah_buffer *buffer = &sources->buffers[sources->buffer_count];
    if (PyArray_Check(given) && PyArray_CHKFLAGS((PyArrayObject *)given, NPY_ARRAY_C_CONTIGUOUS)) {
        *buffer = (ah_buffer){PyArray_DATA((PyArrayObject *)given),
                              (size_t)PyArray_NBYTES((PyArrayObject *)given)};
    } else {
        Py_buffer *view = &sources->views[sources->view_count];
        if (PyObject_GetBuffer(given, view, PyBUF_SIMPLE) < 0) return false;
        sources->view_count++;
        *buffer = (ah_buffer){view->buf, (size_t)view->len};
    }
    sources->buffer_count++;
    return true;
}

static bool add_message(Sources *sources, ah_message *message, PyObject *given) {
    *message = (ah_message){.buffers = sources->buffers + sources->buffer_count,
                            .count = (size_t)PyTuple_GET_SIZE(given)};
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(given); at++) {
        if (!add_buffer(sources, PyTuple_GET_ITEM(given, at))) return false;
        message->nbytes += message->buffers[at].nbytes;
    }
    return true;
}

/* The message for a rank, a tuple of buffers; NULL: none, or with an exception. Messages are one
 * tuple for all ranks, a list of one for each, or a dict of some by their ranks. */
static PyObject *message_for(PyObject *given, int rank) {
    if (PyTuple_Check(given)) return given;
    if (PyList_Check(given)) return PyList_GET_ITEM(given, rank);
    PyObject *key = PyLong_FromLong(rank);
    PyObject *found = key ? PyDict_GetItemWithError(given, key) : NULL;
    Py_XDECREF(key);
    return found;
}

static bool are_messages(PyObject *given, int size) {
    if (PyTuple_Check(given)) return true;
    if (!PyDict_Check(given) && !(PyList_Check(given) && PyList_GET_SIZE(given) == size))
        return false;
    for (int rank = 0; rank < size; rank++) {
        PyObject *message = message_for(given, rank);
        if (message != NULL ? !PyTuple_Check(message) : PyErr_Occurred() != NULL) return false;
    }
    return true;
}

static bool read_messages(Sources *sources, PyObject *given, int size) {
    int messages = PyTuple_Check(given) ? 1 : size;
    size_t count = 0;
    for (int rank = 0; rank < messages; rank++) {
        PyObject *message = message_for(given, rank);
        count += message ? (size_t)PyTuple_GET_SIZE(message) : 0;
    }
    sources->buffers = malloc((count + 1) * sizeof *sources->buffers);
    sources->views = malloc((count + 1) * sizeof *sources->views);
    if (sources->buffers == NULL || sources->views == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int rank = 0; rank < messages; rank++) {
        PyObject *message = message_for(given, rank);
        if (message != NULL && !add_message(sources, &sources->to[rank], message)) return false;
    }
    return true;
}

/* ah_messages.allocate: arrays of bytes for what comes, None in the own place. */
static bool allocate_received(void *owner, const size_t nbytes[], char *out[]) {
    RunningCall *running = owner;
    CommObject *self = running->self;
    bool paused = running->saved != NULL;
    if (paused) PyEval_RestoreThread(running->saved);
    self->received = PyTuple_New(self->size);
    for (int rank = 0; rank < self->size && self->received != NULL; rank++) {
        PyObject *place = NULL;
        if (rank == self->rank)
            place = Py_NewRef(Py_None);
        else if (nbytes[rank] <= PY_SSIZE_T_MAX)
            place = pool_new_array(nbytes[rank]);
        else
            PyErr_NoMemory();
        if (place == NULL) {
            Py_CLEAR(self->received);
            break;
        }
        PyTuple_SET_ITEM(self->received, rank, place);
        if (rank != self->rank) out[rank] = PyArray_DATA((PyArrayObject *)place);
    }
    bool allocated = self->received != NULL;
    if (paused) running->saved = PyEval_SaveThread();
    return allocated;
}

static void plan_exchange(Plan *plan, const Sources *sources, bool is_same, PyObject *call,
                          PyObject *operation, uint64_t signature) {
    plan->kind = AH_KIND_EXCHANGE;
    plan->op = plan->root = -1;
    plan->dtype = NULL;
    plan->count = plan->itemsize = 0;
    plan->typesig = signature;
    plan_no_shape(plan);
    plan->messages =
        (ah_messages){.to = sources->to, .is_same = is_same, .allocate = allocate_received};
    plan->call = call;
    plan->call_name = PyUnicode_AsUTF8(operation);
}

/* By who has the turn; NULL with an exception. */
static PyObject *run(CommObject *self, unsigned long long sequence, double timeout, double deadline,
                     PyObject *label) {
    bool now = sequence == 0;
    self->from_queue = !now;
    self->inline_thread = now ? PyThread_get_thread_ident() : 0;
    self->received = NULL;
    int failed =
        call_run(self, now ? ++self->last_number : sequence, (int64_t)(timeout * NANOSECONDS),
                 (int64_t)(deadline * NANOSECONDS), label == Py_None ? NULL : label);
    self->from_queue = false;
    self->inline_thread = 0;
    self->plan.call = NULL;
    PyObject *received = self->received;
    self->received = NULL;
    if (failed) Py_CLEAR(received);
    return failed || received ? received : PyTuple_Pack(1, Py_None); /* one rank alone */
}

PyObject *comm_exchange(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    /* sequence, messages, call, operation, signature, timeout, deadline, label */
    if (nargs != 8 || !are_messages(args[1], self->size) || !PyUnicode_Check(args[3]))
        return PyErr_Format(PyExc_TypeError, "exchange(sequence, messages, call, operation, "
                                             "signature, timeout, deadline, label)");
    unsigned long long sequence = PyLong_AsUnsignedLongLong(args[0]);
    unsigned long long signature = PyLong_AsUnsignedLongLong(args[4]);
    double timeout = PyFloat_AsDouble(args[5]), deadline = PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred() || PyUnicode_AsUTF8(args[3]) == NULL) return NULL;
    Sources sources = {0};
    if (!read_messages(&sources, args[1], self->size)) {
        sources_release(&sources);
        return NULL;
    }
    int entered = sequence == 0 ? comm_try_enter(self, PyUnicode_AsUTF8(args[3]), args[7])
                                : comm_acquire_turn(self) + 1;
    PyObject *received = entered < 0 || sequence != 0 ? NULL : Py_NewRef(Py_False);
    if (entered == 1) {
        Py_CLEAR(received);
        if (sequence > self->limit) ah_comm_interrupt(self->comm, sequence);
        plan_exchange(&self->plan, &sources, PyTuple_Check(args[1]), args[2], args[3], signature);
        if (plan_label(&self->plan, args[7]))
            received = run(self, sequence, timeout, deadline, args[7]);
        else
            PyErr_SetString(PyExc_TypeError, "a label must be a str");
        PyThread_release_lock(self->turn);
    }
    sources_release(&sources);
    return received;
}
