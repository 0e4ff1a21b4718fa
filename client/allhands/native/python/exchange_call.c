#include "python/exchange_call.h"

#include <stdlib.h>

#include "python/async_calls.h"
#include "python/block_pool.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/inline_calls.h"
#include "python/plan.h"
#include "python/received.h"
#include "python/turn.h"

void sources_release(Sources *sources) {
    for (size_t at = 0; at < sources->view_count; at++) PyBuffer_Release(&sources->views[at]);
    free(sources->buffers);
    free(sources->views);
    free(sources->heads);
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

/* What is for a rank; NULL: nothing, or with an exception. Messages are one for all ranks, a list
 * of one for each, or a dict of some by their ranks; one is a tuple of buffers, or an array. */
static PyObject *message_for(PyObject *given, int rank) {
    if (PyList_Check(given)) return PyList_GET_ITEM(given, rank);
    if (!PyDict_Check(given)) return given;
    PyObject *key = PyLong_FromLong(rank);
    PyObject *found = key ? PyDict_GetItemWithError(given, key) : NULL;
    Py_XDECREF(key);
    return found;
}

static bool is_one_message(PyObject *given) { return !PyList_Check(given) && !PyDict_Check(given); }

static bool is_buffers(PyObject *message) { return PyTuple_Check(message); }

static bool is_array(PyObject *message) {
    return PyArray_Check(message) &&
           PyArray_CHKFLAGS((PyArrayObject *)message, NPY_ARRAY_C_CONTIGUOUS) &&
           PyArray_NDIM((PyArrayObject *)message) <= HEAD_DIMS &&
           !PyDataType_REFCHK(PyArray_DESCR((PyArrayObject *)message));
}

static bool are_messages(PyObject *given, int size, bool (*is_message)(PyObject *)) {
    if (is_one_message(given)) return is_message(given);
    if (PyList_Check(given) && PyList_GET_SIZE(given) != size) return false;
    for (int rank = 0; rank < size; rank++) {
        PyObject *message = message_for(given, rank);
        if (message != NULL ? !is_message(message) : PyErr_Occurred() != NULL) return false;
    }
    return true;
}

bool sources_make_room(Sources *sources, size_t buffers, size_t views, size_t heads) {
    sources->buffers = malloc((buffers + 1) * sizeof *sources->buffers);
    sources->views = malloc((views + 1) * sizeof *sources->views);
    sources->heads = malloc((heads + 1) * sizeof *sources->heads);
    if (sources->buffers && sources->views && sources->heads) return true;
    PyErr_NoMemory();
    return false;
}

static bool read_messages(Sources *sources, PyObject *given, int size) {
    int messages = is_one_message(given) ? 1 : size;
    size_t count = 0;
    for (int rank = 0; rank < messages; rank++) {
        PyObject *message = message_for(given, rank);
        count += message ? (size_t)PyTuple_GET_SIZE(message) : 0;
    }
    if (!sources_make_room(sources, count, count, 0)) return false;
    for (int rank = 0; rank < messages; rank++) {
        PyObject *message = message_for(given, rank);
        if (message != NULL && !add_message(sources, &sources->to[rank], message)) return false;
    }
    return true;
}

void sources_add_array(Sources *sources, int place, int rank, PyArrayObject *array,
                       const DtypeName *name) {
    ah_buffer *buffers = sources->buffers + 2 * place;
    ArrayHead *head = &sources->heads[place];
    buffers[0] = (ah_buffer){head, array_head_write(head, array, name)};
    buffers[1] = (ah_buffer){PyArray_DATA(array), (size_t)PyArray_NBYTES(array)};
    sources->to[rank] = (ah_message){
        .buffers = buffers, .count = 2, .nbytes = buffers[0].nbytes + buffers[1].nbytes};
}

/* As read_messages, of arrays. */
static bool read_arrays(Sources *sources, PyObject *given, int size) {
    int messages = is_one_message(given) ? 1 : size;
    if (!sources_make_room(sources, 2 * (size_t)messages, 0, (size_t)messages)) return false;
    for (int rank = 0; rank < messages; rank++) {
        PyObject *array = message_for(given, rank);
        if (array != NULL) sources_add_array(sources, rank, rank, (PyArrayObject *)array, NULL);
    }
    return true;
}

/* ah_messages.allocate: arrays of bytes for what comes, None in the own place. */
static bool allocate_received(void *owner, const size_t nbytes[], char *out[]) {
    RunningCall *running = owner;
    CommObject *self = running->self;
    bool paused = running->saved != NULL;
    if (paused) PyEval_RestoreThread(running->saved);
    Py_CLEAR(self->received); /* of a call that goes on */
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

void exchange_plan(Plan *plan, const Sources *sources, bool is_same, PyObject *call,
                   const char *operation, uint64_t signature) {
    plan->kind = AH_KIND_EXCHANGE;
    plan->op = plan->root = -1;
    plan->dtype = NULL;
    plan->count = plan->itemsize = 0;
    plan->typesig = signature;
    plan_no_shape(plan);
    plan->messages = (ah_messages){
        .to = sources->to, .is_same = is_same, .root = -1, .allocate = allocate_received};
    plan->call = call;
    plan->call_name = operation;
}

PyObject *exchange_run(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
                       PyObject *label) {
    self->received = NULL;
    if (call_run_composite(self, sequence, timeout, deadline, label) == 0)
        return take_received(self);
    Py_CLEAR(self->received);
    return NULL;
}

/* The kinds of messages that an exchange takes. */
typedef struct {
    bool (*is_message)(PyObject *);
    bool (*read)(Sources *sources, PyObject *given, int size);
} MessageKind;

static const MessageKind buffer_messages = {is_buffers, read_messages};
static const MessageKind array_messages = {is_array, read_arrays};

/* What an exchange takes; times in nanoseconds. */
typedef struct {
    uint64_t sequence; /* 0: now, if nothing is under way */
    PyObject *messages, *call, *operation, *signature, *label;
    int64_t timeout, deadline; /* 0: after the timeout */
    long root;                 /* -1: there is none */
    bool to_root;              /* as in ah_messages */
} Exchange;

/* The root that is given last, if it is, and whether all is sent to it; false with an exception. */
static bool read_root(const CommObject *self, PyObject *const *args, Py_ssize_t nargs,
                      Py_ssize_t before, Exchange *given) {
    given->root = -1;
    if (nargs == before) return true;
    given->root = PyLong_AsLong(args[before]);
    given->to_root = nargs > before + 1 && PyObject_IsTrue(args[before + 1]) == 1;
    if (!PyErr_Occurred() && (given->root < -1 || given->root >= self->size))
        PyErr_SetString(PyExc_ValueError, "no such root");
    return !PyErr_Occurred();
}

/* The name of the operation of what is given, with its messages' sources, to be released, and its
 * signature; NULL with an exception. */
static const char *read_exchange(const CommObject *self, const Exchange *given,
                                 const MessageKind *messages, Sources *sources,
                                 uint64_t *signature) {
    const char *operation =
        PyUnicode_Check(given->operation) ? PyUnicode_AsUTF8(given->operation) : NULL;
    if (operation == NULL || !are_messages(given->messages, self->size, messages->is_message)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "no messages of an operation");
        return NULL;
    }
    *signature = PyLong_AsUnsignedLongLong(given->signature);
    if (PyErr_Occurred()) return NULL;
    return messages->read(sources, given->messages, self->size) ? operation : NULL;
}

/* Write an exchange into a plan; false with an exception. */
static bool plan_exchange(Plan *plan, const Exchange *given, const Sources *sources,
                          const char *operation, uint64_t signature) {
    exchange_plan(plan, sources, is_one_message(given->messages), given->call, operation,
                  signature);
    plan->messages.root = (int)given->root;
    plan->messages.to_root = given->to_root;
    if (plan_label(plan, given->label)) return true;
    PyErr_SetString(PyExc_TypeError, "a label must be a str");
    return false;
}

static PyObject *exchange(CommObject *self, const Exchange *given, const MessageKind *messages) {
    Sources sources = {0};
    uint64_t signature;
    const char *operation = read_exchange(self, given, messages, &sources, &signature);
    if (operation == NULL) {
        sources_release(&sources);
        return NULL;
    }
    uint64_t sequence = given->sequence;
    int entered =
        sequence == 0 ? comm_try_enter(self, operation, given->label) : comm_acquire_turn(self) + 1;
    PyObject *received = entered < 0 || sequence != 0 ? NULL : Py_NewRef(Py_False);
    if (entered == 1) {
        Py_CLEAR(received);
        if (sequence > self->limit) ah_comm_interrupt(self->comm, sequence);
        if (plan_exchange(&self->plan, given, &sources, operation, signature))
            received = exchange_run(self, sequence, given->timeout, given->deadline, given->label);
        PyThread_release_lock(self->turn);
    }
    sources_release(&sources);
    return received;
}

/* sequence, messages, call, operation, signature, timeout, deadline, label, and perhaps a root and
 * whether all is sent to it; as ShmComm.exchange. */
static PyObject *exchange_at(CommObject *self, PyObject *const *args, Py_ssize_t nargs,
                             const MessageKind *messages) {
    if (nargs < 8 || nargs > 10)
        return PyErr_Format(PyExc_TypeError,
                            "exchange(sequence, messages, call, operation, signature, timeout, "
                            "deadline, label, root=-1, to_root=False)");
    double timeout = PyFloat_AsDouble(args[5]), deadline = PyFloat_AsDouble(args[6]);
    Exchange given = {.sequence = PyLong_AsUnsignedLongLong(args[0]),
                      .messages = args[1],
                      .call = args[2],
                      .operation = args[3],
                      .signature = args[4],
                      .timeout = (int64_t)(timeout * NANOSECONDS),
                      .deadline = (int64_t)(deadline * NANOSECONDS),
                      .label = args[7]};
    if (PyErr_Occurred() || !read_root(self, args, nargs, 8, &given)) return NULL;
    return exchange(self, &given, messages);
}

/* messages, call, operation, signature; as ShmComm.exchange_now. */
PyObject *comm_exchange_now(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs < 4 || nargs > 6)
        return PyErr_Format(
            PyExc_TypeError,
            "exchange_now(messages, call, operation, signature, root=-1, to_root=False)");
    int64_t limit = read_plain_limit(self->timeout_ns, Py_None);
    if (self->verifies || self->run_atomic != NULL || limit <= 0) Py_RETURN_FALSE;
    Exchange now = {.messages = args[0],
                    .call = args[1],
                    .operation = args[2],
                    .signature = args[3],
                    .timeout = limit,
                    .label = Py_None};
    if (!read_root(self, args, nargs, 4, &now)) return NULL;
    return exchange(self, &now, &buffer_messages);
}

