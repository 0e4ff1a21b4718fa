#define _GNU_SOURCE
#include "links/link.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Make room for `front` bytes before and `back` bytes behind those that are there. */
static bool make_room(ah_link *link, size_t front, size_t back) {
    size_t held = ah_link_pending(link), needed = front + held + back;
    if (link->start >= front && link->room - link->end >= back) return true;
    if (needed <= link->room) {
        memmove(link->data + front, link->data + link->start, held);
    } else {
        size_t room = needed < AH_LINK_ROOM ? AH_LINK_ROOM : needed;
        uint8_t *data = malloc(room);
        if (data == NULL) return false;
        if (held) memcpy(data + front, link->data + link->start, held);
        free(link->data);
        link->data = data;
        link->room = room;
    }
    link->start = front;
    link->end = front + held;
    return true;
}

bool ah_link_reserve(ah_link *link, size_t nbytes) { return make_room(link, 0, nbytes); }

bool ah_link_feed(ah_link *link, const void *bytes, size_t nbytes) {
    if (!make_room(link, 0, nbytes)) return false;
    if (nbytes) memcpy(link->data + link->end, bytes, nbytes);
    link->end += nbytes;
    return true;
}

bool ah_link_unread(ah_link *link, const void *bytes, size_t nbytes) {
    if (!make_room(link, nbytes, 0)) return false;
    if (nbytes) memcpy(link->data + link->start - nbytes, bytes, nbytes);
    link->start -= nbytes;
    return true;
}

void ah_link_free(ah_link *link) {
    free(link->data);
    link->data = NULL;
    link->start = link->end = link->room = 0;
}

int64_t ah_link_now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}
