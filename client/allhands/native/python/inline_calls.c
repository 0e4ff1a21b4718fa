#include "python/inline_calls.h"

#include "python/async_calls.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/plain_arguments.h"
#include "python/plan.h"
#include "python/turn.h"

/* ---------------------------------------------------------------- plans of plain arguments */

static bool plan_barrier(const CommObject *self, Plan *plan, PyObject *const *args) {
    (void)self, (void)args;
    plan->count = plan->itemsize = 0;
    plan->type = AH_TYPES;
    plan->typesig = 0;
    plan_no_shape(plan);
    return true;
}

/* An array that is reduced in place, and the operation. */
static bool plan_all_reduce(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->op = comm_op_index(self, args[1])) < 0) return false;
    plan_type(plan, x);
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return ah_supports(plan->op, plan->type);
}

static bool plan_scan(const CommObject *self, Plan *plan, PyObject *const *args) {
    /* Where results are compared it is a call of several steps, over links. */
    return !self->verifies && plan_all_reduce(self, plan, args) && plan->op != AH_AVG;
}

static bool plan_exscan(const CommObject *self, Plan *plan, PyObject *const *args) {
    return plan_scan(self, plan, args);
}

static bool plan_reduce(const CommObject *self, Plan *plan, PyObject *const *args) {
    if ((plan->root = plain_rank(self, args[1])) < 0 ||
        (plan->op = comm_op_index(self, args[2])) < 0)
        return false;
    PyArrayObject *x = plain_array(args[0], plan->root == self->rank);
    if (x == NULL) return false;
    plan_type(plan, x);
    plan->count = (size_t)PyArray_SIZE(x);
    plan->in[0] = PyArray_DATA(x);
    plan->out[0] = plan->root == self->rank ? PyArray_DATA(x) : NULL;
    return ah_supports(plan->op, plan->type);
}

static bool plan_broadcast(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->root = plain_rank(self, args[1])) < 0) return false;
    plan_type(plan, x);
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return true;
}

/* Output and input: two plain arrays of one dtype that lie apart. */
static bool disjoint_pair(PyObject *const *args, PyArrayObject **out, PyArrayObject **in) {
    *out = plain_array(args[0], true);
    *in = plain_array(args[1], false);
    return *out != NULL && *in != NULL && PyArray_TYPE(*out) == PyArray_TYPE(*in) &&
           are_disjoint(PyArray_DATA(*out), (size_t)PyArray_NBYTES(*out), PyArray_DATA(*in),
                        (size_t)PyArray_NBYTES(*in));
}

static void set_blocks(void *places[], void *first, size_t nbytes, int size) {
    for (int rank = 0; rank < size; rank++) places[rank] = (char *)first + (size_t)rank * nbytes;
}

static bool plan_all_gather_into_tensor(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *out, *in;
    if (!disjoint_pair(args, &out, &in) || PyArray_SIZE(out) != PyArray_SIZE(in) * self->size)
        return false;
    plan_type(plan, in);
    plan->count = (size_t)PyArray_SIZE(in);
    plan->in[0] = PyArray_DATA(in);
    set_blocks(plan->out, PyArray_DATA(out), plan->count * plan->itemsize, self->size);
    return true;
}

static bool plan_reduce_scatter_tensor(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *out, *in;
    if (!disjoint_pair(args, &out, &in) || PyArray_SIZE(in) != PyArray_SIZE(out) * self->size ||
        (plan->op = comm_op_index(self, args[2])) < 0)
        return false;
    plan_type(plan, in);
    plan_block(plan, self->size);
    plan->count = (size_t)PyArray_SIZE(out);
    plan->out[0] = PyArray_DATA(out);
    set_blocks((void **)plan->in, PyArray_DATA(in), plan->count * plan->itemsize, self->size);
    return ah_supports(plan->op, plan->type);
}

