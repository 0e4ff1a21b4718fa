/* AllReduceRequest: a persistent all_reduce, started and finished in two steps. */
#ifndef ALLHANDS_REQUEST_OBJECT_H
#define ALLHANDS_REQUEST_OBJECT_H

#include "python/comm_object_state.h"

int add_request_type(PyObject *module);

#endif
