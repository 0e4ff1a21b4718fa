/* Runs the calls of a communicator's queue.
 *
 * Whoever waits for one runs those up to it, on its own thread; so does the next call of another
 * kind, and a thread that is told to once they are due (leaders and followers: Schmidt et al.,
 * 2000). A small call that is first is published at once, so that it keeps no rank waiting, and
 * ends at once where it waits for nobody.
 */
#ifndef ALLHANDS_ASYNC_RUN_H
#define ALLHANDS_ASYNC_RUN_H

#include "python/async_queue.h"

/* Say when a thread should run what is queued, by who knows the time, or not. */
void async_set_due_at(CommObject *self, int64_t now);
void async_set_due(CommObject *self);
/* CommObject.finish_async */
int async_finish(CommObject *self, const AsyncCall *last);
/* Run what ends at once, and publish what is first then, up to a size; beyond a call only what is
 * small. -1 with an exception. */
int async_run_ready(AsyncCall *call, size_t nbytes);
/* Whether the first call would go on at once, if it was published or is no larger than that. */
bool async_is_ready(CommObject *self, size_t nbytes);

/* Methods of ShmComm. */
PyObject *comm_run_next(CommObject *self, PyObject *unused);
PyObject *comm_hand_over(CommObject *self, PyObject *unused);
PyObject *comm_take_back(CommObject *self, PyObject *unused);

#endif
