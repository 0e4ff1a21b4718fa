/* LinkCollectives: plain collectives of one group over links, on their callers' threads. */
#ifndef ALLHANDS_LINK_COLLECTIVES_H
#define ALLHANDS_LINK_COLLECTIVES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyTypeObject *LinkCollectives_Type;

int add_link_collectives_type(PyObject *module);

#endif
