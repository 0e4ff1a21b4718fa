/* Credit of a link, for messages that go unasked: taken in, and given back, without the
 * interpreter. transport/inbox.py and transport/outbox.py do the same. */
#ifndef ALLHANDS_LINKS_CREDIT_H
#define ALLHANDS_LINKS_CREDIT_H

#include "links/link.h"

enum {
    AH_CREDIT_BUDGET = 6 << 20, /* bytes that may be with one peer; EAGER_BUDGET in Python */
    AH_CREDIT_STEP = 256 << 10, /* bytes taken in that are given back at once */
};

/* Take in the frame at the front of what is read ahead if it gives credit; false: it does not, or
 * gives more than there can be. */
bool ah_credit_take(ah_link *link, const ah_frame *frame);

/* Give back what was taken in, with a frame between two others, or send what is left of such a
 * frame (`credit_left`). Where the link has no room, or has failed, nothing happens. */
void ah_credit_return(ah_link *link);

#endif
