/* The methods named after collectives: on the caller's thread, of plain arguments only. */
#ifndef ALLHANDS_INLINE_CALLS_H
#define ALLHANDS_INLINE_CALLS_H

#include "python/comm_object_state.h"

typedef PyObject *CommMethod(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
CommMethod comm_barrier, comm_all_reduce, comm_reduce, comm_broadcast, comm_all_gather_into_tensor,
    comm_reduce_scatter_tensor, comm_all_to_all_single;

#endif
