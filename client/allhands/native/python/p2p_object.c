#define _GNU_SOURCE
#include "python/p2p_object.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/host.h"
#include "p2p/p2p_ring.h"
#include "python/clock.h"
#include "python/deadline.h"
#include "python/failures.h"
#include "python/p2p_object_state.h"
#include "python/segment_object.h"

#define LARGEST_TAG ((1LL << 31) - 1)

static PyTypeObject *P2P_Type;
unsigned p2p_generation;

static void in_child(void) { p2p_generation++; }

bool p2p_is_open(const P2PObject *self) {
    return !self->closed && self->generation == p2p_generation;
}

/* ---------------------------------------------------------------- what a message is */

/* An array that needs no second look; everything else is for the careful way. */
PyArrayObject *plain_array_of(PyObject *given, bool written) {
    if (!PyArray_CheckExact(given)) return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted) || PyDataType_REFCHK(PyArray_DESCR(array)) ||
        PyArray_ITEMSIZE(array) == 0)
        return NULL;
    return array;
}

/* ---------------------------------------------------------------- on the caller's thread */

/* Set the exception of a message that has failed. */
static void message_raise(P2PObject *self, const ah_message *message, int64_t timeout,
                          PyObject *label) {
    /* clang-format off: a field a line */
    PyObject *fields =
        Py_BuildValue("{s:s, s:s, s:i, s:i, s:I, s:N, s:K, s:K, s:z, s:d, s:O, s:O}", "outcome",
                      outcome_names[ah_message_outcome(message)], "operation",
                      message->receives ? "recv" : "send", "peer", message->peer, "source",
                      message->source, "tag", (unsigned)message->tag, "described",
                      PyUnicode_FromFormat("message(%s[%zu])", message->type, message->count),
                      "sent_nbytes", (unsigned long long)message->sent_nbytes, "sent_signature",
                      (unsigned long long)message->sent_signature, "expected",
                      message->expected_text, "timeout", (double)timeout / NANOSECONDS, "label",
                      label, "touched", message->touched ? Py_True : Py_False);
    /* clang-format on */
    raise_failure(self->on_failure, "MessageFailure", fields);
}

static bool read_tag(ah_message *message, PyObject *tag) {
    if (!PyLong_CheckExact(tag)) return false;
    long long number = PyLong_AsLongLong(tag);
    if (number < 0 || number > LARGEST_TAG) {
        PyErr_Clear();
        return false;
    }
    message->tag = (uint32_t)number;
    return true;
}

/* Read how long a message may take, and its tag. Nanoseconds; 0: that is for the careful way. */
static int64_t limit_of(const P2PObject *self, ah_message *message, PyObject *tag,
                        PyObject *timeout) {
    int64_t limit = read_plain_limit(self->timeout_ns, timeout);
    return limit == 0 || !read_tag(message, tag) ? 0 : limit;
}

static int64_t start_time(const P2PObject *self) {
    return self->log.ring != NULL ? clock_now() : ah_now();
}

/* Have what messages need beside them, before the first. False with an exception. */
static bool begin_messages(P2PObject *self) {
    if (self->on_first == NULL) return true;
    PyObject *on_first = self->on_first;
    self->on_first = NULL;
    PyObject *done = PyObject_CallNoArgs(on_first);
    if (done == NULL) {
        self->on_first = on_first; /* the next one tries again */
        return false;
    }
    Py_DECREF(done);
    Py_DECREF(on_first);
    return true;
}

