#define _GNU_SOURCE
#include "python/p2p_object.h"
#include "python/deadline.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

#include "p2p/p2p.h"
#include "p2p/p2p_ring.h"
#include "python/clock.h"
#include "python/p2p_log.h"
#include "python/segment_object.h"

#define NANOSECONDS 1000000000LL
#define TICK_NS (50 * 1000000LL) /* how late Ctrl-C may be seen by a call that is blocked */
#define TYPES 8
#define LARGEST_TAG ((1LL << 31) - 1)

static const char *const outcome_names[] = {
    [AH_RUNNING] = "under way", [AH_DELIVERED] = "delivered", [AH_TIMED_OUT] = "late",
    [AH_MISMATCHED] = "unlike", [AH_CANCELLED] = "cancelled", [AH_PEER_LEFT] = "gone",
    [AH_FAILED] = "failed",
};

static const char *const way_names[] = {
    [AH_WAY_NONE] = "nothing",  [AH_WAY_EAGER] = "eager",   [AH_WAY_PIECES] = "pieces",
    [AH_WAY_DIRECT] = "direct", [AH_WAY_ATTACH] = "attach",
};

/* A dtype, and what is told of it to others. */
typedef struct {
    PyObject *descr;
    PyObject *text; /* bytes */
    uint64_t hash;
} Type;

typedef struct {
    PyObject_HEAD
    ah_p2p *p2p;
    PyObject *segments; /* what keeps the memory mapped */
    PyObject *on_failure;
    int rank, size;
    int ranks[AH_MAX_RANKS]; /* of the world */
    int64_t timeout_ns;
    unsigned generation;
    bool closed;
    Type types[TYPES];
    int next_type;
    P2PLog log;
} P2PObject;

typedef struct {
    PyObject_HEAD
    P2PObject *owner;
    PyObject *array, *context, *text;
    ah_message message;
    bool held;    /* a reference of its own, while it is under way */
    bool claimed; /* somebody has taken it upon itself to tell of its end */
} MessageObject;

/* How a call that waits and the hooks find each other. */
typedef struct {
    PyThreadState *saved;
} Waiting;

static PyTypeObject *P2P_Type;
static PyTypeObject *Message_Type;
static unsigned generation; /* counts forks: a child shares the memory, but is no member */

static void in_child(void) { generation++; }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS + now.tv_nsec;
}

static void pause_python(void *owner) { ((Waiting *)owner)->saved = PyEval_SaveThread(); }

static void resume_python(void *owner) { PyEval_RestoreThread(((Waiting *)owner)->saved); }

static bool tick_python(void *owner) {
    Waiting *waiting = owner;
    PyEval_RestoreThread(waiting->saved);
    bool interrupted = PyErr_CheckSignals() < 0;
    waiting->saved = PyEval_SaveThread();
    return interrupted;
}

static ah_wait_hooks hooks_of(Waiting *waiting, int64_t timeout) {
    return (ah_wait_hooks){pause_python, resume_python, tick_python,
                           timeout / 4 < TICK_NS ? timeout / 4 + 1 : TICK_NS, waiting};
}

static bool is_open(const P2PObject *self) {
    return !self->closed && self->generation == generation;
}

/* ---------------------------------------------------------------- what a message is */

/* NULL with an exception. It stays until seven others have been used. */
static Type *type_of(P2PObject *self, PyArrayObject *array) {
    PyObject *descr = (PyObject *)PyArray_DESCR(array);
    for (int at = 0; at < TYPES; at++)
        if (self->types[at].descr == descr) return &self->types[at];
    PyObject *name = PyObject_Str(descr);
    PyObject *text = name == NULL ? NULL : PyUnicode_AsUTF8String(name);
    Py_XDECREF(name);
    if (text == NULL) return NULL;
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a (Fowler, Noll & Vo) */
    for (const char *at = PyBytes_AS_STRING(text); *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    Type *type = &self->types[self->next_type++ % TYPES];
    Py_XSETREF(type->descr, Py_NewRef(descr));
    Py_XSETREF(type->text, text);
    type->hash = hash;
    return type;
}

static bool describe(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject **text) {
    Type *type = type_of(self, array);
    if (type == NULL) return false;
    *text = Py_NewRef(type->text);
    message->type = PyBytes_AS_STRING(type->text);
    message->count = (size_t)PyArray_SIZE(array);
    message->signature = (type->hash ^ message->count) * 0x9e3779b97f4a7c15u;
    message->nbytes = (size_t)PyArray_NBYTES(array);
    message->data = PyArray_DATA(array);
    SegmentObject *own = (SegmentObject *)PyTuple_GET_ITEM(self->segments, self->rank);
    message->is_private =
        own->unshared_count && segment_is_unshared(own, 0, message->data, message->nbytes);
    return true;
}

/* An array that needs no second look; everything else is for the careful way. */
static PyArrayObject *plain_array_of(PyObject *given, bool written) {
    if (!PyArray_CheckExact(given)) return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted) || PyDataType_REFCHK(PyArray_DESCR(array)) ||
        PyArray_ITEMSIZE(array) == 0)
        return NULL;
    return array;
}

