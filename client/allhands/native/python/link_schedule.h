/* A schedule compiled for a LinkCollectives, with what its owner calls it and its links. */
#ifndef ALLHANDS_LINK_SCHEDULE_H
#define ALLHANDS_LINK_SCHEDULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "python/link_call_object_state.h"

typedef struct {
    LinkCallObject *call; /* NULL: there is none */
    PyObject *compiled;   /* what the owner knows it by */
    long *ranks;          /* of the world, by the call's links */
} LinkSchedule;

/* Take a LinkCall, the owner's object, and a tuple of ranks; false with an exception. */
bool link_schedule_read(LinkSchedule *self, PyObject *call, PyObject *compiled, PyObject *ranks);
void link_schedule_clear(LinkSchedule *self);

/* Whether a call of it can begin, and use all its links as they are. */
bool link_schedule_is_ready(const LinkSchedule *self);

#endif
