#include "python/arrays.h"
#include "python/deadline.h"
#include "python/signature.h"

bool plan_label(Plan *plan, PyObject *label)
{
    plan->labelsig = 0;
    if (label == Py_None)
        return true;
    Py_ssize_t nbytes;
    const char *text = PyUnicode_Check(label) ? PyUnicode_AsUTF8AndSize(label, &nbytes) : NULL;
    if (text == NULL) {
        PyErr_Clear();
        return false;
    }
    plan->labelsig = label_signature(text, (size_t)nbytes);
    return true;
}

void plan_no_shape(Plan *plan)
{
    plan->ndim = SHAPE_NONE;
    plan->shape = NULL;
    plan->shapesig = 0;
}

bool plan_shape(Plan *plan, PyObject *given)
{
    plan_no_shape(plan);
    if (given == Py_None)
        return true;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a shape must be a tuple");
        return false;
    }
    Py_ssize_t ndim = PyTuple_GET_SIZE(given);
    uint64_t signature = shape_begun((size_t)ndim);
    for (Py_ssize_t at = 0; at < ndim; at++) {
        Py_ssize_t dim = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, at));
        if (dim == -1 && PyErr_Occurred())
            return false;
        signature = shape_with(signature, dim);
        if (at < SHAPE_DIMS)
            plan->dims[at] = dim;
    }
    plan->shapesig = signature;
    if (ndim <= SHAPE_DIMS && (ndim != 1 || (size_t)plan->dims[0] == plan->count))
        plan->ndim = (int)ndim;
    else
        plan->shape = given;
    return true;
}

static bool is_open(const LaneObject *self)
{
    return !self->closed && self->queued == 0 && self->taken < self->limit &&
           self->generation == lane_generation;
}

/* Refuse a call while another thread is in one under the same label: -1. Ranks could not tell which
 * of the two belongs to which of theirs. */
static int refuse_clash(LaneObject *self, const char *operation, PyObject *label)
{
    if (self->on_clash == NULL || self->inside == 0 ||
        self->inside == PyThread_get_thread_ident())
        return 0;
    Plan mine;
    if (!plan_label(&mine, label) || mine.labelsig != self->plan.labelsig)
        return 0;
    PyObject *done = PyObject_CallFunction(
        self->on_clash, "skKs", operation, self->inside, (unsigned long long)self->begun,
        lane_kind_names[self->plan.kind]);
    if (done == NULL)
        return -1;
    Py_DECREF(done);
    return 0;
}

int lane_enter(LaneObject *self, const char *operation, PyObject *label)
{
    if (!is_open(self))
        return 0;
    if (!PyThread_acquire_lock(self->turn, NOWAIT_LOCK))
        return refuse_clash(self, operation, label);
    if (self->pending == NULL)
        return 1;
    /* That takes time, in which others may have taken a number. */
    int entered = lane_finish_pending(self) < 0 ? -1 : is_open(self);
    if (entered <= 0)
        PyThread_release_lock(self->turn);
    return entered;
}

/* Turn down what is not plain: the careful way looks again and says what is wrong. */
static PyObject *not_here(LaneObject *self)
{
    PyThread_release_lock(self->turn);
    Py_RETURN_FALSE;
}

static PyObject *run_here(LaneObject *self, PyObject *timeout, PyObject *label)
{
    int64_t limit = self->timeout_ns;
    if (timeout != Py_None) {
        double seconds = PyFloat_AsDouble(timeout);
        if (PyErr_Occurred() || !(seconds > 0) || !(seconds < 1e9)) {
            PyErr_Clear();
            return not_here(self);
        }
        limit = (int64_t)(seconds * NANOSECONDS);
    }
    if ((limit = within_deadlines(limit)) <= 0 || !plan_label(&self->plan, label))
        return not_here(self);
    self->inside = PyThread_get_thread_ident();
    int failed = lane_perform(self, ++self->taken, limit, 0, label == Py_None ? NULL : label);
    self->inside = 0;
    PyThread_release_lock(self->turn);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
}

int lane_op_index(LaneObject *self, PyObject *op)
{
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(self->ops); at++)
        if (PyTuple_GET_ITEM(self->ops, at) == op)
            return (int)at;
    return -1;
}

static int rank_of(LaneObject *self, PyObject *given)
{
    if (!PyLong_CheckExact(given))
        return -1;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred())
        PyErr_Clear();
    return rank < 0 || rank >= self->size ? -1 : (int)rank;
}

#define FAST(self_, wanted, kind_)                                                                 \
    LaneObject *self = (LaneObject *)(self_);                                                      \
    if (nargs != (wanted)) {                                                                       \
        PyErr_Format(PyExc_TypeError, "wants %d arguments, has %zd", (wanted), nargs);             \
        return NULL;                                                                               \
    }                                                                                              \
    int entered = lane_enter(self, lane_kind_names[kind_], args[nargs - 1]);                       \
    if (entered < 0)                                                                               \
        return NULL;                                                                               \
    if (!entered)                                                                                  \
        Py_RETURN_FALSE;                                                                           \
    Plan *plan = &self->plan;                                                                      \
    plan->op = plan->root = -1;                                                                    \
    plan->dtype = NULL