/* With equal shares for all ranks. */
static bool plan_all_to_all_single(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *out, *in;
    if (!disjoint_pair(args, &out, &in) || PyArray_NDIM(in) == 0 || PyArray_NDIM(out) == 0 ||
        PyArray_DIM(in, 0) % self->size || PyArray_DIM(out, 0) % self->size ||
        PyArray_SIZE(in) != PyArray_SIZE(out))
        return false;
    plan_type(plan, in);
    plan->count = 0; /* ranks may differ in it */
    plan_no_shape(plan);
    size_t share = (size_t)PyArray_NBYTES(in) / (size_t)self->size;
    for (int rank = 0; rank < self->size; rank++) plan->send[rank] = plan->recv[rank] = share;
    set_blocks((void **)plan->in, PyArray_DATA(in), share, self->size);
    set_blocks(plan->out, PyArray_DATA(out), share, self->size);
    return true;
}

/* What a kind's arguments are, but for timeout and label. */
enum {
    ARGUMENTS_barrier = 0,
    ARGUMENTS_all_reduce = 2,             /* x, op */
    ARGUMENTS_reduce = 3,                 /* x, root, op */
    ARGUMENTS_broadcast = 2,              /* x, root */
    ARGUMENTS_all_gather_into_tensor = 2, /* output, x */
    ARGUMENTS_reduce_scatter_tensor = 3,  /* output, x, op */
    ARGUMENTS_all_to_all_single = 2,      /* output, x */
    ARGUMENTS_scan = 2,                   /* x, op */
    ARGUMENTS_exscan = 2,                 /* x, op */
    ARGUMENTS_gather = 3,                 /* x, outputs, root */
    ARGUMENTS_scatter = 3,                /* x, inputs, root */
    ARGUMENTS_all_gather = 2,             /* outputs, x */
    ARGUMENTS_reduce_scatter = 3,         /* output, inputs, op */
    ARGUMENTS_all_to_all = 2,             /* outputs, inputs */
};

static inline void plan_kind(Plan *plan, ah_kind kind) {
    plan->kind = kind;
    plan->op = plan->root = -1;
    plan->dtype = NULL;
}

static PyObject *refuse_count(Py_ssize_t wanted, Py_ssize_t nargs) {
    return PyErr_Format(PyExc_TypeError, "wants %zd arguments, has %zd", wanted, nargs);
}

/* The nanoseconds that a call may take; 0: what was given for it is not plain, or none are left. */
static int64_t read_limit(const CommObject *self, PyObject *timeout) {
    return read_plain_limit(self->timeout_ns, timeout);
}

/* ---------------------------------------------------------------- on the caller's thread */

static PyObject *run_inline(CommObject *self, int64_t limit, PyObject *label) {
    if (self->run_atomic != NULL) return self->run_atomic(self, limit, label);
    self->inline_thread = PyThread_get_thread_ident();
    int failed = call_run(self, ++self->last_number, limit, 0, label == Py_None ? NULL : label);
    self->inline_thread = 0;
    PyThread_release_lock(self->turn);
    if (failed) return NULL;
    Py_RETURN_TRUE;
}

static inline PyObject *call_inline(PyObject *self_, PyObject *const *args, Py_ssize_t nargs,
                                    ah_kind kind, Py_ssize_t count, PlanArguments *plan_arguments) {
    CommObject *self = (CommObject *)self_;
    if (nargs != count + 2) return refuse_count(count + 2, nargs);
    PyObject *label = args[count + 1];
    int entered = comm_try_enter(self, kind_names[kind], label);
    if (entered < 0) return NULL;
    if (!entered) Py_RETURN_FALSE;
    plan_kind(&self->plan, kind);
    int64_t limit;
    if (plan_arguments(self, &self->plan, args) && (limit = read_limit(self, args[count])) > 0 &&
        plan_label(&self->plan, label))
        return run_inline(self, limit, label);
    PyThread_release_lock(self->turn);
    Py_RETURN_FALSE;
}

