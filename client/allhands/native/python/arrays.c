#include "python/arrays.h"

#include <string.h>

/* A type that a library has added to NumPy is known by its name alone. */
static ah_type added_type(int number) {
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

PyArrayObject *plain_array(PyObject *given, bool written) {
    if (!PyArray_CheckExact(given)) return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted) || !PyArray_ISNOTSWAPPED(array) ||
        PyArray_NDIM(array) > SHAPE_DIMS)
        return NULL;
    return type_of_number(PyArray_TYPE(array)) == AH_TYPES ? NULL : array;
}
