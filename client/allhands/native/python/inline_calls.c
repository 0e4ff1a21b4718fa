#include "python/arrays.h"
#include "python/deadline.h"
#include "python/signature.h"

bool plan_label(Plan *plan, PyObject *label) {
    plan->labelsig = 0;
    if (label == Py_None) return true;
    Py_ssize_t nbytes;
    const char *text = PyUnicode_Check(label) ? PyUnicode_AsUTF8AndSize(label, &nbytes) : NULL;
    if (text == NULL) {
        PyErr_Clear();
        return false;
    }
    plan->labelsig = label_signature(text, (size_t)nbytes);
    return true;
}

void plan_no_shape(Plan *plan) {
    plan->ndim = SHAPE_NONE;
    plan->shape = NULL;
    plan->shapesig = 0;
}

bool plan_shape(Plan *plan, PyObject *given) {
    plan_no_shape(plan);
    if (given == Py_None) return true;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a shape must be a tuple");
        return false;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(given);
    uint64_t signature = shape_begun((size_t)ndim);
    for (Py_ssize_t at = 0; at < ndim; at++) {
        Py_ssize_t dim = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, at));
        if (dim == -1 && PyErr_Occurred()) return false;
        signature = shape_with(signature, dim);
        if (at < SHAPE_DIMS) plan->dims[at] = dim;
    }
    plan->shapesig = signature;
    if (ndim <= SHAPE_DIMS && (ndim != 1 || (size_t)plan->dims[0] == plan->count))
        plan->ndim = (int)ndim;
    else
        plan->shape = given;
    return true;
}

static bool is_open(const CommObject *self) {
    return !self->closed && self->queued == 0 && self->last_number < self->limit &&
           self->generation == comm_generation;
}

/* Refuse a call while another thread is in one under the same label: -1. Ranks could not tell which
 * of the two belongs to which of theirs. */
static int refuse_clash(CommObject *self, const char *operation, PyObject *label) {
    if (self->on_clash == NULL || self->inline_thread == 0 ||
        self->inline_thread == PyThread_get_thread_ident())
        return 0;
    Plan mine;
    if (!plan_label(&mine, label) || mine.labelsig != self->plan.labelsig) return 0;
    PyObject *done =
        PyObject_CallFunction(self->on_clash, "skKs", operation, self->inline_thread,
                              (unsigned long long)self->begun, kind_names[self->plan.kind]);
    if (done == NULL) return -1;
    Py_DECREF(done);
    return 0;
}

int comm_try_enter(CommObject *self, const char *operation, PyObject *label) {
    if (!is_open(self)) return 0;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK))
        return refuse_clash(self, operation, label);
    if (self->pending == NULL) return 1;
    /* That takes time, in which others may have taken a number. */
    int entered = comm_finish_pending(self) < 0 ? -1 : is_open(self);
    if (entered <= 0) PyThread_release_lock(self->turn);
    return entered;
}

/* Turn down what is not plain: the careful way looks again and says what is wrong. */
static PyObject *decline(CommObject *self) {
    PyThread_release_lock(self->turn);
    Py_RETURN_FALSE;
}

static PyObject *run_inline(CommObject *self, PyObject *timeout, PyObject *label) {
    int64_t limit = self->timeout_ns;
    if (timeout != Py_None) {
        double seconds = PyFloat_AsDouble(timeout);
        if (PyErr_Occurred() || !(seconds > 0) || !(seconds < 1e9)) {
            PyErr_Clear();
            return decline(self);
        }
        limit = (int64_t)(seconds * NANOSECONDS);
    }
    if ((limit = limit_by_deadlines(limit)) <= 0 || !plan_label(&self->plan, label))
        return decline(self);
    self->inline_thread = PyThread_get_thread_ident();
    int failed = call_run(self, ++self->last_number, limit, 0, label == Py_None ? NULL : label);
    self->inline_thread = 0;
    PyThread_release_lock(self->turn);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

int comm_op_index(CommObject *self, PyObject *op) {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(self->ops); at++)
        if (PyTuple_GET_ITEM(self->ops, at) == op) return (int)at;
    return -1;
}

static int rank_of(CommObject *self, PyObject *given) {
    if (!PyLong_CheckExact(given)) return -1;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred()) PyErr_Clear();
    return rank < 0 || rank >= self->size ? -1 : (int)rank;
}

#define BEGIN_INLINE(self_, wanted, kind_)                                                         \
    CommObject *self = (CommObject *)(self_);                                                      \
    if (nargs != (wanted)) {                                                                       \
        PyErr_Format(PyExc_TypeError, "wants %d arguments, has %zd", (wanted), nargs);             \
        return NULL;                                                                               \
    }                                                                                              \
    int entered = comm_try_enter(self, kind_names[kind_], args[nargs - 1]);                        \
    if (entered < 0) return NULL;                                                                  \
    if (!entered) Py_RETURN_FALSE;                                                                 \
    Plan *plan = &self->plan;                                                                      \
    plan->op = plan->root = -1;                                                                    \
    plan->dtype = NULL