/* ---------------------------------------------------------------- on the caller's thread */

/* Set the exception of a message that did not get there. */
static void raise_failure(P2PObject *self, const ah_message *message, int64_t timeout,
                          PyObject *label) {
    PyObject *done = PyObject_CallFunction(
        self->on_failure, "sOiiIsnKKzdOO", outcome_names[ah_message_outcome(message)],
        message->receives ? Py_True : Py_False, message->peer, message->source,
        (unsigned)message->tag, message->type, (Py_ssize_t)message->count,
        (unsigned long long)message->sent_nbytes, (unsigned long long)message->sent_signature,
        message->expected_text, (double)timeout / NANOSECONDS, label,
        message->touched ? Py_True : Py_False);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_SetString(PyExc_SystemError, "a message that failed must raise");
    }
}

/* Read how long a message may take, and its tag. Nanoseconds; 0: that is for the careful way. */
static int64_t limit_of(const P2PObject *self, ah_message *message, PyObject *tag,
                        PyObject *timeout) {
    int64_t limit = self->timeout_ns;
    if (timeout != Py_None) {
        double seconds = PyFloat_AsDouble(timeout);
        if (PyErr_Occurred() || !(seconds > 0) || !(seconds < 1e9)) {
            PyErr_Clear();
            return 0;
        }
        limit = (int64_t)(seconds * NANOSECONDS);
    }
    if ((limit = limit_by_deadlines(limit)) <= 0) return 0;
    if (!PyLong_CheckExact(tag)) return 0;
    long long number = PyLong_AsLongLong(tag);
    if (number < 0 || number > LARGEST_TAG) {
        PyErr_Clear();
        return 0;
    }
    message->tag = (uint32_t)number;
    return limit;
}

static int64_t start_time(const P2PObject *self) {
    return self->log.ring != NULL ? clock_now() : now_ns();
}

