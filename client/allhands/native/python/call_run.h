/* Runs the plan of a call, by the thread that holds the turn; the GIL is released meanwhile. */
#ifndef ALLHANDS_CALL_RUN_H
#define ALLHANDS_CALL_RUN_H

#include "python/comm_object_state.h"

/* Begin the plan as call number `sequence`. */
void call_begin(CommObject *self, RunningCall *running, uint64_t sequence, int64_t timeout,
                int64_t deadline, PyObject *label);
/* End what was begun; -1 with an exception set unless it ended well. */
int call_end(CommObject *self, RunningCall *running, ah_status status, PyObject *label);
/* Set the exception of a call that failed. */
void call_raise(CommObject *self, const RunningCall *running, ah_status status, PyObject *label);
/* What this rank brings to a call: its array, or its block, or all that it sends. */
size_t call_bytes(const CommObject *self, const Plan *plan);
/* What other ranks' plans must have in common with this one, but for what the core signs itself. */
uint64_t call_signature(const Plan *plan);
/* Write down what begins, or has a number. */
void call_record(CommObject *self, const Plan *plan, uint64_t sequence, int64_t now,
                 PyObject *label);
/* Carry the plan out, from its beginning to its end; as call_end. */
int call_run(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
             PyObject *label);
/* The same of a plan that has a composite call; sequence 0: the next number, and the thread that
 * makes the call waits for it. */
int call_run_composite(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
                       PyObject *label);

#endif