PyObject *lane_barrier(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 2, BARRIER);
    plan->kind = BARRIER;
    plan->count = plan->itemsize = 0;
    plan->typesig = 0;
    plan_no_shape(plan);
    return run_here(self, args[0], args[1]);
}

PyObject *lane_all_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4, ALL_REDUCE); /* x, op, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->op = lane_op_index(self, args[1])) < 0)
        return not_here(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = ALL_REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_here(self, args[2], args[3]);
}

PyObject *lane_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 5, REDUCE); /* x, root, op, timeout, label */
    if ((plan->root = rank_of(self, args[1])) < 0 || (plan->op = lane_op_index(self, args[2])) < 0)
        return not_here(self);
    PyArrayObject *x = plain_array(args[0], plan->root == self->rank);
    if (x == NULL)
        return not_here(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->in[0] = PyArray_DATA(x);
    plan->out[0] = plan->root == self->rank ? PyArray_DATA(x) : NULL;
    return run_here(self, args[3], args[4]);
}

PyObject *lane_broadcast(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4, BROADCAST); /* x, root, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->root = rank_of(self, args[1])) < 0)
        return not_here(self);
    plan_type(plan, x);
    plan->kind = BROADCAST;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_here(self, args[2], args[3]);
}

static bool apart(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    uintptr_t first = (uintptr_t)one, second = (uintptr_t)other;
    return first + one_bytes <= second || second + other_bytes <= first;
}

/* Two plain arrays of one dtype that lie apart. */
static bool pair(PyObject *output, PyObject *input, PyArrayObject **out, PyArrayObject **in)
{
    *out = plain_array(output, true);
    *in = plain_array(input, false);
    return *out != NULL && *in != NULL && PyArray_TYPE(*out) == PyArray_TYPE(*in) &&
           apart(PyArray_DATA(*out), (size_t)PyArray_NBYTES(*out), PyArray_DATA(*in),
                 (size_t)PyArray_NBYTES(*in));
}

static void spread(void *places[], void *first, size_t nbytes, int size)
{
    for (int rank = 0; rank < size; rank++)
        places[rank] = (char *)first + (size_t)rank * nbytes;
}

PyObject *lane_all_gather_into_tensor(PyObject *self_, PyObject *const *args,
                                             Py_ssize_t nargs)
{
    FAST(self_, 4, ALL_GATHER_INTO_TENSOR); /* output, x, timeout, label */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_SIZE(out) != PyArray_SIZE(in) * self->size)
        return not_here(self);
    plan_type(plan, in);
    plan->kind = ALL_GATHER_INTO_TENSOR;
    plan->count = (size_t)PyArray_SIZE(in);
    plan->in[0] = PyArray_DATA(in);
    spread(plan->out, PyArray_DATA(out), plan->count * plan->itemsize, self->size);
    return run_here(self, args[2], args[3]);
}

PyObject *lane_reduce_scatter_tensor(PyObject *self_, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    FAST(self_, 5, REDUCE_SCATTER_TENSOR); /* output, x, op, timeout, label */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_SIZE(in) != PyArray_SIZE(out) * self->size ||
        (plan->op = lane_op_index(self, args[2])) < 0)
        return not_here(self);
    plan_type(plan, in);
    plan_block(plan, self->size);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = REDUCE_SCATTER_TENSOR;
    plan->count = (size_t)PyArray_SIZE(out);
    plan->out[0] = PyArray_DATA(out);
    spread((void **)plan->in, PyArray_DATA(in), plan->count * plan->itemsize, self->size);
    return run_here(self, args[3], args[4]);
}

PyObject *lane_all_to_all_single(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4, ALL_TO_ALL_SINGLE); /* output, x, timeout, label; equal shares */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_NDIM(in) == 0 || PyArray_NDIM(out) == 0 ||
        PyArray_DIM(in, 0) % self->size || PyArray_DIM(out, 0) % self->size ||
        PyArray_SIZE(in) != PyArray_SIZE(out))
        return not_here(self);
    plan_type(plan, in);
    plan->kind = ALL_TO_ALL_SINGLE;
    plan->count = 0; /* ranks may differ in it */
    plan_no_shape(plan);
    size_t share = (size_t)PyArray_NBYTES(in) / (size_t)self->size;
    for (int rank = 0; rank < self->size; rank++)
        plan->send[rank] = plan->recv[rank] = share;
    spread((void **)plan->in, PyArray_DATA(in), share, self->size);
    spread(plan->out, PyArray_DATA(out), share, self->size);
    return run_here(self, args[2], args[3]);
}
