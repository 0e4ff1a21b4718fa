/* A message from point to point over a link, sent or received at once by the thread that asks for
 * it: in frames one after the other, of which all but the last are as long as they may be. */
#ifndef ALLHANDS_LINKS_MESSAGE_H
#define ALLHANDS_LINKS_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "links/frame.h"
#include "links/link.h"

enum { AH_MESSAGE_LONGEST = 4 << 20 }; /* that goes unasked; LONG_EAGER_BYTES in Python */

typedef enum {
    AH_MESSAGE_DONE,
    AH_MESSAGE_LATE,    /* not within the time: what came is read ahead */
    AH_MESSAGE_FOREIGN, /* another frame comes first, whole, at the front of what is read ahead */
    AH_MESSAGE_STUCK,   /* the link has ended, or what comes cannot be judged here */
} ah_message_status;

/* The bytes in the first frame of a message of `total` bytes. */
static inline uint32_t ah_message_first(size_t total) {
    return total < AH_FRAME_PAYLOAD ? (uint32_t)total : (uint32_t)AH_FRAME_PAYLOAD;
}

/* Send a message, of which `first` is the first frame, as far as the link takes it; returns how
 * many of its bytes, headers among them, have left. It waits while the link takes more within
 * `patience` nanoseconds. */
size_t ah_link_send(ah_link *link, const ah_frame *first, const uint8_t *payload, int64_t patience);

/* How many bytes a message takes on the link, headers among them. */
size_t ah_message_bytes(const ah_frame *first);

/* Copy these bytes from the `from`th on. */
void ah_message_copy(const ah_frame *first, const uint8_t *payload, size_t from, uint8_t *to);

/* Receive the message of exactly that first frame, but for a digest, which has to be right, into
 * `target`, until `until`, in nanoseconds of the monotonic clock; spin up to `spin` of them before
 * sleeping. `*foreign` is the length of the other frame. A message of several frames has no digest.
 */
ah_message_status ah_link_receive(ah_link *link, const ah_frame *first, uint8_t *target,
                                  int64_t until, int64_t spin, size_t *foreign);

#endif
