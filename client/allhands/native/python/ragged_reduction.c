#include "python/ragged_reduction.h"

#include "python/array_messages.h"
#include "python/async_calls.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/plain_arguments.h"
#include "python/plan.h"
#include "python/turn.h"

static const char operation[] = "reduce_scatter_v";

/* What a rank brings, and where its result goes. */
typedef struct {
    PyArrayObject *arrays[AH_MAX_RANKS]; /* borrowed, for each rank */
    PyArrayObject *out;
    int op;
} Blocks;

/* ---------------------------------------------------------------- the call as it travels */

enum { KEPT_SHAPE = 1 + SHAPE_DIMS }; /* numbers of a shape that is kept */

/* Whether the call that was signed last was one of these arrays' shapes. */
static bool have_shapes(const CommObject *self, const Blocks *blocks) {
    const npy_intp *kept = self->signed_blocks.shapes;
    for (int rank = 0; rank < self->size; rank++, kept += KEPT_SHAPE) {
        PyArrayObject *array = blocks->arrays[rank];
        int ndim = PyArray_NDIM(array);
        if (kept[0] != ndim || !PyArray_CompareLists(kept + 1, PyArray_DIMS(array), ndim))
            return false;
    }
    return true;
}

static bool keep_shapes(CommObject *self, const Blocks *blocks) {
    SignedBlocks *kept = &self->signed_blocks;
    if (kept->shapes == NULL)
        kept->shapes = PyMem_Calloc((size_t)self->size * KEPT_SHAPE, sizeof *kept->shapes);
    for (int rank = 0; rank < self->size && kept->shapes != NULL; rank++) {
        npy_intp *shape = kept->shapes + rank * KEPT_SHAPE;
        shape[0] = PyArray_NDIM(blocks->arrays[rank]);
        for (int at = 0; at < shape[0]; at++) shape[1 + at] = PyArray_DIM(blocks->arrays[rank], at);
    }
    if (kept->shapes == NULL) PyErr_NoMemory();
    return kept->shapes != NULL;
}

/* Have Python sign the call; NULL with an exception. */
static PyObject *sign(const CommObject *self, const Blocks *blocks) {
    PyObject *module = PyImport_ImportModule("allhands.collectives.vector");
    PyObject *arrays = PyTuple_New(self->size);
    for (int rank = 0; rank < self->size && arrays != NULL; rank++)
        PyTuple_SET_ITEM(arrays, rank, Py_NewRef((PyObject *)blocks->arrays[rank]));
    PyObject *made = module && arrays ? PyObject_CallMethod(module, "sign_blocks", "OO", arrays,
                                                            PyTuple_GET_ITEM(self->ops, blocks->op))
                                      : NULL;
    Py_XDECREF(arrays);
    Py_XDECREF(module);
    return made;
}

/* The call of plain arrays as it travels, mostly as the time before. NULL with an exception. */
static const SignedBlocks *find_signed(CommObject *self, const Blocks *blocks) {
    SignedBlocks *kept = &self->signed_blocks;
    PyObject *dtype = (PyObject *)PyArray_DESCR(blocks->out);
    if (kept->dtype == dtype && kept->op == blocks->op && have_shapes(self, blocks)) return kept;
    PyObject *made = sign(self, blocks);
    if (made == NULL) return NULL;
    Py_CLEAR(kept->dtype);
    Py_XSETREF(kept->call, Py_NewRef(PyTuple_GET_ITEM(made, 0)));
    kept->signature = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(made, 1));
    Py_DECREF(made);
    if (PyErr_Occurred() || !keep_shapes(self, blocks)) return NULL;
    kept->op = blocks->op;
    kept->dtype = Py_NewRef(dtype);
    return kept;
}

/* ---------------------------------------------------------------- the plan */

