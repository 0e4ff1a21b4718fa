/* Calls of a group that are all or nothing, on their callers' threads. */
#ifndef ALLHANDS_ATOMIC_CALLS_H
#define ALLHANDS_ATOMIC_CALLS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_atomic_type(PyObject *module);

#endif
