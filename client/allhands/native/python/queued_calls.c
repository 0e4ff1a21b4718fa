#include "python/queued_calls.h"

#include <string.h>

#include "python/async_calls.h"
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

/* The arguments of `run`, borrowed. */
typedef struct {
    unsigned long long sequence, typesig;
    const char *kind;
    PyObject *dtype, *op, *sources, *targets, *send, *recv, *label, *shape;
    int root;
    Py_ssize_t count;
    double timeout, deadline;
} Arguments;

static bool parse(PyObject *args, PyObject *kwargs, Arguments *given) {
    static char *names[] = {"sequence", "kind",    "dtype",   "typesig", "op",   "root",
                            "count",    "sources", "targets", "send",    "recv", "timeout",
                            "deadline", "label",   "shape",   NULL};
    return PyArg_ParseTupleAndKeywords(
        args, kwargs, "KsOKOinO!O!OOddOO", names, &given->sequence, &given->kind, &given->dtype,
        &given->typesig, &given->op, &given->root, &given->count, &PyTuple_Type, &given->sources,
        &PyTuple_Type, &given->targets, &given->send, &given->recv, &given->timeout,
        &given->deadline, &given->label, &given->shape);
}

/* Plan operation, dtype and root; false: there is no such call. */
static bool plan_operation(CommObject *self, Plan *plan, const Arguments *given) {
    plan->kind = AH_KINDS;
    for (int at = 0; at < AH_KINDS; at++)
        if (strcmp(kind_names[at], given->kind) == 0) plan->kind = at;
    plan->type = AH_TYPES;
    plan->typesig = given->typesig;
    plan->itemsize = 0;
    plan->dtype = NULL;
    plan->op = given->op == Py_None ? -1 : comm_op_index(self, given->op);
    plan->root = given->root;
    plan->count = (size_t)given->count;
    if (plan->kind == AH_KINDS || given->count < 0 || given->root < -1 ||
        given->root >= self->size || (given->op != Py_None && plan->op < 0))
        return false;
    if (given->dtype != Py_None) {
        if (!PyArray_DescrCheck(given->dtype)) return false;
        PyArray_Descr *descr = (PyArray_Descr *)given->dtype;
        plan->type = type_of_number(descr->type_num);
        plan->itemsize = (size_t)PyDataType_ELSIZE(descr);
        plan->dtype = given->dtype;
        if (given->typesig == 0) plan->typesig = plan->type + 1;
    }
    return plan->op < 0 || (plan->type != AH_TYPES && ah_supports(plan->op, plan->type));
}

/* Plan where the data lies; false with an exception. */
static bool plan_buffers(const CommObject *self, Plan *plan, const Arguments *given) {
    bool exchanges = ah_kind_has_splits(plan->kind);
    if (exchanges && (!read_sizes(given->send, plan->itemsize, plan->send, self->size) ||
                      !read_sizes(given->recv, plan->itemsize, plan->recv, self->size)))
        return false;
    if (exchanges) plan->count = 0;
    size_t block = (size_t)given->count * plan->itemsize;
    if (PyTuple_GET_SIZE(given->sources) > self->size ||
        PyTuple_GET_SIZE(given->targets) > self->size) {
        PyErr_SetString(PyExc_ValueError, "more arrays than ranks");
        return false;
    }
    if (!set_buffers(given->sources, plan, (void **)plan->in, block, exchanges ? plan->send : NULL,
                     self->size, false) ||
        !set_buffers(given->targets, plan, plan->out, block, exchanges ? plan->recv : NULL,
                     self->size, true))
        return false;
    if (PyTuple_GET_SIZE(given->targets) == 0) plan->out[0] = NULL;
    return true;
}

/* False with an exception. The plan of the communicator is for who has the turn. */
static bool plan_call(CommObject *self, Plan *plan, const Arguments *given) {
    if (!plan_operation(self, plan, given)) {
        PyErr_SetString(PyExc_ValueError, "no such call over shared memory");
        return false;
    }
    if (!plan_shape(plan, given->shape)) return false;
    if (!plan_label(plan, given->label)) {
        PyErr_SetString(PyExc_TypeError, "a label must be a str");
        return false;
    }
    return plan_buffers(self, plan, given);
}

PyObject *comm_run(CommObject *self, PyObject *args, PyObject *kwargs) {
    Arguments given;
    if (!parse(args, kwargs, &given)) return NULL;
    bool now = given.sequence == 0;
    if (now) {
        int entered = comm_try_enter(self, given.kind, given.label);
        if (entered < 0) return NULL;
        if (!entered) Py_RETURN_FALSE;
    } else if (comm_acquire_turn(self) < 0)
        return NULL;
    else if (given.sequence > self->limit) /* which may have been set after it took its number */
        ah_comm_interrupt(self->comm, given.sequence);
    if (!plan_call(self, &self->plan, &given)) {
        PyThread_release_lock(self->turn);
        return NULL;
    }
    self->from_queue = !now;
    self->inline_thread = now ? PyThread_get_thread_ident() : 0;
    int failed = call_run(
        self, now ? ++self->last_number : given.sequence, (int64_t)(given.timeout * NANOSECONDS),
        (int64_t)(given.deadline * NANOSECONDS), given.label == Py_None ? NULL : given.label);
    self->from_queue = false;
    self->inline_thread = 0;
    PyThread_release_lock(self->turn);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

/* The arguments of `run`, but for sequence and deadline, then value and waits. */
PyObject *comm_enqueue(CommObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind",    "dtype",   "typesig", "op",   "root",    "count",
                            "sources", "targets", "send",    "recv", "timeout", "label",
                            "shape",   "value",   "waits",   NULL};
    Arguments given = {.sequence = 0};
    PyObject *value;
    int waits;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOKOinO!O!OOdOOOp", names, &given.kind,
                                     &given.dtype, &given.typesig, &given.op, &given.root,
                                     &given.count, &PyTuple_Type, &given.sources, &PyTuple_Type,
                                     &given.targets, &given.send, &given.recv, &given.timeout,
                                     &given.label, &given.shape, &value, &waits))
        return NULL;
    if (!(given.timeout > 0) || !(given.timeout < 1e9)) Py_RETURN_NONE;
    Plan plan = {.kind = AH_KINDS};
    if (!plan_call(self, &plan, &given)) return NULL;
    PyObject *arrays = PyTuple_Pack(2, given.sources, given.targets);
    if (arrays == NULL) return NULL;
    PyObject *call = async_enqueue(self, &plan, given.label, value, arrays,
                                   (int64_t)(given.timeout * NANOSECONDS), waits ? ASYNC_WAITS : 0);
    Py_DECREF(arrays);
    return call;
}
