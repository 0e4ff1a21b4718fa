/* Runs the calls of a communicator's queue.
 *
 * Whoever waits for one runs those up to it, on its own thread; so does the next call of another
 * kind, and a thread that is told to once they are due (leaders and followers: Schmidt et al.,
 * 2000). A small all_reduce that is first is published at once, so that it keeps no rank waiting.
 */
#ifndef ALLHANDS_ASYNC_RUN_H
#define ALLHANDS_ASYNC_RUN_H

#include "python/async_queue.h"

/* Publish a call that is first, if it is small and nothing speaks against it. */
void async_try_publish(AsyncCall *call);
/* Say when a thread should run what is queued. */
void async_set_due(CommObject *self);
/* CommObject.finish_async */
int async_finish(CommObject *self, const AsyncCall *last);
/* Run what ends at once, up to a call; -1 with an exception. */
int async_run_ready(AsyncCall *call);
/* Whether the first call, which is published, would end at once. */
bool async_is_ready(CommObject *self);

/* Methods of ShmComm. */
PyObject *comm_run_next(CommObject *self, PyObject *unused);
PyObject *comm_hand_over(CommObject *self, PyObject *unused);
PyObject *comm_take_back(CommObject *self, PyObject *unused);

#endif
