#define _GNU_SOURCE
#include "python/comm_object.h"

#include <pthread.h>
#include <structmember.h>

#include "comm/host.h"
#include "python/async_calls.h"
#include "python/async_queue.h"
#include "python/async_run.h"
#include "python/call_records.h"
#include "python/call_run.h"
#include "python/coalesced_call.h"
#include "python/deadline.h"
#include "python/inline_calls.h"
#include "python/queued_calls.h"
#include "python/ragged_reduction.h"
#include "python/request_object.h"
#include "python/turn.h"
#include "python/vector_calls.h"

#define ATTACH_TRIES 8

PyTypeObject *Comm_Type;
unsigned comm_generation;

static void in_child(void) { comm_generation++; }

/* ---------------------------------------------------------------- state */

static PyObject *comm_progress(CommObject *self, PyObject *unused) {
    (void)unused;
    int64_t since = self->since_ns;
    const Record *record = record_of(self, self->ended);
    if (self->current[0] == 0 && record->sequence == self->ended && record->finished > since)
        since = record->finished;
    return Py_BuildValue("KKKsd", (unsigned long long)self->begun, (unsigned long long)self->ended,
                         (unsigned long long)self->completed, self->current,
                         (double)since / NANOSECONDS);
}

static PyObject *comm_inline_call(CommObject *self, PyObject *unused) {
    (void)unused;
    if (self->inline_thread == 0) return async_waited_call(self);
    PyObject *label = record_of(self, self->begun)->label;
    return Py_BuildValue("kKsO", self->inline_thread, (unsigned long long)self->begun,
                         plan_name(&self->plan), label ? label : Py_None);
}

static PyObject *comm_last_call(CommObject *self, PyObject *unused) {
    (void)unused;
    const Record *record = record_of(self, self->ended);
    if (self->ended == 0) Py_RETURN_NONE;
    return Py_BuildValue("KNns", (unsigned long long)record->sequence, record_operation(record),
                         (Py_ssize_t)record_bytes(record), variant_names[self->variant]);
}

static PyObject *comm_wait_times(CommObject *self, PyObject *unused) {
    (void)unused;
    PyObject *waits = PyList_New(0);
    uint64_t first = self->ended > WAITS ? self->ended - WAITS + 1 : 1;
    for (uint64_t sequence = first; waits != NULL && sequence <= self->ended; sequence++) {
        PyObject *one = PyFloat_FromDouble((double)self->waits[sequence % WAITS] / NANOSECONDS);
        if (one == NULL || PyList_Append(waits, one) < 0) Py_CLEAR(waits);
        Py_XDECREF(one);
    }
    return waits;
}

static PyObject *comm_interrupt(CommObject *self, PyObject *given) {
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || !comm_is_own(self)) return NULL;
    ah_comm_interrupt(self->comm, sequence);
    Py_RETURN_NONE;
}

static PyObject *comm_limit(CommObject *self, PyObject *given) {
    unsigned long long limit = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return NULL;
    if (limit < self->limit) self->limit = limit;
    Py_RETURN_NONE;
}

/* End what runs and turn down all to come. */
static PyObject *comm_close(CommObject *self, PyObject *unused) {
    (void)unused;
    if (!comm_is_own(self)) return NULL;
    self->closed = true;
    ah_comm_interrupt(self->comm, UINT64_MAX);
    Py_RETURN_NONE;
}

/* Say goodbye in the memory, which may be given back then: nothing runs, and nothing will. */
static PyObject *comm_leave(CommObject *self, PyObject *unused) {
    (void)unused;
    if (!comm_is_own(self)) return NULL;
    self->closed = true;
    ah_comm_leave(self->comm);
    Py_RETURN_NONE;
}

