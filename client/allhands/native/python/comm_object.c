#define _GNU_SOURCE
#include "python/arrays.h"
#include "python/deadline.h"

#include <pthread.h>
#include <structmember.h>

#define ATTACH_TRIES 8

const char *const lane_variant_names[] = {
    [AH_NONE] = "nothing",       [AH_SLOTS] = "slots",   [AH_STAGED] = "staged",
    [AH_SWAP] = "swap",          [AH_MAILBOXES] = "mailboxes", [AH_DIRECT] = "direct",
    [AH_ATTACH] = "attach",
};

PyTypeObject *Lane_Type;
unsigned lane_generation;

static void in_child(void) { lane_generation++; }

/* ---------------------------------------------------------------- calls from the queue */

static PyObject *lane_take(LaneObject *self, PyObject *unused)
{
    (void)unused;
    self->queued++;
    return PyLong_FromUnsignedLongLong(++self->taken);
}

static PyObject *lane_give_back(LaneObject *self, PyObject *unused)
{
    (void)unused;
    self->queued--;
    Py_RETURN_NONE;
}

/* Whether the latest number's call comes next once `before` calls have ended, which are all that
 * have numbers but it, and nothing is known that speaks against it. */
static PyObject *lane_is_next(LaneObject *self, PyObject *given)
{
    Py_ssize_t before = PyLong_AsSsize_t(given);
    if (before < 0 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(!self->closed && self->queued == before + 1 &&
                           self->taken <= self->limit && self->generation == lane_generation);
}

static bool fill(PyObject *arrays, Plan *plan, void *places[], size_t share, const size_t *shares,
                 int size, bool written)
{
    Py_ssize_t given = PyTuple_GET_SIZE(arrays);
    size_t total = 0;
    for (Py_ssize_t at = 0; at < given; at++) {
        PyObject *item = PyTuple_GET_ITEM(arrays, at);
        int wanted = NPY_ARRAY_C_CONTIGUOUS | (written ? NPY_ARRAY_WRITEABLE : 0);
        if (!PyArray_Check(item) || !PyArray_CHKFLAGS((PyArrayObject *)item, wanted) ||
            (size_t)PyArray_ITEMSIZE((PyArrayObject *)item) != plan->itemsize) {
            PyErr_SetString(PyExc_TypeError, "arrays must be contiguous and of the dtype given");
            return false;
        }
        size_t nbytes = (size_t)PyArray_NBYTES((PyArrayObject *)item);
        if (given == size && nbytes != (shares ? shares[at] : share)) {
            PyErr_SetString(PyExc_ValueError, "an array has another size than its block");
            return false;
        }
        places[at] = PyArray_DATA((PyArrayObject *)item);
        total += nbytes;
    }
    if (given != 1 || size == 1 || total == share)
        return true; /* one for each rank, or the only one that this rank has */
    size_t offset = 0;
    for (int rank = 0; rank < size; rank++) {
        places[rank] = (char *)places[0] + offset;
        offset += shares ? shares[rank] : share;
    }
    if (total != offset) {
        PyErr_SetString(PyExc_ValueError, "an array has another size than its blocks");
        return false;
    }
    return true;
}

static bool sizes(PyObject *given, size_t itemsize, size_t nbytes[], int size)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != size) {
        PyErr_SetString(PyExc_ValueError, "one count for each rank is needed");
        return false;
    }
    for (int rank = 0; rank < size; rank++) {
        size_t count = PyLong_AsSize_t(PyTuple_GET_ITEM(given, rank));
        if (PyErr_Occurred())
            return false;
        nbytes[rank] = count * itemsize;
    }
    return true;
}

bool lane_is_own(const LaneObject *self)
{
    if (self->generation == lane_generation)
        return true;
    PyObject *errors = PyImport_ImportModule("allhands.errors");
    PyObject *error = errors ? PyObject_GetAttrString(errors, "ForkedProcess") : NULL;
    Py_XDECREF(errors);
    if (error != NULL)
        PyErr_SetNone(error);
    Py_XDECREF(error);
    return false;
}

