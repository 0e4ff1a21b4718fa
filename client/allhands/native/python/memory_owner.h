#ifndef ALLHANDS_MEMORY_OWNER_H
#define ALLHANDS_MEMORY_OWNER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Add MemoryOwner, the base of classes in Python whose objects are buffers. */
int add_memory_owner_type(PyObject *module);

#endif
