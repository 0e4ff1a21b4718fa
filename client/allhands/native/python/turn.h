/* The turn of a call: one call runs at a time, and a split-phase one is finished before another. */
#ifndef ALLHANDS_TURN_H
#define ALLHANDS_TURN_H

#include "python/comm_object_state.h"

/* Take the turn at once, if no other call has it and nothing speaks against it: 1. Else 0, or -1
 * with an exception for the caller, such as that another thread is in a call of its own under the
 * same label. */
int comm_try_enter(CommObject *self, const char *operation, PyObject *label);
/* Wait for the turn, and finish what was started before; -1 with an exception: without the turn. */
int comm_acquire_turn(CommObject *self);
/* Whether this process made the communicator; else false with an exception set: a forked child
 * shares the memory, where it must not write in its parent's name. */
bool comm_is_own(const CommObject *self);

#endif