/* Wait for the turn, and for what was started before; -1 with an exception: without the turn. */
static int await_turn(LaneObject *self)
{
    if (!lane_is_own(self))
        return -1;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    if (self->pending == NULL || lane_finish_pending(self) == 0)
        return 0;
    PyThread_release_lock(self->turn);
    return -1;
}

static PyObject *lane_run(LaneObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "kind",    "dtype",   "typesig", "op",      "root",
                            "count",    "sources", "targets", "send",    "recv",    "timeout",
                            "deadline", "label",   "shape",   NULL};
    unsigned long long sequence, typesig;
    const char *kind;
    PyObject *dtype, *op, *sources, *targets, *send, *recv, *label, *shape;
    int root;
    Py_ssize_t count;
    double timeout, deadline;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KsOKOinO!O!OOddOO", names, &sequence, &kind,
                                     &dtype, &typesig, &op, &root, &count, &PyTuple_Type, &sources,
                                     &PyTuple_Type, &targets, &send, &recv, &timeout, &deadline,
                                     &label, &shape))
        return NULL;
    bool now = sequence == 0;
    if (now) {
        int entered = lane_enter(self, kind, label);
        if (entered < 0)
            return NULL;
        if (!entered)
            Py_RETURN_FALSE;
    } else if (await_turn(self) < 0)
        return NULL;
    else if (sequence > self->limit) /* it may have been said after this call took its number */
        ah_comm_interrupt(self->lane, sequence);
    Plan *plan = &self->plan;
    plan->kind = KINDS;
    for (int at = 0; at < KINDS; at++)
        if (strcmp(lane_kind_names[at], kind) == 0)
            plan->kind = at;
    plan->type = AH_TYPES;
    plan->typesig = typesig;
    plan->itemsize = 0;
    plan->dtype = NULL;
    plan->op = op == Py_None ? -1 : lane_op_index(self, op);
    plan->root = root;
    plan->count = (size_t)count;
    bool whole = plan->kind != KINDS && count >= 0 && root >= -1 && root < self->size &&
                 (op == Py_None || plan->op >= 0);
    if (whole && dtype != Py_None) {
        whole = PyArray_DescrCheck(dtype);
        if (whole) {
            PyArray_Descr *descr = (PyArray_Descr *)dtype;
            plan->type = type_of_number(descr->type_num);
            plan->itemsize = (size_t)PyDataType_ELSIZE(descr);
            plan->dtype = dtype;
            if (typesig == 0)
                plan->typesig = plan->type + 1;
        }
    }
    bool reduces = plan->op >= 0;
    whole = whole && (!reduces || (plan->type != AH_TYPES && ah_supports(plan->op, plan->type)));
    if (!whole) {
        PyErr_SetString(PyExc_ValueError, "no such call over shared memory");
        goto refused;
    }
    if (!plan_shape(plan, shape))
        goto refused;
    if (!plan_label(plan, label)) {
        PyErr_SetString(PyExc_TypeError, "a label must be a str");
        goto refused;
    }
    bool exchanges = plan->kind == ALL_TO_ALL || plan->kind == ALL_TO_ALL_SINGLE;
    if (exchanges && (!sizes(send, plan->itemsize, plan->send, self->size) ||
                      !sizes(recv, plan->itemsize, plan->recv, self->size)))
        goto refused;
    if (exchanges)
        plan->count = 0;
    size_t share = (size_t)count * plan->itemsize;
    if (PyTuple_GET_SIZE(sources) > self->size || PyTuple_GET_SIZE(targets) > self->size ||
        !fill(sources, plan, (void **)plan->in, share, exchanges ? plan->send : NULL, self->size,
              false) ||
        !fill(targets, plan, plan->out, share, exchanges ? plan->recv : NULL, self->size, true)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "more arrays than ranks");
        goto refused;
    }
    if (PyTuple_GET_SIZE(targets) == 0)
        plan->out[0] = NULL;
    if (now)
        sequence = ++self->taken;
    self->from_queue = !now;
    self->inside = now ? PyThread_get_thread_ident() : 0;
    int failed = lane_perform(self, sequence, (int64_t)(timeout * NANOSECONDS),
                     (int64_t)(deadline * NANOSECONDS), label == Py_None ? NULL : label);
    self->from_queue = false;
    self->inside = 0;
    PyThread_release_lock(self->turn);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
