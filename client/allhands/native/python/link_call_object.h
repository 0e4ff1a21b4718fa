/* LinkCall: the schedule of a call over links, compiled; carried out with the GIL released. */
#ifndef ALLHANDS_LINK_CALL_OBJECT_H
#define ALLHANDS_LINK_CALL_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_link_call_type(PyObject *module);

#endif