static void plan_blocks(const CommObject *self, Plan *plan, const Blocks *blocks, PyObject *call,
                        uint64_t signature) {
    plan->kind = AH_KIND_REDUCE_SCATTER_V;
    plan->op = blocks->op;
    plan->root = -1;
    plan->type = type_of_number(PyArray_TYPE(blocks->out));
    plan->typesig = signature;
    plan->dtype = NULL;
    plan->itemsize = (size_t)PyArray_ITEMSIZE(blocks->out);
    plan->count = 0;
    plan_no_shape(plan);
    for (int rank = 0; rank < self->size; rank++) {
        plan->in[rank] = PyArray_DATA(blocks->arrays[rank]);
        plan->send[rank] = (size_t)PyArray_NBYTES(blocks->arrays[rank]);
        plan->count += (size_t)PyArray_SIZE(blocks->arrays[rank]);
    }
    plan->out[0] = PyArray_DATA(blocks->out);
    plan->call = call;
    plan->call_name = operation;
}

static bool is_reducible(const Blocks *blocks, int rank) {
    ah_type type = type_of_number(PyArray_TYPE(blocks->arrays[rank]));
    return blocks->op >= 0 && type != AH_TYPES && ah_supports(blocks->op, type);
}

/* ---------------------------------------------------------------- on the caller's thread */

/* Run by the thread that has the turn, and give that back; -1 with an exception. */
static int run_now(CommObject *self, const Blocks *blocks, int64_t limit) {
    const SignedBlocks *made = find_signed(self, blocks);
    int failed = -1;
    if (made != NULL) {
        plan_blocks(self, &self->plan, blocks, made->call, made->signature);
        self->plan.labelsig = 0;
        failed = call_run_composite(self, 0, limit, 0, Py_None);
    }
    PyThread_release_lock(self->turn);
    return failed;
}

static PyObject *reduce_now(CommObject *self, Blocks *blocks) {
    int64_t limit = read_plain_limit(self->timeout_ns, Py_None);
    if (self->verifies || self->run_atomic != NULL || limit <= 0) Py_RETURN_FALSE;
    blocks->out = (PyArrayObject *)array_new_like(blocks->arrays[self->rank]);
    int entered = blocks->out == NULL ? -1 : comm_try_enter(self, operation, Py_None);
    int failed = entered > 0 ? run_now(self, blocks, limit) : entered;
    if (entered > 0 && !failed) return (PyObject *)blocks->out;
    Py_XDECREF(blocks->out);
    return failed < 0 ? NULL : Py_NewRef(Py_False);
}

/* arrays: one for each rank; op */
PyObject *comm_reduce_scatter_v(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "reduce_scatter_v(inputs, op)");
    Blocks blocks = {.op = comm_op_index(self, args[1])};
    PyObject *given = plain_tuple(args[0]);
    if (given == NULL) return NULL;
    bool fits = plain_arrays(self, given, blocks.arrays) && is_reducible(&blocks, self->rank);
    PyObject *result = fits ? reduce_now(self, &blocks) : Py_NewRef(Py_False);
    Py_DECREF(given);
    return result;
}

/* ---------------------------------------------------------------- from the queue */

/* Read a list with a contiguous array for each rank, all of one type; false with an exception. */
static bool read_blocks(const CommObject *self, PyObject *given, Blocks *blocks) {
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    bool fits = PyList_Check(given) && PyList_GET_SIZE(given) == self->size;
    for (int rank = 0; fits && rank < self->size; rank++) {
        PyArrayObject *array = (PyArrayObject *)PyList_GET_ITEM(given, rank);
        blocks->arrays[rank] = array;
        fits =
            PyArray_Check(array) && PyArray_CHKFLAGS(array, wanted) &&
            PyArray_ISNOTSWAPPED(array) &&
            type_of_number(PyArray_TYPE(array)) == type_of_number(PyArray_TYPE(blocks->arrays[0]));
    }
    if (!fits || !is_reducible(blocks, self->rank)) {
        PyErr_SetString(PyExc_TypeError, "there must be an array for each rank, all of one dtype, "
                                         "for which the operation is defined");
        return false;
    }
    return true;
}

/* What is given beside the arrays; times in nanoseconds. */
typedef struct {
    uint64_t sequence; /* 0: now, if nothing is under way */
    PyObject *call, *label;
    uint64_t signature;
    int64_t timeout, deadline;
} Call;