/* ---------------------------------------------------------------- begun, and waited for later */

/* What has to be kept of the arguments, which begin with the arrays. */
static PyObject *keep_arrays(PyObject *const *args, Py_ssize_t count) {
    if (count == 0) return Py_NewRef(Py_None);
    if (!PyArray_Check(args[1]) && !PyTuple_Check(args[1])) return Py_NewRef(args[0]);
    return PyTuple_Pack(2, args[0], args[1]);
}

static inline PyObject *start_call(PyObject *self_, PyObject *const *args, Py_ssize_t nargs,
                                   ah_kind kind, Py_ssize_t count, PlanArguments *plan_arguments) {
    CommObject *self = (CommObject *)self_;
    if (nargs != count + 3) return refuse_count(count + 3, nargs);
    if (self->async_type == NULL) Py_RETURN_NONE;
    PyObject *label = args[count + 1];
    Plan plan;
    plan_kind(&plan, kind);
    int64_t limit;
    if (!plan_arguments(self, &plan, args) || (limit = read_limit(self, args[count])) == 0 ||
        !plan_label(&plan, label))
        Py_RETURN_NONE;
    PyObject *arrays = keep_arrays(args, count);
    if (arrays == NULL) return NULL;
    PyObject *value = args[count + 2];
    if (kind == AH_KIND_REDUCE && plan.out[0] == NULL && value == args[0]) value = Py_None;
    PyObject *call = async_enqueue(self, &plan, label, value, arrays, limit, 0);
    Py_DECREF(arrays);
    return call;
}

/* ---------------------------------------------------------------- lists */

#define LISTS 2      /* the first arguments, of which each may be one */
#define MOST_GIVEN 6 /* with timeout, label and value */

/* Make a call, or begin it, with tuples in the place of lists: another thread may change a list
 * while the call goes on in its arrays. */
static inline PyObject *call_with_tuples(CommMethod *method, PyObject *self, PyObject *const *args,
                                         Py_ssize_t nargs) {
    PyObject *given[MOST_GIVEN], *tuples[LISTS] = {NULL}, *result = NULL;
    bool failed = false;
    if (nargs < LISTS || nargs > MOST_GIVEN) return refuse_count(MOST_GIVEN, nargs);
    for (Py_ssize_t at = 0; at < nargs; at++) {
        given[at] = args[at];
        if (at >= LISTS || !PyList_CheckExact(args[at])) continue;
        given[at] = tuples[at] = PyList_AsTuple(args[at]);
        failed |= tuples[at] == NULL;
    }
    if (!failed) result = method(self, given, nargs);
    for (int at = 0; at < LISTS; at++) Py_XDECREF(tuples[at]);
    return result;
}

/* clang-format off */
#define DEFINE_METHODS(name, kind)                                                                 \
    PyObject *comm_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {               \
        return call_inline(self, args, nargs, kind, ARGUMENTS_##name, plan_##name);                \
    }                                                                                              \
    PyObject *comm_start_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {         \
        return start_call(self, args, nargs, kind, ARGUMENTS_##name, plan_##name);                 \
    }

ARRAY_METHODS(DEFINE_METHODS)

#define DEFINE_LIST_METHODS(name, kind)                                                            \
    static PyObject *call_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {        \
        return call_inline(self, args, nargs, kind, ARGUMENTS_##name, plan_##name);                \
    }                                                                                              \
    static PyObject *start_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {       \
        return start_call(self, args, nargs, kind, ARGUMENTS_##name, plan_##name);                 \
    }                                                                                              \
    PyObject *comm_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {               \
        return call_with_tuples(call_##name, self, args, nargs);                                   \
    }                                                                                              \
    PyObject *comm_start_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {         \
        return call_with_tuples(start_##name, self, args, nargs);                                  \
    }

LIST_METHODS(DEFINE_LIST_METHODS)
