/* NumPy arrays: the types that kernels know, and arrays that need no second look. */
#ifndef ALLHANDS_ARRAYS_H
#define ALLHANDS_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

#include "kernels/kernels.h"

#define SHAPE_DIMS                                                                                 \
    8 /* of plain arrays, and kept beside a record; of more dimensions a tuple is                  \
       */

/* The kernels' name of a NumPy type number; AH_TYPES: none. */
ah_type type_of_number(int type_number);

/* An array that needs no second look, of SHAPE_DIMS dimensions at most; NULL: any other object,
 * which the checked path is for. */
PyArrayObject *plain_array(PyObject *given, bool written);

/* NumPy's number of one of the kernels' types that are not complex; -1: none that is known yet. */
int number_of_type(ah_type type);

/* A writable array over contiguous memory, which the owner keeps alive; takes the dtype over. */
PyObject *array_over(PyObject *owner, void *address, int ndim, const npy_intp *dims,
                     PyArray_Descr *dtype);

/* view_memory(owner, address, shape, dtype): a writable array over contiguous memory of another
 * library, which its owner keeps alive. */
PyObject *view_memory(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
