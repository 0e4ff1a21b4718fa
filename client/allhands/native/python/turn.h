/* The turn of a call: one call runs at a time, and those begun before are finished before it. */
#ifndef ALLHANDS_TURN_H
#define ALLHANDS_TURN_H

#include "python/comm_object_state.h"

/* Take the turn at once, if no other call has it and nothing speaks against it: 1. Else 0, or -1
 * with an exception for the caller, such as that another thread is in a call of its own under the
 * same label. */
int comm_try_enter(CommObject *self, const char *operation, PyObject *label);
/* Whether a call of a thread that makes it now comes after all that have numbers. */
bool comm_is_open(const CommObject *self);
/* Refuse a call while another thread is in one under the same label: -1. Ranks could not tell which
 * of the two belongs to which of theirs. */
int comm_refuse_clash(CommObject *self, const char *operation, PyObject *label);
/* Wait for the turn, and finish what was started before; -1 with an exception: without the turn. */
int comm_acquire_turn(CommObject *self);
/* Whether this process made the communicator; else false with an exception set: a forked child
 * shares the memory, where it must not write in its parent's name. */
bool comm_is_own(const CommObject *self);

#endif