refused:
    PyThread_release_lock(self->turn);
    return NULL;
}

/* ---------------------------------------------------------------- state */

static PyObject *lane_progress(LaneObject *self, PyObject *unused)
{
    (void)unused;
    int64_t since = self->since_ns;
    const Record *record = lane_record_of(self, self->ended);
    if (self->current[0] == 0 && record->sequence == self->ended && record->finished > since)
        since = record->finished;
    return Py_BuildValue("KKKsd", (unsigned long long)self->begun, (unsigned long long)self->ended,
                         (unsigned long long)self->completed, self->current,
                         (double)since / NANOSECONDS);
}

static PyObject *lane_inside(LaneObject *self, PyObject *unused)
{
    (void)unused;
    if (self->inside == 0)
        Py_RETURN_NONE;
    PyObject *label = lane_record_of(self, self->begun)->label;
    return Py_BuildValue("kKsO", self->inside, (unsigned long long)self->begun,
                         lane_kind_names[self->plan.kind], label ? label : Py_None);
}

static PyObject *lane_last(LaneObject *self, PyObject *unused)
{
    (void)unused;
    const Record *record = lane_record_of(self, self->ended);
    if (self->ended == 0)
        Py_RETURN_NONE;
    return Py_BuildValue("Ksns", (unsigned long long)record->sequence, lane_kind_names[record->kind],
                         (Py_ssize_t)record_bytes(record), lane_variant_names[self->variant]);
}

static PyObject *lane_waits(LaneObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *waits = PyList_New(0);
    uint64_t first = self->ended > WAITS ? self->ended - WAITS + 1 : 1;
    for (uint64_t sequence = first; waits != NULL && sequence <= self->ended; sequence++) {
        PyObject *one =
            PyFloat_FromDouble((double)self->waits[sequence % WAITS] / NANOSECONDS);
        if (one == NULL || PyList_Append(waits, one) < 0)
            Py_CLEAR(waits);
        Py_XDECREF(one);
    }
    return waits;
}

static PyObject *lane_interrupt(LaneObject *self, PyObject *given)
{
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || !lane_is_own(self))
        return NULL;
    ah_comm_interrupt(self->lane, sequence);
    Py_RETURN_NONE;
}

static PyObject *lane_limit(LaneObject *self, PyObject *given)
{
    unsigned long long limit = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred())
        return NULL;
    if (limit < self->limit)
        self->limit = limit;
    Py_RETURN_NONE;
}

/* End what runs and turn down all to come. */
static PyObject *lane_close(LaneObject *self, PyObject *unused)
{
    (void)unused;
    if (!lane_is_own(self))
        return NULL;
    self->closed = true;
    ah_comm_interrupt(self->lane, UINT64_MAX);
    Py_RETURN_NONE;
}

/* Say goodbye in the memory, which may be given back then: nothing runs, and nothing will. */
static PyObject *lane_leave(LaneObject *self, PyObject *unused)
{
    (void)unused;
    if (!lane_is_own(self))
        return NULL;
    self->closed = true;
    ah_comm_leave(self->lane);
    Py_RETURN_NONE;
}

