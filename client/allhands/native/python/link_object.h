/* LinkState and LinkCall: links and calls over them, for Python. */
#ifndef ALLHANDS_LINK_OBJECT_H
#define ALLHANDS_LINK_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "links/link.h"

typedef struct {
    PyObject_HEAD
    ah_link link;
} LinkStateObject;

extern PyTypeObject *LinkState_Type;

int add_link_types(PyObject *module);

#endif
