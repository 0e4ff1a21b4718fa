/* One call from its start to its end: posting it in a slot, and awaiting and comparing the others'.
 *
 * Every started call goes through ah_call_finish.
 */
#ifndef ALLHANDS_CALL_H
#define ALLHANDS_CALL_H

#include "comm/comm_state.h"

/* Start a call: AH_OK, or refused (AH_INTERRUPTED). */
ah_status ah_call_start(ah_comm *comm, ah_call *call);
ah_status ah_call_finish(ah_comm *comm, ah_status status);

/* The signature of this call with what the core knows of it: sizes are not left to a caller's. */
uint64_t ah_sign_call(const ah_call *call, int operation, uint64_t a, uint64_t b, uint64_t c);
/* One number for several sizes. */
uint64_t ah_sign_sizes(const size_t sizes[], int count);

/* Whether a call with that number can start without waiting for ranks that are far behind. */
bool ah_slot_is_free(const ah_comm *comm, uint64_t sequence);
/* Whether these ranks have posted that call, which this one has, with its signature. */
bool ah_have_posted_alike(const ah_comm *comm, uint64_t ranks, uint64_t sequence);
/* This call's own slot, waiting until it may be overwritten. */
ah_status ah_acquire_slot(ah_comm *comm, ah_slot **slot);
/* Publish it. */
void ah_post(ah_comm *comm, ah_slot *slot, uint64_t signature);
/* Publish a later call with all that this rank brings, of at most AH_AHEAD beyond the one that it
 * is in; false: its slot is not free. */
bool ah_post_ahead(ah_comm *comm, uint64_t sequence, uint64_t signature, const void *data,
                   size_t nbytes);

/* Wait until these ranks have posted this call, and compare their signatures. */
ah_status ah_await_posted(ah_comm *comm, uint64_t ranks, uint64_t signature);
/* The same in a rooted call, where no more need be awaited than these ranks (perhaps none) once all
 * were seen to make a call like it: till then all are, so that a rank that calls something else is
 * refused by every rank, and not only by those that wait for it. */
ah_status ah_await_posted_rooted(ah_comm *comm, uint64_t ranks, uint64_t signature);
/* Compare with the ranks that have posted already; does not wait. */
ah_status ah_check_posted(ah_comm *comm, uint64_t signature);

/* Post a header (flags, where, even are the caller's) and wait for every rank's. */
ah_status ah_exchange_headers(ah_comm *comm, uint64_t signature, ah_call_header header);
/* The same in two steps, for calls that fill tables of the slot between. */
void ah_post_header(ah_comm *comm, ah_slot *slot, uint64_t signature, ah_call_header header);
ah_status ah_await_headers(ah_comm *comm, uint64_t signature);
/* The same of these ranks alone, in a rooted call. */
ah_status ah_await_headers_of(ah_comm *comm, uint64_t ranks, uint64_t signature);

/* Publish how many steps of this call this rank has produced, or consumed. */
void ah_publish_produced(ah_comm *comm, uint64_t steps);
void ah_publish_consumed(ah_comm *comm, uint64_t steps);

#endif
