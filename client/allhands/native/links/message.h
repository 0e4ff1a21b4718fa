/* A short message from point to point over a link, sent or received at once by the thread that asks
 * for it. */
#ifndef ALLHANDS_LINKS_MESSAGE_H
#define ALLHANDS_LINKS_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "links/frame.h"
#include "links/link.h"

enum { AH_MESSAGE_EAGER = 1 << 20 }; /* longest message that goes unasked; transport/outbox.py */

typedef enum {
    AH_MESSAGE_DONE,
    AH_MESSAGE_LATE,    /* not within the time: what came is read ahead */
    AH_MESSAGE_FOREIGN, /* another frame comes first, whole, at the front of what is read ahead */
    AH_MESSAGE_STUCK,   /* the link has ended, or what comes cannot be judged here */
} ah_message_status;

/* Send the frame of a whole message as far as the link takes it; returns the bytes that have left.
 * It waits while the link takes more within `patience` nanoseconds. */
size_t ah_link_send(ah_link *link, const uint8_t *header, const uint8_t *payload, size_t nbytes,
                    int64_t patience);

/* Receive the message of exactly that header, but for a digest, which has to be right, into
 * `target`, until `until`, in nanoseconds of the monotonic clock; spin up to `spin` of them before
 * sleeping. `*foreign` is the length of the other frame. */
ah_message_status ah_link_receive(ah_link *link, const ah_frame *expected, uint8_t *target,
                                  int64_t until, int64_t spin, size_t *foreign);

#endif
