/* Messages of sizes that only their senders know: declared in a slot, and in it if they fit.
 *
 * The sizes of a rank's messages lie in the table SENT of its slot; or in the header, if all get
 * the same or one root alone gets any (AH_SAME). Behind them lie the messages, if they fit
 * (AH_IN_SLOT).
 */
#ifndef ALLHANDS_MESSAGE_SLOTS_H
#define ALLHANDS_MESSAGE_SLOTS_H

#include "collectives/collectives.h"
#include "comm/comm_state.h"

const ah_message *ah_message_to(const ah_messages *messages, int rank);

/* Fill this rank's slot and the header to be posted in it. */
void ah_declare_messages(ah_comm *comm, const ah_messages *messages);

/* Bytes that a rank, whose header is here, says it sends to another. */
size_t ah_declared(const ah_comm *comm, int from, int to);
/* AH_MISMATCH if one of these ranks says that more is in its slot than there is room for. */
ah_status ah_check_declared(const ah_comm *comm, uint64_t ranks);

/* Whether all that these ranks send, whose headers are here, lies in their slots. */
bool ah_are_packed(const ah_comm *comm, uint64_t ranks);

/* Copy what these ranks have sent here in their slots. */
void ah_take_packed(const ah_comm *comm, uint64_t ranks, char *const out[]);
/* Copy a part of a message, which may be made of several buffers. */
void ah_copy_message(char *to, const ah_message *message, size_t at, size_t nbytes);

#endif
