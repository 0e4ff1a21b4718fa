#include "python/coalesced_call.h"

#include <stdlib.h>
#include <string.h>

#include "python/call_run.h"
#include "python/plan.h"
#include "python/signature.h"
#include "python/turn.h"

#define MARK (UINT64_C(1) << 38) /* of signatures of what is packed, unlike those of dtypes */
#define UNLOCKED_BYTES ((size_t)1 << 20) /* from which on packing lets other threads go on */

typedef struct {
    char *at;
    size_t nbytes;
} Piece;

/* The arrays of a call, where they lie, and the memory that they are packed into. */
typedef struct {
    Piece *pieces;
    char *packed;
    size_t count, nbytes;
} Pack;

static void pack_release(Pack *pack) {
    free(pack->pieces);
    free(pack->packed);
}

static bool is_packable(PyObject *given, int number) {
    PyArrayObject *array = (PyArrayObject *)given;
    return PyArray_Check(given) && PyArray_TYPE(array) == number && PyArray_ISNOTSWAPPED(array) &&
           PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE);
}

static int compare_pieces(const void *one, const void *other) {
    const Piece *left = one, *right = other;
    return left->at < right->at ? -1 : left->at > right->at;
}

/* Whether two of them share memory; their order is lost. */
static bool do_overlap(Piece *pieces, size_t count) {
    qsort(pieces, count, sizeof *pieces, compare_pieces);
    for (size_t at = 1; at < count; at++)
        if (pieces[at].nbytes && pieces[at - 1].at + pieces[at - 1].nbytes > pieces[at].at)
            return true;
    return false;
}

static void copy_pieces(const Pack *pack, bool back) {
    char *packed = pack->packed;
    for (size_t at = 0; at < pack->count; at++) {
        const Piece *piece = &pack->pieces[at];
        memcpy(back ? piece->at : packed, back ? packed : piece->at, piece->nbytes);
        packed += piece->nbytes;
    }
}

static void copy_all(const Pack *pack, bool back) {
    if (pack->nbytes < UNLOCKED_BYTES) {
        copy_pieces(pack, back);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    copy_pieces(pack, back);
    Py_END_ALLOW_THREADS
}

/* The signature of the shapes of all arrays, each its own or a tuple given; false: an exception. */
static bool sign_shapes(PyObject *arrays, PyObject *shapes, uint64_t *signature) {
    *signature = mix((uint64_t)PyList_GET_SIZE(arrays));
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(arrays); at++) {
        PyArrayObject *array = (PyArrayObject *)PyList_GET_ITEM(arrays, at);
        PyObject *shape = shapes == Py_None ? NULL : PyList_GET_ITEM(shapes, at);
        Py_ssize_t ndim = shape ? PyTuple_GET_SIZE(shape) : PyArray_NDIM(array);
        uint64_t one = shape_begun((size_t)ndim);
        for (Py_ssize_t dim = 0; dim < ndim; dim++) {
            Py_ssize_t length = shape ? PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, dim))
                                      : PyArray_DIM(array, (int)dim);
            if (length == -1 && PyErr_Occurred()) return false;
            one = shape_with(one, length);
        }
        *signature = mix_in(*signature, one);
    }
    return true;
}

/* Find the pieces; false: one of the arrays is not like the first one, or there is no memory. */
static bool find_pieces(Pack *pack, PyObject *arrays) {
    pack->count = (size_t)PyList_GET_SIZE(arrays);
    pack->pieces = malloc(pack->count * sizeof *pack->pieces);
    if (pack->pieces == NULL) return false;
    int number = PyArray_TYPE((PyArrayObject *)PyList_GET_ITEM(arrays, 0));
    for (size_t at = 0; at < pack->count; at++) {
        PyObject *array = PyList_GET_ITEM(arrays, (Py_ssize_t)at);
        if (!is_packable(array, number)) return false;
        pack->pieces[at] = (Piece){PyArray_DATA((PyArrayObject *)array),
                                   (size_t)PyArray_NBYTES((PyArrayObject *)array)};
        pack->nbytes += pack->pieces[at].nbytes;
    }
    return true;
}

/* Whether each of them begins behind the one before, as parts of one array mostly do. */
static bool is_ascending(const Pack *pack) {
    const Piece *pieces = pack->pieces;
    for (size_t at = 1; at < pack->count; at++)
        if (pieces[at].at < pieces[at - 1].at + pieces[at - 1].nbytes) return false;
    return true;
}

static bool is_distinct(const Pack *pack) {
    if (is_ascending(pack)) return true;
    Piece *sorted = malloc(pack->count * sizeof *sorted);
    if (sorted == NULL) return false;
    memcpy(sorted, pack->pieces, pack->count * sizeof *sorted);
    bool overlap = do_overlap(sorted, pack->count);
    free(sorted);
    return !overlap;
}

