/* all_reduce of many arrays, packed into one: on the caller's thread, and from the queue. */
#ifndef ALLHANDS_COALESCED_CALL_H
#define ALLHANDS_COALESCED_CALL_H

#include "python/comm_object_state.h"

PyObject *comm_all_reduce_coalesced(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
