#define _GNU_SOURCE
#include "links/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEAST = 64 }; /* bytes that are read ahead at once, if they are there */

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

static bool is_transient(int error) { return error == EAGAIN || error == EINTR; }

int64_t ah_link_write(ah_link *link, const struct iovec *pieces, int count) {
    if (link->sealer != NULL) return link->sealer->write(link->sealer, link, pieces, count);
    struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = (size_t)count};
    ssize_t sent = sendmsg(link->out, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return is_transient(errno) ? 0 : -1;
}

bool ah_link_flush(ah_link *link) {
    return link->sealer == NULL || link->sealer->flush(link->sealer, link);
}

int64_t ah_link_read(ah_link *link, uint8_t *target, size_t nbytes) {
    if (link->opener != NULL) {
        size_t direct;
        int64_t came = link->opener->read(link->opener, link, target, nbytes, &direct);
        return came < 0 ? came : (int64_t)direct;
    }
    ssize_t came = read(link->in, target, nbytes);
    if (came > 0) return came;
    return came < 0 && is_transient(errno) ? 0 : -1;
}

int64_t ah_link_read_ahead(ah_link *link) {
    if (ah_link_pending(link) == 0) link->start = link->end = 0;
    if (link->opener != NULL) {
        size_t direct;
        return link->opener->read(link->opener, link, NULL, 0, &direct);
    }
    if (!ah_link_reserve(link, LEAST)) return -1;
    int64_t came = ah_link_read(link, link->data + link->end, link->room - link->end);
    if (came > 0) link->end += (size_t)came;
    return came;
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