bool p2p_exchange(P2PObject *self, ah_message *message, PyArrayObject *array, int64_t limit,
                  PyObject *label) {
    PyObject *text = NULL;
    if (!begin_messages(self) || !message_describe(self, message, array, &text)) return false;
    int64_t now = start_time(self);
    message->deadline = now + limit;
    uint64_t entry = log_begin(&self->log, message, (PyObject *)PyArray_DESCR(array), now, label);
    bool is_done = false;
    int started = ah_p2p_start(self->p2p, message);
    if (started < 0) {
        log_end(&self->log, entry, message, AH_FAILED);
        PyErr_NoMemory();
    } else {
        ah_status status = AH_OK;
        if (!started) {
            Waiting waiting;
            ah_wait_hooks hooks = message_hooks(&waiting, limit);
            status = ah_p2p_wait(self->p2p, message, INT64_MAX, &hooks);
            if (status == AH_INTERRUPTED) ah_p2p_end(self->p2p, message, AH_CANCELLED);
        }
        log_end(&self->log, entry, message, ah_message_outcome(message));
        if (status == AH_OK && ah_message_outcome(message) == AH_DELIVERED)
            is_done = true;
        else if (!PyErr_Occurred())
            message_raise(self, message, limit, label);
    }
    free(message->expected_text);
    Py_DECREF(text);
    return is_done;
}

/* The place of a rank of the world; -1: it has none here, or is no other rank. */
static int group_rank_of(const P2PObject *self, PyObject *given) {
    if (!PyLong_CheckExact(given)) return -1;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred()) PyErr_Clear();
    if (rank < 0) return -1;
    if (rank < self->size && self->ranks[rank] == rank) return rank == self->rank ? -1 : (int)rank;
    for (int place = 0; place < self->size; place++)
        if (self->ranks[place] == rank) return place == self->rank ? -1 : place;
    return -1;
}

static PyObject *p2p_send(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) /* x, dst, tag, timeout, label */
        return PyErr_Format(PyExc_TypeError, "wants 5 arguments, has %zd", nargs);
    ah_message message;
    PyArrayObject *array = plain_array_of(args[0], false);
    message.receives = message.is_async = false;
    message.peer = group_rank_of(self, args[1]);
    if (array == NULL || message.peer < 0 || !p2p_is_open(self)) Py_RETURN_FALSE;
    int64_t limit = limit_of(self, &message, args[2], args[3]);
    if (limit == 0) Py_RETURN_FALSE;
    if (!p2p_exchange(self, &message, array, limit, args[4])) return NULL;
    Py_RETURN_TRUE;
}

int p2p_post(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject *label) {
    PyObject *text = NULL;
    if (!begin_messages(self) || !message_describe(self, message, array, &text)) return -1;
    int64_t now = start_time(self);
    bool posted = ah_p2p_try_send(self->p2p, message);
    if (posted) {
        uint64_t entry =
            log_begin(&self->log, message, (PyObject *)PyArray_DESCR(array), now, label);
        log_end(&self->log, entry, message, AH_DELIVERED);
    }
    Py_DECREF(text);
    return posted;
}

static PyObject *p2p_try_send(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) /* x, place, tag, timeout, label */
        return PyErr_Format(PyExc_TypeError, "wants 5 arguments, has %zd", nargs);
    long place = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (place < 0 || place >= self->size || place == self->rank)
        return PyErr_Format(PyExc_ValueError, "no such rank");
    ah_message message;
    PyArrayObject *array = plain_array_of(args[0], false);
    message.receives = message.is_async = false;
    message.peer = (int)place;
    if (array == NULL || !p2p_is_open(self) || limit_of(self, &message, args[2], args[3]) == 0)
        Py_RETURN_FALSE;
    int posted = p2p_post(self, &message, array, args[4]);
    if (posted < 0) return NULL;
    return PyBool_FromLong(posted);
}

static PyObject *p2p_recv(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) /* x, src, tag, timeout, label */
        return PyErr_Format(PyExc_TypeError, "wants 5 arguments, has %zd", nargs);
    ah_message message;
    PyArrayObject *array = plain_array_of(args[0], true);
    message.receives = true;
    message.is_async = false;
    message.peer = args[1] == Py_None ? -1 : group_rank_of(self, args[1]);
    if (array == NULL || (message.peer < 0 && args[1] != Py_None) || !p2p_is_open(self))
        return PyLong_FromLong(-1);
    int64_t limit = limit_of(self, &message, args[2], args[3]);
    if (limit == 0) return PyLong_FromLong(-1);
    if (!p2p_exchange(self, &message, array, limit, args[4])) return NULL;
    return PyLong_FromLong(self->ranks[message.source]);
}