/* As run_now. */
static int run_given(CommObject *self, const Blocks *blocks, const Call *given) {
    int failed = -1;
    if (given->sequence > self->limit) ah_comm_interrupt(self->comm, given->sequence);
    plan_blocks(self, &self->plan, blocks, given->call, given->signature);
    if (plan_label(&self->plan, given->label))
        failed = call_run_composite(self, given->sequence, given->timeout, given->deadline,
                                    given->label);
    else
        PyErr_SetString(PyExc_TypeError, "a label must be a str");
    PyThread_release_lock(self->turn);
    return failed;
}

static PyObject *reduce_given(CommObject *self, Blocks *blocks, const Call *given) {
    blocks->out = (PyArrayObject *)array_new_like(blocks->arrays[self->rank]);
    int entered = blocks->out == NULL    ? -1
                  : given->sequence == 0 ? comm_try_enter(self, operation, given->label)
                                         : comm_acquire_turn(self) + 1;
    if (entered == 0 && given->sequence != 0) entered = -1;
    int failed = entered > 0 ? run_given(self, blocks, given) : entered;
    if (entered > 0 && !failed) return (PyObject *)blocks->out;
    Py_XDECREF(blocks->out);
    return failed < 0 ? NULL : Py_NewRef(Py_False);
}

/* sequence, arrays, op, call, signature, timeout, deadline, label */
PyObject *comm_reduce_scatter_blocks(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 8)
        return PyErr_Format(PyExc_TypeError, "reduce_scatter_blocks(sequence, arrays, op, call, "
                                             "signature, timeout, deadline, label)");
    Blocks blocks = {.op = comm_op_index(self, args[2])};
    if (!read_blocks(self, args[1], &blocks)) return NULL;
    Call given = {.sequence = PyLong_AsUnsignedLongLong(args[0]),
                  .call = args[3],
                  .signature = PyLong_AsUnsignedLongLong(args[4]),
                  .timeout = (int64_t)(PyFloat_AsDouble(args[5]) * NANOSECONDS),
                  .deadline = (int64_t)(PyFloat_AsDouble(args[6]) * NANOSECONDS),
                  .label = args[7]};
    return PyErr_Occurred() ? NULL : reduce_given(self, &blocks, &given);
}

/* arrays, op, call, signature, timeout, label, value, waits; as
 * ShmComm.enqueue_reduce_scatter_blocks. What it gives is the second of the arrays it keeps. */
PyObject *comm_enqueue_reduce_scatter_blocks(PyObject *self_, PyObject *const *args,
                                             Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 8)
        return PyErr_Format(PyExc_TypeError,
                            "enqueue_reduce_scatter_blocks(arrays, op, call, signature, timeout, "
                            "label, value, waits)");
    Blocks blocks = {.op = comm_op_index(self, args[1])};
    if (!read_blocks(self, args[0], &blocks)) return NULL;
    unsigned long long signature = PyLong_AsUnsignedLongLong(args[3]);
    double timeout = PyFloat_AsDouble(args[4]);
    int waits = PyObject_IsTrue(args[7]);
    if (PyErr_Occurred()) return NULL;
    if (!(timeout > 0) || !(timeout < 1e9)) Py_RETURN_NONE;
    PyObject *out = array_new_like(blocks.arrays[self->rank]);
    PyObject *arrays = out ? PyTuple_Pack(2, args[0], out) : NULL;
    Py_XDECREF(out);
    if (arrays == NULL) return NULL;
    blocks.out = (PyArrayObject *)out;
    Plan plan = {.kind = AH_KINDS};
    plan_blocks(self, &plan, &blocks, args[2], signature);
    if (!plan_label(&plan, args[5])) {
        Py_DECREF(arrays);
        return PyErr_Format(PyExc_TypeError, "a label must be a str");
    }
    PyObject *work =
        async_enqueue(self, &plan, args[5], args[6], arrays, (int64_t)(timeout * NANOSECONDS),
                      waits ? ASYNC_READ | ASYNC_WAITS : ASYNC_READ);
    Py_DECREF(arrays);
    return work;
}