/* 1: well, 0: not here, -1 with an exception. */
static int exchange(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject *tag,
                    PyObject *timeout, PyObject *label) {
    int64_t limit = limit_of(self, message, tag, timeout);
    if (limit == 0) return 0;
    PyObject *text = NULL;
    if (!describe(self, message, array, &text)) return -1;
    int64_t now = start_time(self);
    message->deadline = now + limit;
    uint64_t entry = log_begin(&self->log, message, (PyObject *)PyArray_DESCR(array), now, label);
    int result = -1, started = ah_p2p_start(self->p2p, message);
    if (started < 0) {
        log_end(&self->log, entry, message, AH_FAILED);
        PyErr_NoMemory();
    } else {
        ah_status status = AH_OK;
        if (!started) {
            Waiting waiting;
            ah_wait_hooks hooks = hooks_of(&waiting, limit);
            status = ah_p2p_wait(self->p2p, message, INT64_MAX, &hooks);
            if (status == AH_INTERRUPTED) ah_p2p_end(self->p2p, message, AH_CANCELLED);
        }
        log_end(&self->log, entry, message, ah_message_outcome(message));
        if (status == AH_OK && ah_message_outcome(message) == AH_DELIVERED)
            result = 1;
        else if (!PyErr_Occurred())
            raise_failure(self, message, limit, label);
    }
    free(message->expected_text);
    Py_DECREF(text);
    return result;
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
    if (array == NULL || message.peer < 0 || !is_open(self)) Py_RETURN_FALSE;
    int done = exchange(self, &message, array, args[2], args[3], args[4]);
    if (done < 0) return NULL;
    return PyBool_FromLong(done);
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
    if (array == NULL || !is_open(self) || limit_of(self, &message, args[2], args[3]) == 0)
        Py_RETURN_FALSE;
    PyObject *text = NULL;
    if (!describe(self, &message, array, &text)) return NULL;
    int64_t now = start_time(self);
    bool posted = ah_p2p_try_send(self->p2p, &message);
    if (posted) {
        uint64_t entry =
            log_begin(&self->log, &message, (PyObject *)PyArray_DESCR(array), now, args[4]);
        log_end(&self->log, entry, &message, AH_DELIVERED);
    }
    Py_DECREF(text);
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
    if (array == NULL || (message.peer < 0 && args[1] != Py_None) || !is_open(self))
        return PyLong_FromLong(-1);
    int done = exchange(self, &message, array, args[2], args[3], args[4]);
    if (done < 0) return NULL;
    return PyLong_FromLong(done ? self->ranks[message.source] : -1);
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
    if (!is_open(self)) Py_RETURN_NONE;
    MessageObject *one = (MessageObject *)Message_Type->tp_alloc(Message_Type, 0);
    if (one == NULL) return NULL;
    one->owner = (P2PObject *)Py_NewRef(self);
    one->array = Py_NewRef(array);
    one->context = Py_NewRef(context);
    one->message.receives = receives;
    one->message.is_async = true;
    one->message.peer = peer;
    one->message.tag = tag;
    one->message.deadline = (int64_t)(deadline * NANOSECONDS);
    one->message.owner = one;
    if (!describe(self, &one->message, array, &one->text)) {
        Py_DECREF(one);
        return NULL;
    }
    one->held = true;
    Py_INCREF(one);
    int started = ah_p2p_start(self->p2p, &one->message);
    if (started) {
        one->held = false;
        Py_DECREF(one);
    }
    if (started < 0) {
        Py_DECREF(one);
        return PyErr_NoMemory();
    }
    return (PyObject *)one;
}

/* Nobody holds on to it for its own sake any more. */
static void release_reference(MessageObject *one) {
    if (!one->held) return;
    one->held = false;
    Py_DECREF(one);
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
        release_reference(one);
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
    return log_rows(&self->log, last, outcome_names, way_names);
}