PyObject *comm_exchange(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return exchange_at((CommObject *)self, args, nargs, &buffer_messages);
}

PyObject *comm_exchange_arrays(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    PyObject *received = exchange_at(self, args, nargs, &array_messages);
    if (received == NULL || received == Py_False) return received;
    PyObject *own = message_for(args[1], self->rank), *arrays = NULL;
    if (own != NULL)
        arrays = list_received_arrays(received, (PyArrayObject *)own);
    else if (!PyErr_Occurred())
        arrays = Py_NewRef(Py_None);
    Py_DECREF(received);
    return arrays;
}

/* ---------------------------------------------------------------- in the queue */

#define SOURCES "allhands.sources"

static void free_sources(PyObject *capsule) {
    Sources *sources = PyCapsule_GetPointer(capsule, SOURCES);
    sources_release(sources);
    PyMem_Free(sources);
}

/* What keeps the messages of a call, and where they lie. NULL with an exception. */
static PyObject *keep_sources(PyObject *messages, Sources **sources) {
    *sources = PyMem_Calloc(1, sizeof **sources);
    if (*sources == NULL) return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(*sources, SOURCES, free_sources);
    if (capsule == NULL) {
        PyMem_Free(*sources);
        return NULL;
    }
    PyObject *kept = PyTuple_Pack(2, capsule, messages);
    Py_DECREF(capsule);
    return kept;
}

