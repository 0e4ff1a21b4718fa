/* Touching other ranks' heaps, and getting one's own back.
 *
 * A rank touches arrays in others' heaps only inside of a window, which it publishes (`inside`):
 * it enters, then looks whether anyone has given the call up; who gives a call up says so, then
 * looks who is inside, and waits until they are out. In both a store comes before a load of the
 * other's word, all seq_cst: nobody enters unnoticed, so after that nobody touches the array.
 *
 * A rank that is stopped, or killed, inside stays inside. Who may only read does no harm (nobody
 * believes it, see ah_access_end). Who may write could spoil the array much later, when it goes on:
 * so the array's owner exchanges the pages under it for private ones of the same content, and that
 * part of the heap is ordinary memory from then on.
 */
#ifndef ALLHANDS_HEAP_ACCESS_H
#define ALLHANDS_HEAP_ACCESS_H

#include "comm/comm_state.h"

/* In the call in progress, others may write to this array. */
void ah_expose(ah_comm *comm, void *at, size_t nbytes);

/* To touch arrays of these ranks. AH_ABANDONED, and not inside, if one has given up the call. */
ah_status ah_access_begin(ah_comm *comm, uint64_t ranks);
/* AH_ABANDONED if one has since: what was read may be torn, and must not be passed on. */
ah_status ah_access_end(ah_comm *comm, uint64_t ranks);

/* After giving up: returns when nobody can touch our arrays any more. */
void ah_await_no_access(ah_comm *comm);

#endif
