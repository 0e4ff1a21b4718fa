/* What the exchange that has ended last has given, taken out of the communicator. */
#ifndef ALLHANDS_RECEIVED_H
#define ALLHANDS_RECEIVED_H

#include "python/comm_object_state.h"

/* Arrays of bytes from each rank in a tuple, with None in the own place; NULL with an exception. */
PyObject *take_received(CommObject *self);
/* The arrays of what was taken, by rank, in a list; that of this rank is a copy of `own`. */
PyObject *list_received_arrays(PyObject *received, PyArrayObject *own);

#endif
