/* LinkMessages: short messages from point to point over links, on their callers' threads. */
#ifndef ALLHANDS_LINK_MESSAGES_H
#define ALLHANDS_LINK_MESSAGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_link_messages_type(PyObject *module);

#endif