static PyObject *comm_wait_idle(CommObject *self, PyObject *unused) {
    (void)unused;
    if (comm_acquire_turn(self) < 0) return NULL;
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

/* Tell the others that they wait in vain for this rank in calls up to that number. */
static PyObject *comm_skip(CommObject *self, PyObject *given) {
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || comm_acquire_turn(self) < 0) return NULL;
    ah_comm_skip(self->comm, sequence);
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

static PyObject *comm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank",       "segments",    "offsets", "pids",    "heap_offset",
                            "heap_bytes", "limits",      "timeout", "ops",     "on_failure",
                            "on_slow",    "last_number", "queued",  "records", "on_clash",
                            "verifies",   NULL};
    unsigned long long last_number;
    Py_ssize_t queued;
    int rank;
    PyObject *segments, *offsets, *pids, *ops, *on_failure, *on_slow;
    Py_ssize_t heap_offset, heap_bytes, slot_max, chunk, attach_min;
    Py_ssize_t records = 0;
    PyObject *on_clash = NULL;
    double timeout;
    int verifies = 0;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "iO!O!O!nn(nnn)dO!OOKn|nOp", names, &rank, &PyTuple_Type, &segments,
            &PyTuple_Type, &offsets, &PyTuple_Type, &pids, &heap_offset, &heap_bytes, &slot_max,
            &chunk, &attach_min, &timeout, &PyTuple_Type, &ops, &on_failure, &on_slow, &last_number,
            &queued, &records, &on_clash, &verifies))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(segments);
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    if (size < 1 || size > AH_MAX_RANKS || rank < 0 || rank >= size || slot_max < 0 || chunk < 1 ||
        PyTuple_GET_SIZE(offsets) != size || PyTuple_GET_SIZE(pids) != size || heap_offset < 0 ||
        heap_bytes < 0 || !(timeout > 0) || !(timeout < 1e9) || records < 0 ||
        records > RECORDS_MOST)
        return PyErr_Format(PyExc_ValueError, "no such communicator");
    size_t needed = segment_area_bytes((int)size, &limits);
    void *areas[AH_MAX_RANKS], *heaps[AH_MAX_RANKS];
    pid_t processes[AH_MAX_RANKS];
    if (!segment_places(segments, offsets, pids, needed, (size_t)heap_offset, (size_t)heap_bytes,
                        areas, heaps, processes))
        return NULL;
    CommObject *self = (CommObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->comm = ah_comm_new(rank, (int)size, areas, processes, heaps, (size_t)heap_bytes, &limits);
    self->turn = PyThread_allocate_lock();
    self->segments = Py_NewRef(segments);
    self->ops = Py_NewRef(ops);
    self->on_failure = Py_NewRef(on_failure);
    self->on_slow = Py_NewRef(on_slow);
    self->on_clash = Py_XNewRef(on_clash);
    self->rank = rank;
    self->size = (int)size;
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->attach_min = limits.attach_min;
    self->attach_tries = limits.attach_min == SIZE_MAX ? 0 : ATTACH_TRIES;
    self->limit = UINT64_MAX;
    self->verifies = verifies;
    self->last_number = last_number;
    self->queued = queued;
    self->current = "";
    self->since_ns = ah_now();
    self->generation = comm_generation;
    atomic_store(&self->due, INT64_MAX);
    if (self->comm == NULL || self->turn == NULL || !records_new(self, (size_t)records)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int comm_traverse(CommObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->segments);
    Py_VISIT(self->ops);
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_slow);
    Py_VISIT(self->on_clash);
    Py_VISIT(self->pending);
    for (int at = 0; at < VECTOR_CALLS; at++) {
        Py_VISIT(self->signed_vectors[at].dtype);
        Py_VISIT(self->signed_vectors[at].call);
    }
    Py_VISIT(self->signed_blocks.dtype);
    Py_VISIT(self->signed_blocks.call);
    Py_VISIT(Py_TYPE(self));
    return async_traverse(self, visit, arg);
}

static int comm_clear(CommObject *self) {
    async_clear(self);
    Py_CLEAR(self->pending);
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_slow);
    Py_CLEAR(self->on_clash);
    for (int at = 0; at < VECTOR_CALLS; at++) {
        Py_CLEAR(self->signed_vectors[at].dtype);
        Py_CLEAR(self->signed_vectors[at].call);
    }
    Py_CLEAR(self->signed_blocks.dtype);
    Py_CLEAR(self->signed_blocks.call);
    return 0;
}

static void comm_dealloc(CommObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    comm_clear(self);
    /* In a forked child the memory is still its parent's, who has not left. */
    if (self->comm != NULL && self->generation == comm_generation) ah_comm_free(self->comm);
    if (self->turn != NULL) PyThread_free_lock(self->turn);
    Py_XDECREF(self->segments);
    Py_XDECREF(self->ops);
    PyMem_Free(self->signed_blocks.shapes);
    records_free(self);
    type->tp_free(self);
    Py_DECREF(type);
}

#define FAST_METHOD(name) {#name, (PyCFunction)(void (*)(void))comm_##name, METH_FASTCALL, NULL},
#define TWO_METHODS(name, kind) FAST_METHOD(name) FAST_METHOD(start_##name)

