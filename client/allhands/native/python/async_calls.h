/* AsyncCall: a call that its caller does not wait for at once, in its communicator's queue; the
 * base of works. */
#ifndef ALLHANDS_ASYNC_CALLS_H
#define ALLHANDS_ASYNC_CALLS_H

#include "python/comm_object_state.h"

/* Methods of ShmComm. */
PyObject *comm_set_async(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Who makes the result of a call, and what its caller does next. */
typedef enum { ASYNC_READ = 1, ASYNC_WAITS = 2 } AsyncFlags;

/* Queue a call that was planned, with its number; `arrays` keeps its memory, and messages. With
 * ASYNC_READ its value makes the result of what it gives; that of other exchanges is this rank's
 * array for itself, or None. NULL with an exception; None: the communicator takes none now. */
PyObject *async_enqueue(CommObject *self, const Plan *plan, PyObject *label, PyObject *value,
                        PyObject *arrays, int64_t timeout, AsyncFlags flags);

int add_async_types(PyObject *module);

#endif
