/* The methods named after collectives, of plain arguments only: comm_X makes a call on the caller's
 * thread, comm_start_X queues one. */
#ifndef ALLHANDS_INLINE_CALLS_H
#define ALLHANDS_INLINE_CALLS_H

#include "python/comm_object_state.h"
#include "python/kind_methods.h"

typedef PyObject *CommMethod(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
#define DECLARE_METHODS(name, kind) CommMethod comm_##name, comm_start_##name;
PLAIN_METHODS(DECLARE_METHODS)
#undef DECLARE_METHODS
CommMethod comm_exchange, comm_exchange_now, comm_exchange_arrays, comm_enqueue_exchange,
    comm_enqueue_array_exchange;

#endif