static PyMethodDef comm_methods[] = {
    /* clang-format off */
    PLAIN_METHODS(TWO_METHODS)
    FAST_METHOD(exchange)
    FAST_METHOD(exchange_now)
    FAST_METHOD(exchange_arrays)
    FAST_METHOD(enqueue_exchange)
    FAST_METHOD(enqueue_array_exchange)
    FAST_METHOD(all_gather_v)
    FAST_METHOD(gather_v)
    FAST_METHOD(scatter_v)
    FAST_METHOD(all_to_all_v)
    FAST_METHOD(reduce_scatter_v)
    FAST_METHOD(reduce_scatter_blocks)
    FAST_METHOD(enqueue_reduce_scatter_blocks)
    /* clang-format on */
    {"all_reduce_coalesced", (PyCFunction)(void (*)(void))comm_all_reduce_coalesced, METH_FASTCALL,
     NULL},
    {"leave", (PyCFunction)comm_leave, METH_NOARGS, NULL},
    {"take_number", (PyCFunction)comm_take_number, METH_NOARGS, NULL},
    {"release", (PyCFunction)comm_release, METH_NOARGS, NULL},
    {"set_async", (PyCFunction)(void (*)(void))comm_set_async, METH_FASTCALL, NULL},
    {"enqueue", (PyCFunction)(void (*)(void))comm_enqueue, METH_VARARGS | METH_KEYWORDS, NULL},
    {"run_next", (PyCFunction)comm_run_next, METH_NOARGS, NULL},
    {"hand_over", (PyCFunction)comm_hand_over, METH_NOARGS, NULL},
    {"take_back", (PyCFunction)comm_take_back, METH_NOARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))comm_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {"progress", (PyCFunction)comm_progress, METH_NOARGS, NULL},
    {"inline_call", (PyCFunction)comm_inline_call, METH_NOARGS, NULL},
    {"wait_times", (PyCFunction)comm_wait_times, METH_NOARGS, NULL},
    {"last_call", (PyCFunction)comm_last_call, METH_NOARGS, NULL},
    {"describe", (PyCFunction)comm_describe, METH_O, NULL},
    {"records", (PyCFunction)comm_records, METH_O, NULL},
    {"call_site", (PyCFunction)comm_call_site, METH_O, NULL},
    {"set_outcome", (PyCFunction)comm_set_outcome, METH_VARARGS, NULL},
    {"start_times", (PyCFunction)comm_start_times, METH_NOARGS, NULL},
    {"totals", (PyCFunction)comm_totals, METH_NOARGS, NULL},
    {"skip", (PyCFunction)comm_skip, METH_O, NULL},
    {"interrupt", (PyCFunction)comm_interrupt, METH_O, NULL},
    {"limit", (PyCFunction)comm_limit, METH_O, NULL},
    {"close", (PyCFunction)comm_close, METH_NOARGS, NULL},
    {"wait_idle", (PyCFunction)comm_wait_idle, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *comm_timeout(CommObject *self, void *unused) {
    (void)unused;
    return PyFloat_FromDouble((double)self->timeout_ns / NANOSECONDS);
}

static int comm_set_timeout(CommObject *self, PyObject *value, void *unused) {
    (void)unused;
    return read_timeout(value, &self->timeout_ns);
}

static PyObject *comm_has_queued(CommObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->first_async != NULL);
}

static PyGetSetDef comm_getset[] = {
    {"has_queued", (getter)comm_has_queued, NULL, NULL, NULL},
    {"timeout", (getter)comm_timeout, (setter)comm_set_timeout, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef comm_members[] = {
    {"last_number", T_ULONGLONG, offsetof(CommObject, last_number), READONLY, NULL},
    {"async_context", T_OBJECT, offsetof(CommObject, async_context), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot comm_slots[] = {
    {Py_tp_doc, "The calls of one group over shared memory; described in _native.pyi."},
    {Py_tp_new, comm_new},
    {Py_tp_dealloc, comm_dealloc},
    {Py_tp_traverse, comm_traverse},
    {Py_tp_clear, comm_clear},
    {Py_tp_methods, comm_methods},
    {Py_tp_members, comm_members},
    {Py_tp_getset, comm_getset},
    {0, NULL},
};

static PyType_Spec comm_spec = {
    .name = "allhands._native.ShmComm",
    .basicsize = sizeof(CommObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = comm_slots,
};

static PyObject *area_bytes(PyObject *unused, PyObject *args) {
    int size;
    Py_ssize_t slot_max, chunk, attach_min;
    (void)unused;
    if (!PyArg_ParseTuple(args, "i(nnn)", &size, &slot_max, &chunk, &attach_min)) return NULL;
    if (size < 1 || size > AH_MAX_RANKS || slot_max < 0 || chunk < 1)
        return PyErr_Format(PyExc_ValueError, "no such communicator");
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    return PyLong_FromSize_t(segment_area_bytes(size, &limits));
}

static PyObject *default_limits(PyObject *unused, PyObject *given) {
    (void)unused;
    long size = PyLong_AsLong(given);
    if (PyErr_Occurred()) return NULL;
    if (size < 1 || size > AH_MAX_RANKS)
        return PyErr_Format(PyExc_ValueError, "no group that shares memory has %ld ranks", size);
    ah_limits limits = ah_default_limits((int)size);
    return Py_BuildValue("nnn", (Py_ssize_t)limits.slot_max, (Py_ssize_t)limits.chunk,
                         limits.attach_min == SIZE_MAX ? -1 : (Py_ssize_t)limits.attach_min);
}

static PyMethodDef functions[] = {
    {"default_limits", default_limits, METH_O, NULL},
    {"area_bytes", area_bytes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_comm_type(PyObject *module) {
    Comm_Type = (PyTypeObject *)PyType_FromSpec(&comm_spec);
    if (Comm_Type == NULL || pthread_atfork(NULL, NULL, in_child) != 0) return -1;
    if (PyModule_AddIntConstant(module, "MAX_RANKS", AH_MAX_RANKS) < 0 ||
        PyModule_AddFunctions(module, functions) < 0 || add_request_type(module) < 0 ||
        add_async_types(module) < 0 || add_record_constants(module) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "ShmComm", (PyObject *)Comm_Type);
}