static PyObject *p2p_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank",    "ranks",       "segments",   "offsets",
                            "pids",    "heap_offset", "heap_bytes", "limits",
                            "timeout", "on_failure",  "records",    NULL};
    int rank;
    PyObject *ranks, *segments, *offsets, *pids, *on_failure;
    Py_ssize_t heap_offset, heap_bytes, slot_max, chunk, attach_min;
    Py_ssize_t records = 0;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iO!O!O!O!nn(nnn)dO|n", names, &rank, &PyTuple_Type, &ranks,
            &PyTuple_Type, &segments, &PyTuple_Type, &offsets, &PyTuple_Type, &pids, &heap_offset,
            &heap_bytes, &slot_max, &chunk, &attach_min, &timeout, &on_failure, &records))
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
    self->rank = rank;
    self->size = (int)size;
    memcpy(self->ranks, world, sizeof world);
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->generation = generation;
    if (self->p2p == NULL || !log_new(&self->log, (size_t)records)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int p2p_traverse(P2PObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->on_failure);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int p2p_clear(P2PObject *self) {
    Py_CLEAR(self->on_failure);
    return 0;
}

static void p2p_dealloc(P2PObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    p2p_clear(self);
    /* In a forked child the lock may be held for ever, and the words are its parent's. */
    if (self->generation == generation && self->p2p != NULL) {
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
    {"start", (PyCFunction)p2p_start, METH_VARARGS, NULL},
    {"serve", (PyCFunction)p2p_serve, METH_NOARGS, NULL},
    {"remove_peer", (PyCFunction)p2p_remove_peer, METH_O, NULL},
    {"fail", (PyCFunction)p2p_fail, METH_NOARGS, NULL},
    {"wait_idle", (PyCFunction)p2p_wait_idle, METH_NOARGS, NULL},
    {"close", (PyCFunction)p2p_close, METH_NOARGS, NULL},
    {"records", (PyCFunction)p2p_records, METH_O, NULL},
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

static PyGetSetDef p2p_getset[] = {
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

static PyObject *message_wait(MessageObject *self, PyObject *given) {
    double seconds = PyFloat_AsDouble(given);
    if (PyErr_Occurred()) return NULL;
    int outcome = ah_message_outcome(&self->message);
    if (outcome == AH_RUNNING && self->owner->generation == generation) {
        Waiting waiting;
        ah_wait_hooks hooks = hooks_of(&waiting, INT64_MAX);
        int64_t until = seconds < 1e9 ? now_ns() + (int64_t)(seconds * NANOSECONDS) : INT64_MAX;
        Py_INCREF(self);
        ah_status status = ah_p2p_wait(self->owner->p2p, &self->message, until, &hooks);
        if (status == AH_OK && !self->message.is_queued) release_reference(self);
        Py_DECREF(self);
        if (status == AH_INTERRUPTED) return NULL;
        outcome = status == AH_OK;
    }
    return PyBool_FromLong(outcome != AH_RUNNING);
}

static PyObject *message_cancel(MessageObject *self, PyObject *unused) {
    (void)unused;
    if (self->owner->generation == generation && ah_message_outcome(&self->message) == AH_RUNNING) {
        Py_INCREF(self);
        Py_BEGIN_ALLOW_THREADS
        ah_p2p_end(self->owner->p2p, &self->message, AH_CANCELLED);
        Py_END_ALLOW_THREADS
        Py_DECREF(self);
    }
    Py_RETURN_NONE;
}

static PyObject *message_claim(MessageObject *self, PyObject *unused) {
    (void)unused;
    bool first = !self->claimed;
    self->claimed = true;
    return PyBool_FromLong(first);
}

static PyObject *message_outcome(MessageObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(outcome_names[ah_message_outcome(&self->message)]);
}

static PyObject *message_way(MessageObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(way_names[self->message.way]);
}

static PyObject *message_told(MessageObject *self, void *unused) {
    (void)unused;
    const char *expected = self->message.expected_text;
    return expected == NULL
               ? Py_NewRef(Py_None)
               : PyUnicode_DecodeUTF8(expected, (Py_ssize_t)strlen(expected), "replace");
}

static int message_traverse(MessageObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->context);
    Py_VISIT((PyObject *)self->owner);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int message_clear(MessageObject *self) {
    Py_CLEAR(self->context);
    return 0;
}

static void message_dealloc(MessageObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    message_clear(self);
    free(self->message.expected_text);
    Py_XDECREF(self->array);
    Py_XDECREF(self->text);
    Py_XDECREF((PyObject *)self->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef message_methods[] = {
    {"wait", (PyCFunction)message_wait, METH_O, NULL},
    {"cancel", (PyCFunction)message_cancel, METH_NOARGS, NULL},
    {"claim", (PyCFunction)message_claim, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef message_members[] = {
    {"context", T_OBJECT, offsetof(MessageObject, context), READONLY, NULL},
    {"source", T_INT, offsetof(MessageObject, message.source), READONLY, NULL},
    {"touched", T_BOOL, offsetof(MessageObject, message.touched), READONLY, NULL},
    {"sent_nbytes", T_ULONGLONG, offsetof(MessageObject, message.sent_nbytes), READONLY, NULL},
    {"sent_signature", T_ULONGLONG, offsetof(MessageObject, message.sent_signature), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef message_getset[] = {
    {"outcome", (getter)message_outcome, NULL, NULL, NULL},
    {"way", (getter)message_way, NULL, NULL, NULL},
    {"expected", (getter)message_told, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_doc, "A message under way; described in _native.pyi."},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse},
    {Py_tp_clear, message_clear},
    {Py_tp_methods, message_methods},
    {Py_tp_members, message_members},
    {Py_tp_getset, message_getset},
    {0, NULL},
};

static PyType_Spec message_spec = {
    .name = "allhands._native.Message",
    .basicsize = sizeof(MessageObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = message_slots,
};

int add_p2p_types(PyObject *module) {
    P2P_Type = (PyTypeObject *)PyType_FromSpec(&p2p_spec);
    Message_Type = (PyTypeObject *)PyType_FromSpec(&message_spec);
    if (P2P_Type == NULL || Message_Type == NULL || pthread_atfork(NULL, NULL, in_child) != 0)
        return -1;
    if (PyModule_AddObjectRef(module, "Message", (PyObject *)Message_Type) < 0) return -1;
    return PyModule_AddObjectRef(module, "ShmP2P", (PyObject *)P2P_Type);
}
