/* Lane: the calls of one group over shared memory, as Python makes them. */
#ifndef ALLHANDS_COMM_OBJECT_H
#define ALLHANDS_COMM_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels/kernels.h"

int add_comm_type(PyObject *module);

/* The kernels' name of a NumPy type number; AH_TYPES: none. */
ah_type type_of_number(int type_number);

#endif
