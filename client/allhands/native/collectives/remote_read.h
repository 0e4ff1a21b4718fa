/* Reads of other ranks' buffers in place: in a heap that all map, or by cross-memory attach.
 *
 * A source stays in the call until its readers say that they are done, or have abandoned it. A
 * source that abandons it publishes that before its buffer can change, and its readers look last.
 */
#ifndef ALLHANDS_REMOTE_READ_H
#define ALLHANDS_REMOTE_READ_H

#include "comm/comm_state.h"

/* The bytes of each buffer from which cross-memory attach may be worth it: of one source only
 * where it is for everybody, as staging is as fast for its readers. */
static inline size_t ah_attach_min(const ah_comm *comm, uint64_t sources) {
    return ah_is_single(sources) ? comm->attach_alone_min : comm->limits.attach_min;
}

/* Whether this rank is for cross-memory attach, of so much of several ranks' buffers each. */
bool ah_may_attach(const ah_comm *comm, size_t nbytes);

/* Whether buffers of all `sources` can be read by whoever needs them, so much of each. The same
 * answer on all ranks: it follows from what all have posted. */
bool ah_can_read_remote(const ah_comm *comm, uint64_t sources, size_t nbytes);

/* Read from `where` in the header of rank `from` (or in its table). */
ah_status ah_remote_read(ah_comm *comm, int from, uint64_t where, void *to, size_t nbytes);

/* After the last: publish that, make sure that what was read from `sources` is good, and wait until
 * `readers` have read. */
ah_status ah_remote_read_end(ah_comm *comm, uint64_t sources, uint64_t readers);

#endif
