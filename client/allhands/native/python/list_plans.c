#include "python/plain_arguments.h"
#include "python/plan.h"

/* Arrays that stand in one argument: where they lie, and their bytes. */
typedef struct {
    void **places;
    size_t nbytes[AH_MAX_RANKS];
    int count;
} Arrays;

static bool has_shape_of(const PyArrayObject *array, const PyArrayObject *other) {
    return PyArray_NDIM(array) == PyArray_NDIM(other) &&
           PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(other), PyArray_NDIM(other));
}

/* Read a tuple with a plain array for each rank, all of the dtype of `like`, and with `is_alike` of
 * its shape too. */
static bool read_arrays(const CommObject *self, PyObject *given, const PyArrayObject *like,
                        bool is_alike, bool written, Arrays *arrays) {
    if (!PyTuple_CheckExact(given) || PyTuple_GET_SIZE(given) != self->size) return false;
    for (int rank = 0; rank < self->size; rank++) {
        PyArrayObject *array = plain_array(PyTuple_GET_ITEM(given, rank), written);
        if (array == NULL || PyArray_TYPE(array) != PyArray_TYPE(like) ||
            (is_alike && !has_shape_of(array, like)))
            return false;
        arrays->places[rank] = PyArray_DATA(array);
        arrays->nbytes[rank] = (size_t)PyArray_NBYTES(array);
    }
    arrays->count = self->size;
    return true;
}

/* Whether arrays that are written lie apart from each other and from all that are read. */
static bool lie_apart(const Arrays *written, const Arrays *read) {
    for (int at = 0; at < written->count; at++) {
        const void *place = written->places[at];
        size_t nbytes = written->nbytes[at];
        for (int other = 0; other < at; other++)
            if (!are_disjoint(place, nbytes, written->places[other], written->nbytes[other]))
                return false;
        for (int other = 0; other < read->count; other++)
            if (!are_disjoint(place, nbytes, read->places[other], read->nbytes[other]))
                return false;
    }
    return true;
}

/* Plan what one array says, which is read or written beside the list of another argument. */
static void plan_one(Plan *plan, PyArrayObject *array, void **place, Arrays *arrays) {
    plan_type(plan, array);
    plan->count = (size_t)PyArray_SIZE(array);
    *place = PyArray_DATA(array);
    *arrays = (Arrays){.places = place, .nbytes = {plan->count * plan->itemsize}, .count = 1};
}

/* What a rank gives for a list that is the root's alone. */
static bool is_no_list(PyObject *given) {
    return given == Py_None || (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 0);
}

/* x, outputs on the root, root */
bool plan_gather(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *x = plain_array(args[0], false);
    if (x == NULL || (plan->root = plain_rank(self, args[2])) < 0) return false;
    Arrays read, written = {.places = plan->out};
    plan_one(plan, x, (void **)plan->in, &read);
    plan->out[0] = NULL;
    if (plan->root != self->rank) return is_no_list(args[1]);
    return read_arrays(self, args[1], x, true, true, &written) && lie_apart(&written, &read);
}

/* x, inputs on the root, root */
bool plan_scatter(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL || (plan->root = plain_rank(self, args[2])) < 0) return false;
    Arrays read = {.places = (void **)plan->in}, written;
    plan_one(plan, x, plan->out, &written);
    plan->in[0] = NULL;
    if (plan->root != self->rank) return is_no_list(args[1]);
    return read_arrays(self, args[1], x, true, false, &read) && lie_apart(&written, &read);
}

/* outputs, x */
bool plan_all_gather(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *x = plain_array(args[1], false);
    if (x == NULL) return false;
    Arrays read, written = {.places = plan->out};
    plan_one(plan, x, (void **)plan->in, &read);
    return read_arrays(self, args[0], x, true, true, &written) && lie_apart(&written, &read);
}

/* output, inputs, op */
bool plan_reduce_scatter(const CommObject *self, Plan *plan, PyObject *const *args) {
    PyArrayObject *output = plain_array(args[0], true);
    if (output == NULL || (plan->op = comm_op_index(self, args[2])) < 0) return false;
    Arrays read = {.places = (void **)plan->in}, written;
    plan_one(plan, output, plan->out, &written);
    return read_arrays(self, args[1], output, true, false, &read) && lie_apart(&written, &read) &&
           ah_supports(plan->op, plan->type);
}

/* outputs, inputs: of any sizes */
bool plan_all_to_all(const CommObject *self, Plan *plan, PyObject *const *args) {
    if (!PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) != self->size) return false;
    PyArrayObject *first = plain_array(PyTuple_GET_ITEM(args[0], 0), true);
    Arrays read = {.places = (void **)plan->in}, written = {.places = plan->out};
    if (first == NULL || !read_arrays(self, args[0], first, false, true, &written) ||
        !read_arrays(self, args[1], first, false, false, &read) || !lie_apart(&written, &read) ||
        read.nbytes[self->rank] != written.nbytes[self->rank])
        return false;
    plan_type(plan, first);
    plan->count = 0; /* ranks may differ in it */
    plan_no_shape(plan);
    for (int rank = 0; rank < self->size; rank++) {
        plan->send[rank] = read.nbytes[rank];
        plan->recv[rank] = written.nbytes[rank];
    }
    return true;
}