/* messages, call, operation, signature, timeout, label, root, to_root, waits, and what reads the
 * result, NULL: nothing; as ShmComm.enqueue_exchange. */
static PyObject *enqueue(CommObject *self, PyObject *const *args, PyObject *reading,
                         const MessageKind *messages) {
    double timeout = PyFloat_AsDouble(args[4]);
    Exchange given = {.messages = args[0],
                      .call = args[1],
                      .operation = args[2],
                      .signature = args[3],
                      .label = args[5]};
    if (PyErr_Occurred() || !read_root(self, args, 8, 6, &given)) return NULL;
    if (!(timeout > 0) || !(timeout < 1e9)) Py_RETURN_NONE;
    int waits = PyObject_IsTrue(args[8]);
    Sources *sources;
    PyObject *kept = waits < 0 ? NULL : keep_sources(given.messages, &sources);
    if (kept == NULL) return NULL;
    PyObject *call = NULL;
    uint64_t signature;
    Plan plan = {.kind = AH_KINDS};
    const char *operation = read_exchange(self, &given, messages, sources, &signature);
    if (operation != NULL && plan_exchange(&plan, &given, sources, operation, signature)) {
        PyObject *own = reading ? NULL : message_for(given.messages, self->rank);
        int flags = (waits ? ASYNC_WAITS : 0) | (reading ? ASYNC_READ : 0);
        if (!PyErr_Occurred())
            call = async_enqueue(self, &plan, given.label,
                                 reading ? reading
                                 : own   ? own
                                         : Py_None,
                                 kept, (int64_t)(timeout * NANOSECONDS), (AsyncFlags)flags);
    }
    Py_DECREF(kept);
    return call;
}

PyObject *comm_enqueue_exchange(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 10)
        return PyErr_Format(PyExc_TypeError,
                            "enqueue_exchange(messages, call, operation, signature, timeout, "
                            "label, root, to_root, waits, value)");
    return enqueue((CommObject *)self, args, args[9], &buffer_messages);
}

PyObject *comm_enqueue_array_exchange(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 9)
        return PyErr_Format(PyExc_TypeError,
                            "enqueue_array_exchange(arrays, call, operation, signature, timeout, "
                            "label, root, to_root, waits)");
    return enqueue((CommObject *)self, args, NULL, &array_messages);
}