/* sequence, arrays, shapes, op, call, operation, timeout, deadline, label */
typedef struct {
    unsigned long long sequence;
    PyObject *arrays, *shapes, *op, *call;
    const char *operation;
    double timeout, deadline;
    PyObject *label;
} Arguments;

static bool read_arguments(PyObject *const *args, Py_ssize_t nargs, Arguments *given) {
    bool fit = nargs == 9 && PyList_Check(args[1]) && PyList_GET_SIZE(args[1]) > 0 &&
               PyUnicode_Check(args[5]) && PyArray_Check(PyList_GET_ITEM(args[1], 0));
    if (fit && args[2] != Py_None) {
        fit = PyList_Check(args[2]) && PyList_GET_SIZE(args[2]) == PyList_GET_SIZE(args[1]);
        for (Py_ssize_t at = 0; fit && at < PyList_GET_SIZE(args[2]); at++)
            fit = PyTuple_Check(PyList_GET_ITEM(args[2], at));
    }
    if (!fit) {
        PyErr_SetString(PyExc_TypeError,
                        "all_reduce_coalesced(sequence, arrays, shapes, op, call, operation, "
                        "timeout, deadline, label)");
        return false;
    }
    given->sequence = PyLong_AsUnsignedLongLong(args[0]);
    given->arrays = args[1];
    given->shapes = args[2];
    given->op = args[3];
    given->call = args[4];
    given->operation = PyUnicode_AsUTF8(args[5]);
    given->timeout = PyFloat_AsDouble(args[6]);
    given->deadline = PyFloat_AsDouble(args[7]);
    given->label = args[8];
    return !PyErr_Occurred();
}

/* Plan it by who has the turn; false: it is not for the core. */
static bool plan_packed(CommObject *self, const Arguments *given, const Pack *pack) {
    Plan *plan = &self->plan;
    plan_type(plan, (PyArrayObject *)PyList_GET_ITEM(given->arrays, 0));
    plan->op = comm_op_index(self, given->op);
    if (plan->op < 0 || plan->type == AH_TYPES || !ah_supports(plan->op, plan->type) ||
        !plan_label(plan, given->label))
        return false;
    plan_no_shape(plan);
    if (!sign_shapes(given->arrays, given->shapes, &plan->shapesig)) return false;
    plan->typesig |= MARK;
    plan->kind = AH_KIND_ALL_REDUCE;
    plan->root = -1;
    plan->count = pack->nbytes / plan->itemsize;
    plan->out[0] = pack->packed;
    plan->call = given->call;
    plan->call_name = given->operation;
    return true;
}

/* Run it by who has the turn, which is given back. */
static PyObject *run(CommObject *self, const Arguments *given, Pack *pack) {
    bool now = given->sequence == 0;
    if (!plan_packed(self, given, pack)) {
        PyThread_release_lock(self->turn);
        if (!now && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no such call over shared memory");
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    self->from_queue = !now;
    self->inline_thread = now ? PyThread_get_thread_ident() : 0;
    copy_all(pack, false);
    int failed = call_run(
        self, now ? ++self->last_number : given->sequence, (int64_t)(given->timeout * NANOSECONDS),
        (int64_t)(given->deadline * NANOSECONDS), given->label == Py_None ? NULL : given->label);
    if (!failed) copy_all(pack, true);
    self->from_queue = false;
    self->inline_thread = 0;
    self->plan.call = NULL;
    PyThread_release_lock(self->turn);
    return failed ? NULL : Py_NewRef(Py_True);
}

PyObject *comm_all_reduce_coalesced(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    Arguments given;
    Pack pack = {0};
    if (!read_arguments(args, nargs, &given)) return NULL;
    bool now = given.sequence == 0;
    bool fits = find_pieces(&pack, given.arrays) && (!now || is_distinct(&pack));
    if (fits) fits = (pack.packed = aligned_alloc(64, ah_round_up(pack.nbytes + 1, 64))) != NULL;
    PyObject *ran = NULL;
    int entered = !fits ? 0
                  : now ? comm_try_enter(self, given.operation, given.label)
                        : comm_acquire_turn(self) + 1;
    if (entered > 0) {
        if (given.sequence > self->limit) ah_comm_interrupt(self->comm, given.sequence);
        ran = run(self, &given, &pack);
    } else if (entered == 0 && now)
        ran = Py_NewRef(Py_False);
    else if (entered == 0 && !fits)
        PyErr_SetString(PyExc_TypeError, "arrays must be contiguous and of one dtype");
    pack_release(&pack);
    return ran;
}
