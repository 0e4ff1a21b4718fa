/* Credit of a link, for messages that go unasked: taken in, and given back, without the
 * interpreter. transport/inbox.py and transport/outbox.py do the same. */
#ifndef ALLHANDS_LINKS_CREDIT_H
#define ALLHANDS_LINKS_CREDIT_H

#include "links/link.h"

enum {
    AH_CREDIT_BUDGET = 4 << 20, /* bytes that may be with one peer; EAGER_BUDGET in Python */
    AH_CREDIT_STEP = 256 << 10, /* bytes taken in that are given back at once */
};

/* Take in the frame at the front of what is read ahead if it gives credit; false: it does not, or
 * gives more than there can be. */
bool ah_credit_take(ah_link *link, const ah_frame *frame);

/* Give back what was taken in, with the frame that is written to `header`, between two others.
 * Returns the bytes of the frame that have left, or are encrypted and wait; 0: nothing has
 * happened, because the link has no room or has failed. */
size_t ah_credit_return(ah_link *link, uint8_t header[AH_FRAME_HEADER]);

#endif
