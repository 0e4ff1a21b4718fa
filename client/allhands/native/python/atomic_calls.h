/* Calls of a group that are all or nothing, on their callers' threads. */
#ifndef ALLHANDS_ATOMIC_CALLS_H
#define ALLHANDS_ATOMIC_CALLS_H

#include "python/comm_object_state.h"

/* Carry out the plan of a communicator that is used by an AtomicCalls, by who has the turn, which
 * is given back: True; False, nothing has happened; NULL with an exception. */
PyObject *atomic_run(CommObject *self, int64_t timeout, PyObject *label);
int add_atomic_type(PyObject *module);

#endif
