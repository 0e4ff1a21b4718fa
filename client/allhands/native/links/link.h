/* A link to one peer, as far as a call on its caller's thread needs it: descriptors, the bytes read
 * ahead, and the credit for messages that go unasked.
 *
 * Whoever holds the event loop owns it; nothing here locks.
 */
#ifndef ALLHANDS_LINKS_LINK_H
#define ALLHANDS_LINKS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AH_LINK_ROOM = 64 << 10 }; /* bytes read ahead at once */

typedef struct {
    int in, out;   /* descriptors; -1: there is none */
    uint8_t *data; /* what was read and belongs to nobody yet: from start to end */
    size_t start, end, room;
    int64_t credit;   /* bytes of unasked messages that may be sent */
    int64_t consumed; /* bytes of unasked messages taken in, for which no credit was given back */
    bool has_rest;    /* a frame of a call has left in part: nothing else may be sent */
    bool is_lent;     /* both directions are between two frames: known since the loop last ran */
    bool is_noted;    /* the loop knows that something was read ahead */
} ah_link;

/* Append bytes, as if they had been read; false: no memory. */
bool ah_link_feed(ah_link *link, const void *bytes, size_t nbytes);

/* Have memory for so many more bytes behind those that are there; false: no memory. */
bool ah_link_reserve(ah_link *link, size_t nbytes);

/* Put bytes before those that are there; false: no memory. */
bool ah_link_unread(ah_link *link, const void *bytes, size_t nbytes);

static inline size_t ah_link_pending(const ah_link *link) { return link->end - link->start; }

void ah_link_free(ah_link *link);

/* Nanoseconds of the monotonic clock. */
int64_t ah_link_now(void);

#endif
