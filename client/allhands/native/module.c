/* A stand-in until the extension proper comes: what the tests of the kernels need. */
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <numpy/arrayobject.h>

#include "kernels.h"

#define MOST 64

static PyObject *fold(PyObject *self, PyObject *args) {
    (void)self;
    int op, type;
    PyArrayObject *out;
    PyObject *operands;
    Py_ssize_t divisor;
    if (!PyArg_ParseTuple(args, "iiO!O!n", &op, &type, &PyArray_Type, &out, &PyTuple_Type,
                          &operands, &divisor))
        return NULL;
    if (!ah_supports((ah_op)op, (ah_type)type)) return PyErr_Format(PyExc_TypeError, "undefined");
    const void *in[MOST];
    const Py_ssize_t n = PyTuple_GET_SIZE(operands);
    if (n < 1 || n > MOST) return PyErr_Format(PyExc_ValueError, "1 to %d operands", MOST);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = PyTuple_GET_ITEM(operands, i);
        if (!PyArray_Check(operand) || PyArray_NBYTES((PyArrayObject *)operand) != PyArray_NBYTES(out))
            return PyErr_Format(PyExc_ValueError, "operands must be arrays of one size");
        in[i] = PyArray_DATA((PyArrayObject *)operand);
    }
    const size_t count = (size_t)PyArray_NBYTES(out) / ah_type_size((ah_type)type);
    Py_BEGIN_ALLOW_THREADS;
    ah_fold((ah_op)op, (ah_type)type, PyArray_DATA(out), in, (int)n, count, (size_t)divisor);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *supports(PyObject *self, PyObject *args) {
    (void)self;
    int op, type;
    if (!PyArg_ParseTuple(args, "ii", &op, &type)) return NULL;
    return PyBool_FromLong(ah_supports((ah_op)op, (ah_type)type));
}

static PyMethodDef methods[] = {
    {"fold", fold, METH_VARARGS, NULL},
    {"supports", supports, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    import_array();
    return PyModule_Create(&module);
}
