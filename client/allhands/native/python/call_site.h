/* Call sites: the line of the user's program that made a call, as code and offset. */
#ifndef ALLHANDS_CALL_SITE_H
#define ALLHANDS_CALL_SITE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* The innermost frame whose file is not of this package: its code, a reference of the caller's, and
 * where it is in there, in bytes; NULL: there is none. Never with an exception. */
PyObject *call_site_here(int32_t *instruction);

/* (file, line, function) of what call_site_here gave. */
PyObject *call_site_tuple(PyObject *code, int32_t instruction);

int add_call_site_functions(PyObject *module);

#endif
