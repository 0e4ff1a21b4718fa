/* NumPy arrays, as far as calls look at them. */
#ifndef ALLHANDS_ARRAYS_H
#define ALLHANDS_ARRAYS_H

#include "python/comm_object_state.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

/* An array that needs no second look; NULL: everything else, which is for the careful way. It has
 * SHAPE_DIMS dimensions at most. */
PyArrayObject *plain_array(PyObject *given, bool written);

/* Write the dtype and the shape of an array into a plan. */
void plan_type(Plan *plan, PyArrayObject *array);

/* Let the shape of a plan be that of a block: dimension 0 is cut for so many ranks, if it can be.
 */
void plan_block(Plan *plan, int size);

#endif