int p2p_poll_array(P2PObject *self, PyArrayObject *array, uint32_t tag, int64_t span) {
    ah_message message = {.receives = true, .peer = -1, .tag = tag, .deadline = INT64_MAX};
    if (!p2p_is_open(self)) return P2P_CLOSED;
    PyObject *text = NULL;
    if (!begin_messages(self) || !message_describe(self, &message, array, &text)) return P2P_RAISED;
    int result = P2P_RAISED, started = ah_p2p_start(self->p2p, &message);
    if (started < 0)
        PyErr_NoMemory();
    else {
        if (!started) {
            Waiting waiting;
            ah_wait_hooks hooks = message_hooks(&waiting, span);
            if (ah_p2p_wait(self->p2p, &message, ah_now() + span, &hooks) != AH_OK)
                ah_p2p_end(self->p2p, &message, AH_CANCELLED);
        }
        int outcome = ah_message_outcome(&message);
        if (PyErr_Occurred()) /* of a signal's handler */
            result = P2P_RAISED;
        else if (outcome == AH_DELIVERED)
            result = message.source;
        else if (outcome == AH_CANCELLED)
            result = P2P_NOTHING;
        else
            message_raise(self, &message, span, Py_None);
    }
    free(message.expected_text);
    Py_DECREF(text);
    return result;
}

bool read_span(PyObject *given, int64_t *span) {
    double seconds = PyFloat_AsDouble(given);
    if (PyErr_Occurred()) return false;
    if (!(seconds >= 0) || !(seconds < 1e6)) {
        PyErr_SetString(PyExc_ValueError, "no such time");
        return false;
    }
    *span = (int64_t)(seconds * NANOSECONDS);
    return true;
}

/* Receive from whoever sends, if that comes within some time; the log has nothing of it. */
static PyObject *p2p_poll(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3) /* x, tag, seconds */
        return PyErr_Format(PyExc_TypeError, "wants 3 arguments, has %zd", nargs);
    int64_t span;
    if (!read_span(args[2], &span)) return NULL;
    ah_message message;
    PyArrayObject *array = plain_array_of(args[0], true);
    if (array == NULL || !read_tag(&message, args[1]))
        return PyErr_Format(PyExc_ValueError, "no such message over shared memory");
    int source = p2p_poll_array(self, array, message.tag, span);
    if (source == P2P_RAISED) return NULL;
    return PyLong_FromLong(source < 0 ? source : self->ranks[source]);
}

/* ---------------------------------------------------------------- beside it */

/* None: this process must not. */
static PyObject *p2p_start(P2PObject *self, PyObject *args) {
    PyArrayObject *array;
    PyObject *context;
    int receives, peer;
    unsigned tag;
    double deadline;
    if (!PyArg_ParseTuple(args, "pO!iIdO", &receives, &PyArray_Type, &array, &peer, &tag, &deadline,
                          &context))
        return NULL;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | (receives ? NPY_ARRAY_WRITEABLE : 0);
    if (peer < (receives ? -1 : 0) || peer >= self->size || peer == self->rank ||
        !PyArray_CHKFLAGS(array, wanted) || !(deadline > 0) || !(deadline < 1e9))
        return PyErr_Format(PyExc_ValueError, "no such message over shared memory");
    if (!p2p_is_open(self)) Py_RETURN_NONE;
    ah_message message = {
        .receives = receives,
        .is_async = true,
        .peer = peer,
        .tag = tag,
        .deadline = (int64_t)(deadline * NANOSECONDS),
    };
    if (!begin_messages(self)) return NULL;
    return message_start(self, &message, array, context);
}

static PyObject *p2p_serve(P2PObject *self, PyObject *unused) {
    ah_message *ended;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    ended = ah_p2p_serve(self->p2p);
    Py_END_ALLOW_THREADS
    if (ended == NULL) Py_RETURN_NONE;
    PyObject *list = PyList_New(0);
    for (ah_message *next; ended != NULL; ended = next) {
        MessageObject *one = ended->owner;
        next = ended->next_ended;
        if (list != NULL && PyList_Append(list, (PyObject *)one) < 0) Py_CLEAR(list);
        message_release(one);
    }
    return list;
}

