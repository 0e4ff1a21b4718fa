/* Mail: the messages of one group over shared memory, as Python sends and receives them. */
#ifndef ALLHANDS_P2P_OBJECT_H
#define ALLHANDS_P2P_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_p2p_types(PyObject *module);

#endif
