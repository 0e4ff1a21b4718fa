/* Access to other ranks' heaps in place, in epochs, and getting exclusive access to the own back.
 *
 * A rank accesses arrays in other ranks' heaps only in an access epoch, which it publishes
 * (`access_epoch`): it begins the epoch, then looks whether any rank has abandoned the call. A rank
 * that abandons a call publishes that, then looks which ranks are in an access epoch, and waits
 * until they are out. In both a store comes before a load of the other's word, all seq_cst: no
 * access begins unseen, so none happens after that.
 *
 * A rank that is stopped, or killed, in an access epoch stays in it. One that may only read does no
 * harm (its caller is not told what it read, see ah_access_end). One that may write could spoil the
 * array much later, when it is continued: so the array's owner replaces the pages under it by
 * private ones of the same content, and that part of the heap is ordinary memory from then on.
 */
#ifndef ALLHANDS_HEAP_ACCESS_H
#define ALLHANDS_HEAP_ACCESS_H

#include "comm/comm_state.h"

/* `where` of a buffer: AH_IN_HEAP and its offset, or 0 and its address. */
uint64_t ah_locate_buffer(const ah_comm *comm, const void *at, size_t nbytes, uint64_t *where);
/* The same for a buffer per rank, the own left out; `each` has their sizes, or NULL: `nbytes`. */
uint64_t ah_locate_buffers(const ah_comm *comm, const void *const at[], const size_t each[],
                           size_t nbytes, uint64_t where[]);
/* The address of an offset in `rank`'s heap, or NULL if it would reach out of it. */
char *ah_heap_address(const ah_comm *comm, int rank, uint64_t offset, size_t nbytes);

/* In the call under way, other ranks may write to this array. */
void ah_expose(ah_comm *comm, void *at, size_t nbytes);

/* Begin to access arrays of these ranks. AH_ABANDONED, and no epoch, if one has abandoned. */
ah_status ah_access_begin(ah_comm *comm, uint64_t ranks);
/* AH_ABANDONED if one has since: what was read may be torn, and must not be passed on. */
ah_status ah_access_end(ah_comm *comm, uint64_t ranks);

/* After abandoning: returns when no rank can access our arrays any more. */
void ah_await_no_access(ah_comm *comm);

#endif
