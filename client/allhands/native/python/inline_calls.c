#include "python/inline_calls.h"

#include "python/call_run.h"
#include "python/deadline.h"
#include "python/plan.h"
#include "python/turn.h"

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
    if (self->run_atomic != NULL) return self->run_atomic(self, limit, label);
    self->inline_thread = PyThread_get_thread_ident();
    int failed = call_run(self, ++self->last_number, limit, 0, label == Py_None ? NULL : label);
    self->inline_thread = 0;
    PyThread_release_lock(self->turn);
    if (failed) return NULL;
    Py_RETURN_TRUE;
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
    BEGIN_INLINE(self_, 2, AH_KIND_BARRIER);
    plan->kind = AH_KIND_BARRIER;
    plan->count = plan->itemsize = 0;
    plan->typesig = 0;
    plan_no_shape(plan);
    return run_inline(self, args[0], args[1]);
}

PyObject *comm_all_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, AH_KIND_ALL_REDUCE); /* x, op, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->op = comm_op_index(self, args[1])) < 0) return decline(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = AH_KIND_ALL_REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_inline(self, args[2], args[3]);
}

static PyObject *scan(PyObject *self_, PyObject *const *args, Py_ssize_t nargs, ah_kind kind) {
    /* Where results are compared it is a call of several steps, over links. */
    if (((CommObject *)self_)->verifies) Py_RETURN_FALSE;
    BEGIN_INLINE(self_, 4, kind); /* x, op, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->op = comm_op_index(self, args[1])) < 0 || plan->op == AH_AVG)
        return decline(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = kind;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_inline(self, args[2], args[3]);
}

PyObject *comm_scan(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return scan(self, args, nargs, AH_KIND_SCAN);
}

PyObject *comm_exscan(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return scan(self, args, nargs, AH_KIND_EXSCAN);
}

PyObject *comm_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 5, AH_KIND_REDUCE); /* x, root, op, timeout, label */
    if ((plan->root = rank_of(self, args[1])) < 0 || (plan->op = comm_op_index(self, args[2])) < 0)
        return decline(self);
    PyArrayObject *x = plain_array(args[0], plan->root == self->rank);
    if (x == NULL) return decline(self);
    plan_type(plan, x);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = AH_KIND_REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->in[0] = PyArray_DATA(x);
    plan->out[0] = plan->root == self->rank ? PyArray_DATA(x) : NULL;
    return run_inline(self, args[3], args[4]);
}

PyObject *comm_broadcast(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, AH_KIND_BROADCAST); /* x, root, timeout, label */
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->root = rank_of(self, args[1])) < 0) return decline(self);
    plan_type(plan, x);
    plan->kind = AH_KIND_BROADCAST;
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
    BEGIN_INLINE(self_, 4, AH_KIND_ALL_GATHER_INTO_TENSOR); /* output, x, timeout, label */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) ||
        PyArray_SIZE(out) != PyArray_SIZE(in) * self->size)
        return decline(self);
    plan_type(plan, in);
    plan->kind = AH_KIND_ALL_GATHER_INTO_TENSOR;
    plan->count = (size_t)PyArray_SIZE(in);
    plan->in[0] = PyArray_DATA(in);
    set_blocks(plan->out, PyArray_DATA(out), plan->count * plan->itemsize, self->size);
    return run_inline(self, args[2], args[3]);
}

PyObject *comm_reduce_scatter_tensor(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 5, AH_KIND_REDUCE_SCATTER_TENSOR); /* output, x, op, timeout, label */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) ||
        PyArray_SIZE(in) != PyArray_SIZE(out) * self->size ||
        (plan->op = comm_op_index(self, args[2])) < 0)
        return decline(self);
    plan_type(plan, in);
    plan_block(plan, self->size);
    if (!ah_supports(plan->op, plan->type)) return decline(self);
    plan->kind = AH_KIND_REDUCE_SCATTER_TENSOR;
    plan->count = (size_t)PyArray_SIZE(out);
    plan->out[0] = PyArray_DATA(out);
    set_blocks((void **)plan->in, PyArray_DATA(in), plan->count * plan->itemsize, self->size);
    return run_inline(self, args[3], args[4]);
}

PyObject *comm_all_to_all_single(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    BEGIN_INLINE(self_, 4, AH_KIND_ALL_TO_ALL_SINGLE); /* output, x, timeout, label; equal shares */
    PyArrayObject *out, *in;
    if (!disjoint_pair(args[0], args[1], &out, &in) || PyArray_NDIM(in) == 0 ||
        PyArray_NDIM(out) == 0 || PyArray_DIM(in, 0) % self->size ||
        PyArray_DIM(out, 0) % self->size || PyArray_SIZE(in) != PyArray_SIZE(out))
        return decline(self);
    plan_type(plan, in);
    plan->kind = AH_KIND_ALL_TO_ALL_SINGLE;
    plan->count = 0; /* ranks may differ in it */
    plan_no_shape(plan);
    size_t share = (size_t)PyArray_NBYTES(in) / (size_t)self->size;
    for (int rank = 0; rank < self->size; rank++) plan->send[rank] = plan->recv[rank] = share;
    set_blocks((void **)plan->in, PyArray_DATA(in), share, self->size);
    set_blocks(plan->out, PyArray_DATA(out), share, self->size);
    return run_inline(self, args[2], args[3]);
}