static PyObject *lane_idle(LaneObject *self, PyObject *unused)
{
    (void)unused;
    if (await_turn(self) < 0)
        return NULL;
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

/* Tell the others that they wait in vain for this rank in calls up to that number. */
static PyObject *lane_give_up(LaneObject *self, PyObject *given)
{
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || await_turn(self) < 0)
        return NULL;
    ah_comm_skip(self->lane, sequence);
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank",       "segments", "offsets", "pids",       "heap_offset",
                            "heap_bytes", "limits",   "timeout", "ops",        "on_failure",
                            "on_slow",    "taken",    "queued",  "records",    "on_clash",
                            NULL};
    unsigned long long taken;
    Py_ssize_t queued;
    int rank;
    PyObject *segments, *offsets, *pids, *ops, *on_failure, *on_slow;
    Py_ssize_t heap_offset, heap_bytes, slot_max, chunk, attach_min;
    Py_ssize_t records = 0;
    PyObject *on_clash = NULL;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!nn(nnn)dO!OOKn|nO", names, &rank,
                                     &PyTuple_Type, &segments, &PyTuple_Type, &offsets,
                                     &PyTuple_Type, &pids, &heap_offset, &heap_bytes, &slot_max,
                                     &chunk, &attach_min, &timeout, &PyTuple_Type, &ops,
                                     &on_failure, &on_slow, &taken, &queued, &records,
                                     &on_clash))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(segments);
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    if (size < 1 || size > AH_MAX_RANKS || rank < 0 || rank >= size || slot_max < 0 || chunk < 1 ||
        PyTuple_GET_SIZE(offsets) != size || PyTuple_GET_SIZE(pids) != size || heap_offset < 0 ||
        heap_bytes < 0 || !(timeout > 0) || !(timeout < 1e9) || records < 0 ||
        records > RECORDS_MOST)
        return PyErr_Format(PyExc_ValueError, "no such lane");
    size_t needed = segment_area_bytes((int)size, &limits);
    void *areas[AH_MAX_RANKS], *heaps[AH_MAX_RANKS];
    pid_t processes[AH_MAX_RANKS];
    if (!segment_places(segments, offsets, pids, needed, (size_t)heap_offset, (size_t)heap_bytes,
                        areas, heaps, processes))
        return NULL;
    LaneObject *self = (LaneObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lane = ah_comm_new(rank, (int)size, areas, processes, heaps, (size_t)heap_bytes, &limits);
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
    self->tries = limits.attach_min == SIZE_MAX ? 0 : ATTACH_TRIES;
    self->limit = UINT64_MAX;
    self->taken = taken;
    self->queued = queued;
    self->current = "";
    self->since_ns = now_ns();
    self->generation = lane_generation;
    if (self->lane == NULL || self->turn == NULL || !lane_make_records(self, (size_t)records)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int lane_traverse(LaneObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->segments);
    Py_VISIT(self->ops);
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_slow);
    Py_VISIT(self->on_clash);
    Py_VISIT((PyObject *)self->pending);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int lane_break(LaneObject *self)
{
    PyObject *pending = (PyObject *)self->pending;
    self->pending = NULL;
    Py_XDECREF(pending);
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_slow);
    Py_CLEAR(self->on_clash);
    return 0;
}