PyObject *comm_barrier(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 2, BARRIER);
    plan->kind = BARRIER;
    plan->count = plan->itemsize = 0;
    plan->typesig = 0;
    plan_no_shape(plan);
    return run_inline(self, args[0], args[1]);
}

PyObject *comm_all_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, ALL_REDUCE); /* x, op, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->op = comm_op_index(self, args[1])) < 0) return decline(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = ALL_REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_inline(self, args[2], args[3]);
}

PyObject *comm_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 5, REDUCE); /* x, root, op, timeout, label */
    if ((plan->root = rank_of(self, args[1])) < 0 || (plan->op = comm_op_index(self, args[2])) < 0)
        return decline(self);
    PyArrayObject *x = plain_array(args[0], plan->root == self->rank);
    if (x == NULL) return decline(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->in[0] = PyArray_DATA(x);
    plan->out[0] = plan->root == self->rank ? PyArray_DATA(x) : NULL;
    return run_inline(self, args[3], args[4]);
}

PyObject *comm_broadcast(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, BROADCAST); /* x, root, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->root = rank_of(self, args[1])) < 0) return decline(self);
    plan_type(plan, x);
    plan->kind = BROADCAST;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_inline(self, args[2], args[3]);
}

static bool are_disjoint(const void *one, size_t one_bytes, const void *other, size_t other_bytes) {
    uintptr_t first = (uintptr_t)one, second = (uintptr_t)other;
    return first + one_bytes <= second || second + other_bytes <= first;
}

/* Two plain arrays of one dtype that lie apart. */
static bool disjoint_pair(PyObject *output, PyObject *input, PyArrayObject **out,
                          PyArrayObject **in) {
    *out = plain_array(output, true);
    *in = plain_array(input, false);
    return *out != NULL && *in != NULL && PyArray_TYPE(*out) == PyArray_TYPE(*in) &&
           are_disjoint(PyArray_DATA(*out), (size_t)PyArray_NBYTES(*out), PyArray_DATA(*in),
                        (size_t)PyArray_NBYTES(*in));
}

static void set_blocks(void *places[], void *first, size_t nbytes, int size) {
    for (int rank = 0; rank < size; rank++) places[rank] = (char *)first + (size_t)rank * nbytes;
}

PyObject *comm_all_gather_into_tensor(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, ALL_GATHER_INTO_TENSOR); /* output, x, timeout, label */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) ||
        PyArray_SIZE(out) != PyArray_SIZE(in) * self->size)
        return decline(self);
    plan_type(plan, in);
    plan->kind = ALL_GATHER_INTO_TENSOR;
    plan->count = (size_t)PyArray_SIZE(in);
    plan->in[0] = PyArray_DATA(in);
    set_blocks(plan->out, PyArray_DATA(out), plan->count * plan->itemsize, self->size);
    return run_inline(self, args[2], args[3]);
}

PyObject *comm_reduce_scatter_tensor(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 5, REDUCE_SCATTER_TENSOR); /* output, x, op, timeout, label */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) ||
        PyArray_SIZE(in) != PyArray_SIZE(out) * self->size ||
        (plan->op = comm_op_index(self, args[2])) < 0)
        return decline(self);
    plan_type(plan, in);
    plan_block(plan, self->size);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = REDUCE_SCATTER_TENSOR;
    plan->count = (size_t)PyArray_SIZE(out);
    plan->out[0] = PyArray_DATA(out);
    set_blocks((void **)plan->in, PyArray_DATA(in), plan->count * plan->itemsize, self->size);
    return run_inline(self, args[3], args[4]);
}

PyObject *comm_all_to_all_single(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, ALL_TO_ALL_SINGLE); /* output, x, timeout, label; equal shares */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) || PyArray_NDIM(in) == 0 ||
        PyArray_NDIM(out) == 0 || PyArray_DIM(in, 0) % self->size ||
        PyArray_DIM(out, 0) % self->size || PyArray_SIZE(in) != PyArray_SIZE(out))
        return decline(self);
    plan_type(plan, in);
    plan->kind = ALL_TO_ALL_SINGLE;
    plan->count = 0; /* ranks may differ in it */
    plan_no_shape(plan);
    size_t share = (size_t)PyArray_NBYTES(in) / (size_t)self->size;
    for (int rank = 0; rank < self->size; rank++) plan->send[rank] = plan->recv[rank] = share;
    set_blocks((void **)plan->in, PyArray_DATA(in), share, self->size);
    set_blocks(plan->out, PyArray_DATA(out), share, self->size);
    return run_inline(self, args[2], args[3]);
}
