#include "python/arrays.h"

#include <string.h>

/* A type that a library has added to NumPy is known by its name alone. */
static struct {
    const char *name;
    ah_type type;
    int size, number; /* -1: not met yet */
} added[] = {
    {"bfloat16", AH_BFLOAT16, 2, -1},
    {"float8_e4m3fn", AH_FLOAT8_E4M3FN, 1, -1},
    {"float8_e5m2", AH_FLOAT8_E5M2, 1, -1},
};
enum { ADDED = sizeof added / sizeof *added };

static ah_type added_type(int number) {
    for (int at = 0; at < ADDED; at++)
        if (added[at].number == number) return added[at].type;
    PyArray_Descr *descr = PyArray_DescrFromType(number);
    if (descr == NULL) {
        PyErr_Clear();
        return AH_TYPES;
    }
    const char *name = strrchr(descr->typeobj->tp_name, '.');
    name = name ? name + 1 : descr->typeobj->tp_name;
    ah_type found = AH_TYPES;
    for (int at = 0; at < ADDED; at++)
        if (strcmp(name, added[at].name) == 0 && PyDataType_ELSIZE(descr) == added[at].size &&
            added[at].number < 0) {
            added[at].number = number;
            found = added[at].type;
        }
    Py_DECREF(descr);
    return found;
}

ah_type type_of_number(int number) {
    if (number >= NPY_USERDEF) return added_type(number);
    switch (number) {
    case NPY_BOOL: return AH_BOOL;
    case NPY_INT8: return AH_INT8;
    case NPY_INT16: return AH_INT16;
    case NPY_INT32: return AH_INT32;
    case NPY_UINT8: return AH_UINT8;
    case NPY_UINT16: return AH_UINT16;
    case NPY_UINT32: return AH_UINT32;
    case NPY_FLOAT16: return AH_FLOAT16;
    case NPY_FLOAT32: return AH_FLOAT32;
    case NPY_FLOAT64: return AH_FLOAT64;
    case NPY_COMPLEX64: return AH_COMPLEX64;
    case NPY_COMPLEX128: return AH_COMPLEX128;
    default: break;
    }
    /* C has three names for two sizes. */
    switch (number) {
    case NPY_LONG: return sizeof(long) == 8 ? AH_INT64 : AH_INT32;
    case NPY_LONGLONG: return AH_INT64;
    case NPY_ULONG: return sizeof(long) == 8 ? AH_UINT64 : AH_UINT32;
    case NPY_ULONGLONG: return AH_UINT64;
    default: return AH_TYPES;
    }
}

int number_of_type(ah_type type) {
    static const int numbers[AH_TYPES] = {
        [AH_BOOL] = NPY_BOOL,       [AH_INT8] = NPY_INT8,       [AH_INT16] = NPY_INT16,
        [AH_INT32] = NPY_INT32,     [AH_INT64] = NPY_INT64,     [AH_UINT8] = NPY_UINT8,
        [AH_UINT16] = NPY_UINT16,   [AH_UINT32] = NPY_UINT32,   [AH_UINT64] = NPY_UINT64,
        [AH_FLOAT16] = NPY_FLOAT16, [AH_FLOAT32] = NPY_FLOAT32, [AH_FLOAT64] = NPY_FLOAT64,
    };
    for (int at = 0; at < ADDED; at++)
        if (added[at].type == type) return added[at].number;
    return type == AH_BOOL || numbers[type] != 0 ? numbers[type] : -1;
}

PyArrayObject *plain_array(PyObject *given, bool written) {
    if (!PyArray_CheckExact(given)) return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted) || !PyArray_ISNOTSWAPPED(array) ||
        PyArray_NDIM(array) > SHAPE_DIMS)
        return NULL;
    return type_of_number(PyArray_TYPE(array)) == AH_TYPES ? NULL : array;
}

PyObject *array_over(PyObject *owner, void *address, int ndim, const npy_intp *dims,
                     PyArray_Descr *dtype) {
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, dtype, ndim, dims, NULL, address,
                                           NPY_ARRAY_WRITEABLE, NULL);
    if (array != NULL && PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)) < 0)
        Py_CLEAR(array);
    return array;
}

#define MOST_DIMS 64 /* that NumPy knows at all */

PyObject *view_memory(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 4 || !PyTuple_Check(args[2]) || !PyArray_DescrCheck(args[3]) ||
        PyTuple_GET_SIZE(args[2]) > MOST_DIMS || PyDataType_REFCHK((PyArray_Descr *)args[3]))
        return PyErr_Format(PyExc_TypeError, "view_memory(owner, address, shape, dtype)");
    void *address = PyLong_AsVoidPtr(args[1]);
    npy_intp dims[MOST_DIMS];
    int ndim = (int)PyTuple_GET_SIZE(args[2]);
    bool is_empty = false;
    for (int at = 0; at < ndim; at++) {
        dims[at] = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[2], at));
        is_empty |= dims[at] == 0;
    }
    if (PyErr_Occurred()) return NULL;
    /* NumPy would take memory of its own for it. */
    if (address == NULL && !is_empty)
        return PyErr_Format(PyExc_ValueError, "there is no memory behind shape %R", args[2]);
    return array_over(args[0], address, ndim, dims, (PyArray_Descr *)Py_NewRef(args[3]));
}
