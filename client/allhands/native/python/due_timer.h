/* DueTimer: says when queued calls of a process's groups have waited so long that a thread should
 * run them. It sleeps without the GIL, and looks at the groups' words alone. */
#ifndef ALLHANDS_DUE_TIMER_H
#define ALLHANDS_DUE_TIMER_H

#include "python/comm_object_state.h"

/* Add a communicator, until it is removed; false: no memory. */
bool timer_add(PyObject *timer, CommObject *comm);
void timer_remove(PyObject *timer, CommObject *comm);
/* Learn that calls of a communicator are due then; to be woken for that, unless `may_be_late` by as
 * much as the timer sleeps while calls are made. */
void timer_note(PyObject *timer, int64_t due, bool may_be_late);
bool timer_check(PyObject *timer);

int add_timer_type(PyObject *module);

#endif
