/* The type PlainCall: a plain function of the package whose common calls go to the native core
 * without the interpreter. */
#ifndef ALLHANDS_PLAIN_CALL_H
#define ALLHANDS_PLAIN_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_plain_call_type(PyObject *module);

#endif