static PyObject *p2p_remove_peer(P2PObject *self, PyObject *given) {
    long place = PyLong_AsLong(given);
    if (PyErr_Occurred()) return NULL;
    if (place < 0 || place >= self->size || place == self->rank)
        return PyErr_Format(PyExc_ValueError, "no such rank");
    Py_BEGIN_ALLOW_THREADS
    ah_p2p_remove_peer(self->p2p, (int)place);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *p2p_fail(P2PObject *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    ah_p2p_fail(self->p2p);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *p2p_wait_idle(P2PObject *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    ah_p2p_wait_idle(self->p2p);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *p2p_close(P2PObject *self, PyObject *unused) {
    (void)unused;
    self->closed = true;
    Py_BEGIN_ALLOW_THREADS
    ah_p2p_close(self->p2p);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *p2p_records(P2PObject *self, PyObject *given) {
    size_t last = PyLong_AsSize_t(given);
    if (PyErr_Occurred()) return NULL;
    return log_rows(&self->log, last);
}

static PyObject *p2p_totals(P2PObject *self, PyObject *unused) {
    (void)unused;
    return call_totals_tuple(&self->log.totals);
}

static PyObject *p2p_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank",        "ranks",      "segments", "offsets", "pids",
                            "heap_offset", "heap_bytes", "limits",   "timeout", "on_failure",
                            "on_first",    "records",    NULL};
    int rank;
    PyObject *ranks, *segments, *offsets, *pids, *on_failure, *on_first;
    Py_ssize_t heap_offset, heap_bytes, slot_max, chunk, attach_min;
    Py_ssize_t records = 0;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!O!nn(nnn)dOO|n", names, &rank,
                                     &PyTuple_Type, &ranks, &PyTuple_Type, &segments, &PyTuple_Type,
                                     &offsets, &PyTuple_Type, &pids, &heap_offset, &heap_bytes,
                                     &slot_max, &chunk, &attach_min, &timeout, &on_failure,
                                     &on_first, &records))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(segments);
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    if (size < 1 || size > AH_MAX_RANKS || rank < 0 || rank >= size || slot_max < 0 || chunk < 1 ||
        PyTuple_GET_SIZE(offsets) != size || PyTuple_GET_SIZE(pids) != size ||
        PyTuple_GET_SIZE(ranks) != size || heap_offset < 0 || heap_bytes < 0 || !(timeout > 0) ||
        !(timeout < 1e9) || records < 0 || records > LOG_MAX)
        return PyErr_Format(PyExc_ValueError, "no such messages");
    size_t needed = segment_area_bytes((int)size, &limits);
    void *regions[AH_MAX_RANKS], *heaps[AH_MAX_RANKS];
    pid_t processes[AH_MAX_RANKS];
    int world[AH_MAX_RANKS];
    if (!segment_places(segments, offsets, pids, needed, (size_t)heap_offset, (size_t)heap_bytes,
                        regions, heaps, processes))
        return NULL;
    for (Py_ssize_t at = 0; at < size; at++) {
        regions[at] = (char *)regions[at] + ah_area_bytes((int)size, &limits);
        world[at] = (int)PyLong_AsLong(PyTuple_GET_ITEM(ranks, at));
        if (PyErr_Occurred()) return NULL;
    }
    P2PObject *self = (P2PObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    ah_p2p_limits own = ah_default_p2p_limits();
    /* What the user chose is for messages too; what was measured for collectives is not. */
    if (limits.attach_min != ah_default_limits((int)size).attach_min)
        own.attach_min = limits.attach_min;
    self->p2p = ah_p2p_new(rank, (int)size, regions, processes, heaps, (size_t)heap_bytes, &own);
    self->segments = Py_NewRef(segments);
    self->on_failure = Py_NewRef(on_failure);
    self->on_first = Py_NewRef(on_first);
    self->rank = rank;
    self->size = (int)size;
    memcpy(self->ranks, world, sizeof world);
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->generation = p2p_generation;
    if (self->p2p == NULL || !log_new(&self->log, (size_t)records)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int p2p_traverse(P2PObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_first);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int p2p_clear(P2PObject *self) {
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_first);
    return 0;
}

static void p2p_dealloc(P2PObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    p2p_clear(self);
    /* In a forked child the lock may be held for ever, and the words are its parent's. */
    if (self->generation == p2p_generation && self->p2p != NULL) {
        if (!self->closed) ah_p2p_close(self->p2p);
        ah_p2p_free(self->p2p);
    }
    log_free(&self->log);
    Py_XDECREF(self->segments);
    for (int at = 0; at < TYPES; at++) {
        Py_XDECREF(self->types[at].descr);
        Py_XDECREF(self->types[at].text);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef p2p_methods[] = {
    {"send", (PyCFunction)(void (*)(void))p2p_send, METH_FASTCALL, NULL},
    {"try_send", (PyCFunction)(void (*)(void))p2p_try_send, METH_FASTCALL, NULL},
    {"recv", (PyCFunction)(void (*)(void))p2p_recv, METH_FASTCALL, NULL},
    {"poll", (PyCFunction)(void (*)(void))p2p_poll, METH_FASTCALL, NULL},
    {"send_frame", (PyCFunction)(void (*)(void))p2p_send_frame, METH_FASTCALL, NULL},
    {"receive_frame", (PyCFunction)(void (*)(void))p2p_receive_frame, METH_FASTCALL, NULL},
    {"start", (PyCFunction)p2p_start, METH_VARARGS, NULL},
    {"serve", (PyCFunction)p2p_serve, METH_NOARGS, NULL},
    {"remove_peer", (PyCFunction)p2p_remove_peer, METH_O, NULL},
    {"fail", (PyCFunction)p2p_fail, METH_NOARGS, NULL},
    {"wait_idle", (PyCFunction)p2p_wait_idle, METH_NOARGS, NULL},
    {"close", (PyCFunction)p2p_close, METH_NOARGS, NULL},
    {"signature", message_signature, METH_VARARGS | METH_STATIC, NULL},
    {"records", (PyCFunction)p2p_records, METH_O, NULL},
    {"totals", (PyCFunction)p2p_totals, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *p2p_timeout(P2PObject *self, void *unused) {
    (void)unused;
    return PyFloat_FromDouble((double)self->timeout_ns / NANOSECONDS);
}

static int p2p_set_timeout(P2PObject *self, PyObject *value, void *unused) {
    (void)unused;
    return read_timeout(value, &self->timeout_ns);
}

static PyObject *p2p_is_idle(P2PObject *self, void *unused) {
    (void)unused;
    bool is_idle;
    Py_BEGIN_ALLOW_THREADS
    is_idle = ah_p2p_is_idle(self->p2p);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_idle);
}

static PyGetSetDef p2p_getset[] = {
    {"is_idle", (getter)p2p_is_idle, NULL, NULL, NULL},
    {"timeout", (getter)p2p_timeout, (setter)p2p_set_timeout, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot p2p_slots[] = {
    {Py_tp_doc, "The messages of one group over shared memory; described in _native.pyi."},
    {Py_tp_new, p2p_new},
    {Py_tp_dealloc, p2p_dealloc},
    {Py_tp_traverse, p2p_traverse},
    {Py_tp_clear, p2p_clear},
    {Py_tp_methods, p2p_methods},
    {Py_tp_getset, p2p_getset},
    {0, NULL},
};

static PyType_Spec p2p_spec = {
    .name = "allhands._native.ShmP2P",
    .basicsize = sizeof(P2PObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = p2p_slots,
};

/* ---------------------------------------------------------------- Message */

int add_p2p_types(PyObject *module) {
    P2P_Type = (PyTypeObject *)PyType_FromSpec(&p2p_spec);
    if (P2P_Type == NULL || pthread_atfork(NULL, NULL, in_child) != 0) return -1;
    if (add_message_type(module) < 0) return -1;
    return PyModule_AddObjectRef(module, "ShmP2P", (PyObject *)P2P_Type);
}
