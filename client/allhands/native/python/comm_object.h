/* ShmComm: the type of a group's communicator over shared memory, its life and its state. */
#ifndef ALLHANDS_COMM_OBJECT_H
#define ALLHANDS_COMM_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_comm_type(PyObject *module);

#endif
