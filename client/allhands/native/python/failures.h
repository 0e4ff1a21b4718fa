/* Failures reported to Python: values of allhands.shm.failures, passed to a callback that raises.
 */
#ifndef ALLHANDS_FAILURES_H
#define ALLHANDS_FAILURES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Call `on_failure` with a value of this class, whose fields are a dict (stolen; NULL with an
 * exception). An exception is set afterwards. */
void raise_failure(PyObject *on_failure, const char *class_name, PyObject *fields);

#endif