static void lane_dealloc(LaneObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    lane_break(self);
    /* In a forked child the memory is still its parent's, who has not left. */
    if (self->lane != NULL && self->generation == lane_generation)
        ah_comm_free(self->lane);
    if (self->turn != NULL)
        PyThread_free_lock(self->turn);
    Py_XDECREF(self->segments);
    Py_XDECREF(self->ops);
    lane_free_records(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef lane_methods[] = {
    {"barrier", (PyCFunction)(void (*)(void))lane_barrier, METH_FASTCALL, NULL},
    {"all_reduce", (PyCFunction)(void (*)(void))lane_all_reduce, METH_FASTCALL, NULL},
    {"reduce", (PyCFunction)(void (*)(void))lane_reduce, METH_FASTCALL, NULL},
    {"broadcast", (PyCFunction)(void (*)(void))lane_broadcast, METH_FASTCALL, NULL},
    {"all_gather_into_tensor", (PyCFunction)(void (*)(void))lane_all_gather_into_tensor,
     METH_FASTCALL, NULL},
    {"reduce_scatter_tensor", (PyCFunction)(void (*)(void))lane_reduce_scatter_tensor,
     METH_FASTCALL, NULL},
    {"all_to_all_single", (PyCFunction)(void (*)(void))lane_all_to_all_single, METH_FASTCALL,
     NULL},
    {"post", (PyCFunction)(void (*)(void))lane_post, METH_FASTCALL, NULL},
    {"leave", (PyCFunction)lane_leave, METH_NOARGS, NULL},
    {"take", (PyCFunction)lane_take, METH_NOARGS, NULL},
    {"give_back", (PyCFunction)lane_give_back, METH_NOARGS, NULL},
    {"is_next", (PyCFunction)lane_is_next, METH_O, NULL},
    {"run", (PyCFunction)(void (*)(void))lane_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {"progress", (PyCFunction)lane_progress, METH_NOARGS, NULL},
    {"inside", (PyCFunction)lane_inside, METH_NOARGS, NULL},
    {"waits", (PyCFunction)lane_waits, METH_NOARGS, NULL},
    {"last", (PyCFunction)lane_last, METH_NOARGS, NULL},
    {"record", (PyCFunction)lane_record, METH_O, NULL},
    {"records", (PyCFunction)lane_records, METH_O, NULL},
    {"source", (PyCFunction)lane_source, METH_O, NULL},
    {"ended_as", (PyCFunction)lane_ended_as, METH_VARARGS, NULL},
    {"begun", (PyCFunction)lane_begun, METH_NOARGS, NULL},
    {"give_up", (PyCFunction)lane_give_up, METH_O, NULL},
    {"interrupt", (PyCFunction)lane_interrupt, METH_O, NULL},
    {"limit", (PyCFunction)lane_limit, METH_O, NULL},
    {"close", (PyCFunction)lane_close, METH_NOARGS, NULL},
    {"idle", (PyCFunction)lane_idle, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *lane_timeout(LaneObject *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble((double)self->timeout_ns / NANOSECONDS);
}

static int lane_set_timeout(LaneObject *self, PyObject *value, void *unused)
{
    (void)unused;
    return read_timeout(value, &self->timeout_ns);
}

static PyGetSetDef lane_getset[] = {
    {"timeout", (getter)lane_timeout, (setter)lane_set_timeout, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef lane_members[] = {
    {"taken", T_ULONGLONG, offsetof(LaneObject, taken), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "The calls of one group over shared memory; described in _native.pyi."},
    {Py_tp_new, lane_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_traverse, lane_traverse},
    {Py_tp_clear, lane_break},
    {Py_tp_methods, lane_methods},
    {Py_tp_members, lane_members},
    {Py_tp_getset, lane_getset},
    {0, NULL},
};

static PyType_Spec lane_spec = {
    .name = "allhands._native.Lane",
    .basicsize = sizeof(LaneObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = lane_slots,
};

static PyObject *area_bytes(PyObject *unused, PyObject *args)
{
    int size;
    Py_ssize_t slot_max, chunk, attach_min;
    (void)unused;
    if (!PyArg_ParseTuple(args, "i(nnn)", &size, &slot_max, &chunk, &attach_min))
        return NULL;
    if (size < 1 || size > AH_MAX_RANKS || slot_max < 0 || chunk < 1)
        return PyErr_Format(PyExc_ValueError, "no such lane");
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    return PyLong_FromSize_t(segment_area_bytes(size, &limits));
}

static PyObject *default_limits(PyObject *unused, PyObject *given)
{
    (void)unused;
    long size = PyLong_AsLong(given);
    if (PyErr_Occurred())
        return NULL;
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

int add_lane_type(PyObject *module)
{
    Lane_Type = (PyTypeObject *)PyType_FromSpec(&lane_spec);
    if (Lane_Type == NULL || pthread_atfork(NULL, NULL, in_child) != 0)
        return -1;
    if (PyModule_AddIntConstant(module, "MAX_RANKS", AH_MAX_RANKS) < 0 ||
        PyModule_AddFunctions(module, functions) < 0 || add_persistent_type(module) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Lane", (PyObject *)Lane_Type);
}
