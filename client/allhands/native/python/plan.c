#include "python/plan.h"

#include "python/signature.h"

const char *const kind_names[AH_KINDS] = AH_KIND_NAMES;

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
    plan->call = NULL;
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

static inline void sign_shape(Plan *plan) {
    plan->shapesig = shape_begun((size_t)plan->ndim);
    for (int at = 0; at < plan->ndim; at++)
        plan->shapesig = shape_with(plan->shapesig, plan->dims[at]);
}

void plan_type(Plan *plan, PyArrayObject *array) {
    plan->type = type_of_number(PyArray_TYPE(array));
    plan->typesig = plan->type + 1;
    plan->itemsize = (size_t)PyArray_ITEMSIZE(array);
    plan->dtype = (PyObject *)PyArray_DESCR(array);
    plan->ndim = PyArray_NDIM(array);
    plan->shape = NULL;
    plan->call = NULL;
    for (int at = 0; at < plan->ndim; at++) plan->dims[at] = PyArray_DIM(array, at);
    sign_shape(plan);
}

void plan_block(Plan *plan, int size) {
    if (plan->ndim == 0 || plan->dims[0] % size) return;
    plan->dims[0] /= size;
    sign_shape(plan);
}

int find_op(PyObject *ops, PyObject *op) {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(ops); at++)
        if (PyTuple_GET_ITEM(ops, at) == op) return (int)at;
    return -1;
}

int comm_op_index(const CommObject *self, PyObject *op) { return find_op(self->ops, op); }
