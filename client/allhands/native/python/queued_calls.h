/* Calls that took their numbers before their turn, and the counting of numbers. */
#ifndef ALLHANDS_QUEUED_CALLS_H
#define ALLHANDS_QUEUED_CALLS_H

#include "python/comm_object_state.h"

/* Methods. */
PyObject *comm_take_number(CommObject *self, PyObject *unused);
PyObject *comm_release(CommObject *self, PyObject *unused);
PyObject *comm_run(CommObject *self, PyObject *args, PyObject *kwargs);
PyObject *comm_enqueue(CommObject *self, PyObject *args, PyObject *kwargs);

#endif
