/* CallCollector: stands for a communicator while a thread's calls are collected. */
#ifndef ALLHANDS_CALL_COLLECTOR_H
#define ALLHANDS_CALL_COLLECTOR_H

#include "python/comm_object_state.h"

/* Method of ShmComm. */
PyObject *comm_make_collector(PyObject *comm, PyObject *thread);

int add_collector_type(PyObject *module);

#endif
