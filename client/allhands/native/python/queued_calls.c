#include "python/queued_calls.h"

#include <string.h>

#include "python/call_run.h"
#include "python/plan.h"
#include "python/turn.h"

PyObject *comm_take_number(CommObject *self, PyObject *unused) {
    (void)unused;
    self->queued++;
    return PyLong_FromUnsignedLongLong(++self->last_number);
}

PyObject *comm_release(CommObject *self, PyObject *unused) {
    (void)unused;
    self->queued--;
    Py_RETURN_NONE;
}

/* Whether the latest number's call comes next once `before` calls have ended, which are all that
 * have numbers but it, and nothing is known that speaks against it. */
PyObject *comm_is_next(CommObject *self, PyObject *given) {
    Py_ssize_t before = PyLong_AsSsize_t(given);
    if (before < 0 && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(!self->closed && self->queued == before + 1 &&
                           self->last_number <= self->limit && self->generation == comm_generation);
}

static bool set_buffers(PyObject *arrays, Plan *plan, void *places[], size_t share,
                        const size_t *shares, int size, bool written) {
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

static bool read_sizes(PyObject *given, size_t itemsize, size_t nbytes[], int size) {
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != size) {
        PyErr_SetString(PyExc_ValueError, "one count for each rank is needed");
        return false;
    }
    for (int rank = 0; rank < size; rank++) {
        size_t count = PyLong_AsSize_t(PyTuple_GET_ITEM(given, rank));
        if (PyErr_Occurred()) return false;
        nbytes[rank] = count * itemsize;
    }
    return true;
}

PyObject *comm_run(CommObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sequence", "kind",    "dtype",   "typesig", "op",   "root",
                            "count",    "sources", "targets", "send",    "recv", "timeout",
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
        int entered = comm_try_enter(self, kind, label);
        if (entered < 0) return NULL;
        if (!entered) Py_RETURN_FALSE;
    } else if (comm_acquire_turn(self) < 0)
        return NULL;
    else if (sequence > self->limit) /* it may have been said after this call took its number */
        ah_comm_interrupt(self->comm, sequence);
    Plan *plan = &self->plan;
    plan->kind = KINDS;
    for (int at = 0; at < KINDS; at++)
        if (strcmp(kind_names[at], kind) == 0) plan->kind = at;
    plan->type = AH_TYPES;
    plan->typesig = typesig;
    plan->itemsize = 0;
    plan->dtype = NULL;
    plan->op = op == Py_None ? -1 : comm_op_index(self, op);
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
            if (typesig == 0) plan->typesig = plan->type + 1;
        }
    }
    bool reduces = plan->op >= 0;
    whole = whole && (!reduces || (plan->type != AH_TYPES && ah_supports(plan->op, plan->type)));
    if (!whole) {
        PyErr_SetString(PyExc_ValueError, "no such call over shared memory");
        goto refused;
    }
    if (!plan_shape(plan, shape)) goto refused;
    if (!plan_label(plan, label)) {
        PyErr_SetString(PyExc_TypeError, "a label must be a str");
        goto refused;
    }
    bool exchanges = plan->kind == ALL_TO_ALL || plan->kind == ALL_TO_ALL_SINGLE;
    if (exchanges && (!read_sizes(send, plan->itemsize, plan->send, self->size) ||
                      !read_sizes(recv, plan->itemsize, plan->recv, self->size)))
        goto refused;
    if (exchanges) plan->count = 0;
    size_t share = (size_t)count * plan->itemsize;
    if (PyTuple_GET_SIZE(sources) > self->size || PyTuple_GET_SIZE(targets) > self->size ||
        !set_buffers(sources, plan, (void **)plan->in, share, exchanges ? plan->send : NULL,
                     self->size, false) ||
        !set_buffers(targets, plan, plan->out, share, exchanges ? plan->recv : NULL, self->size,
                     true)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "more arrays than ranks");
        goto refused;
    }
    if (PyTuple_GET_SIZE(targets) == 0) plan->out[0] = NULL;
    if (now) sequence = ++self->last_number;
    self->from_queue = !now;
    self->inline_thread = now ? PyThread_get_thread_ident() : 0;
    int failed = call_run(self, sequence, (int64_t)(timeout * NANOSECONDS),
                          (int64_t)(deadline * NANOSECONDS), label == Py_None ? NULL : label);
    self->from_queue = false;
    self->inline_thread = 0;
    PyThread_release_lock(self->turn);
    if (failed) return NULL;
    Py_RETURN_TRUE;
refused:
    PyThread_release_lock(self->turn);
    return NULL;
}
