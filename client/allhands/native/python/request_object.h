/* AllReduceRequest: a split-phase all_reduce, persistent or of one call. */
#ifndef ALLHANDS_REQUEST_OBJECT_H
#define ALLHANDS_REQUEST_OBJECT_H

#include "python/comm_object_state.h"

/* The method of ShmComm. */
PyObject *comm_start_all_reduce(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

int add_request_type(PyObject *module);

#endif
