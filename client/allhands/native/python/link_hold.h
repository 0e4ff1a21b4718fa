/* Which calls over links are made on their callers' threads, and how long these are held. */
#ifndef ALLHANDS_LINK_HOLD_H
#define ALLHANDS_LINK_HOLD_H

#include "python/link_collectives_state.h"

/* How long the caller of a call is held, in nanoseconds. */
typedef struct {
    int64_t least;
    int64_t most; /* while its rounds end one after the other, or anything has come of it */
    bool is_long; /* so long that rounds have to end */
} LinkHold;

static inline int64_t link_at_most(int64_t nanoseconds, int64_t most) {
    return nanoseconds < most ? nanoseconds : most;
}

/* What the thread does that begins a call. Of a small one, and of one that is too large to be begun
 * in any case, it matters little whether an event loop runs there. With an exception if Python had
 * one. */
LinkCaller link_find_caller(LinkCollectivesObject *self, const LinkCallRequest *request);

/* How long the caller of a call is held that may take so many nanoseconds. */
LinkHold link_find_hold(const LinkCollectivesObject *self, const LinkCallRequest *request,
                        int64_t limit);

#endif
