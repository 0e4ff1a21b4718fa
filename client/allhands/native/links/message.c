#define _GNU_SOURCE
#include "links/message.h"

#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <time.h>

#include "kernels/copy.h"
#include "links/credit.h"

/* How long who waits for room waits at once, and more than which comes with a message only. */
#define GLANCE_NS INT64_C(200000)
#define MUCH_BYTES (16 << 10)

/* Whether the peer is in the midst of a message to here, and may not read before that is taken. */
static bool is_sending(const ah_link *link) {
    int came = 0;
    return link->in >= 0 && ioctl(link->in, FIONREAD, &came) == 0 && came > MUCH_BYTES;
}

/* Wait until the link takes more; false: it has not within `patience`, or for a glance while its
 * peer sends as well. */
static bool wait_for_room(const ah_link *link, int64_t patience) {
    for (int64_t left = patience; left > 0; left -= GLANCE_NS) {
        struct pollfd wanted = {link->out, POLLOUT, 0};
        struct timespec timeout = {0, left < GLANCE_NS ? left : GLANCE_NS};
        if (ppoll(&wanted, 1, &timeout, NULL) > 0) return true;
        if (is_sending(link)) return false;
    }
    return false;
}

/* Write once of what is behind the first `sent` bytes of a frame; as ah_link_write. */
static int64_t write_more(ah_link *link, const uint8_t *header, const uint8_t *payload,
                          size_t nbytes, size_t sent) {
    struct iovec pieces[2];
    int count = 0;
    size_t past = 0; /* of the payload */
    if (sent < AH_FRAME_HEADER)
        pieces[count++] = (struct iovec){(void *)(header + sent), AH_FRAME_HEADER - sent};
    else
        past = sent - AH_FRAME_HEADER;
    if (nbytes > past) pieces[count++] = (struct iovec){(void *)(payload + past), nbytes - past};
    return ah_link_write(link, pieces, count);
}

/* The frame of a message that begins with that byte of its payload. */
static ah_frame frame_at(const ah_frame *first, size_t offset) {
    ah_frame frame = *first;
    frame.offset = offset;
    frame.length = ah_message_first(first->total - offset);
    return frame;
}

/* Send a frame as ah_link_send; the bytes that have left. */
static size_t send_frame(ah_link *link, const ah_frame *frame, const uint8_t *payload,
                         int64_t patience) {
    uint8_t header[AH_FRAME_HEADER];
    size_t sent = 0, total = AH_FRAME_HEADER + frame->length;
    ah_frame_pack(header, frame);
    for (;;) {
        int64_t more = 0;
        if (sent < total)
            more = write_more(link, header, payload, frame->length, sent);
        else if (!ah_link_flush(link))
            more = -1;
        if (more < 0) return sent;
        sent += (size_t)more;
        if (sent == total && !link->has_unsent) return sent;
        if (more == 0 && !wait_for_room(link, patience)) return sent;
    }
}

size_t ah_link_send(ah_link *link, const ah_frame *first, const uint8_t *payload,
                    int64_t patience) {
    size_t sent = 0, offset = 0;
    for (;;) {
        ah_frame frame = frame_at(first, offset);
        size_t more = send_frame(link, &frame, payload + offset, patience);
        sent += more;
        offset += frame.length;
        if (more < AH_FRAME_HEADER + (size_t)frame.length || link->has_unsent ||
            offset == first->total)
            return sent;
    }
}

size_t ah_message_bytes(const ah_frame *first) {
    size_t frames = (first->total + AH_FRAME_PAYLOAD - 1) / AH_FRAME_PAYLOAD;
    return first->total + AH_FRAME_HEADER * (frames ? frames : 1);
}

void ah_message_copy(const ah_frame *first, const uint8_t *payload, size_t from, uint8_t *to) {
    size_t at = 0, offset = 0; /* of the frame among the bytes, and in the payload */
    do {
        ah_frame frame = frame_at(first, offset);
        uint8_t header[AH_FRAME_HEADER];
        ah_frame_pack(header, &frame);
        size_t past = from > at ? from - at : 0; /* of the frame */
        if (past < AH_FRAME_HEADER) {
            memcpy(to, header + past, AH_FRAME_HEADER - past);
            to += AH_FRAME_HEADER - past;
            past = AH_FRAME_HEADER;
        }
        past -= AH_FRAME_HEADER; /* of the frame's payload */
        if (past < frame.length) {
            memcpy(to, payload + offset + past, frame.length - past);
            to += frame.length - past;
        }
        at += AH_FRAME_HEADER + frame.length;
        offset += frame.length;
    } while (offset < first->total);
}

/* How long the rest of a message whose beginning is there may take: 1 MiB at 1 Gbit/s 8 ms. */
#define PAYLOAD_NS INT64_C(20000000)

/* Whether two headers are the same but for their digests. */
static bool is_same(const ah_frame *one, const ah_frame *other) {
    return one->kind == other->kind && one->group == other->group &&
           one->sequence == other->sequence && one->step == other->step &&
           one->part == other->part && one->signature == other->signature &&
           one->total == other->total && one->offset == other->offset &&
           one->length == other->length && one->flags == other->flags;
}

/* Wait until something is there; false: not in time. */
static bool wait_for(const ah_link *link, int64_t until, int64_t spin, int64_t *idle_since) {
    int64_t at = ah_link_now();
    if (at >= until) return false;
    if (*idle_since == 0) *idle_since = at;
    if (at - *idle_since < spin) {
        sched_yield();
        return true;
    }
    struct pollfd wanted = {link->in, POLLIN, 0};
    struct timespec timeout = {(until - at) / 1000000000, (until - at) % 1000000000};
    ppoll(&wanted, 1, &timeout, NULL);
    return true;
}

/* Whether a message has the digest that its frame should have, if it has one. */
static bool is_intact(const ah_link *link, const ah_frame *frame, const uint8_t *payload) {
    if (!(frame->flags & AH_FRAME_DIGEST)) return true;
    uint32_t digest;
    return ah_frame_digest(link->verifier, link->verified_frames, frame, payload, &digest) &&
           digest == frame->digest;
}

/* Read `nbytes` to `target`, as ah_link_receive; `*came` is how many of them have come. */
static ah_message_status read_payload(ah_link *link, uint8_t *target, size_t nbytes, size_t *came,
                                      int64_t until, int64_t spin) {
    size_t ahead = ah_link_pending(link) < nbytes ? ah_link_pending(link) : nbytes;
    int64_t idle_since = 0;
    if (ahead) ah_copy_bytes(target, link->data + link->start, ahead);
    link->start += ahead;
    *came = ahead;
    while (*came < nbytes) {
        int64_t more = ah_link_read(link, target + *came, nbytes - *came);
        if (more < 0) return AH_MESSAGE_STUCK;
        if (more == 0 && !wait_for(link, until, spin, &idle_since)) return AH_MESSAGE_LATE;
        if (more > 0) idle_since = 0;
        *came += (size_t)more;
    }
    return AH_MESSAGE_DONE;
}

/* Take the header of the frame that is due in the midst of a message; as ah_link_receive. */
static ah_message_status take_header(ah_link *link, const ah_frame *due, int64_t until,
                                     int64_t spin) {
    int64_t idle_since = 0;
    for (;;) {
        if (ah_link_pending(link) >= AH_FRAME_HEADER) {
            ah_frame frame;
            if (!ah_frame_unpack(link->data + link->start, &frame)) return AH_MESSAGE_STUCK;
            if (ah_credit_take(link, &frame)) continue;
            if (!is_same(&frame, due)) return AH_MESSAGE_STUCK;
            link->start += AH_FRAME_HEADER;
            return AH_MESSAGE_DONE;
        }
        int64_t came = ah_link_read_ahead(link);
        if (came < 0) return AH_MESSAGE_STUCK;
        if (came == 0 && !wait_for(link, until, spin, &idle_since)) return AH_MESSAGE_LATE;
        if (came > 0) idle_since = 0;
    }
}

/* Put back what came of a message up to that byte of its payload, in the frames up to `last`. */
static void put_back(ah_link *link, const ah_frame *first, const uint8_t *target, size_t came,
                     size_t last) {
    for (size_t offset = last, end = came;; end = offset, offset -= AH_FRAME_PAYLOAD) {
        ah_frame frame = frame_at(first, offset);
        uint8_t header[AH_FRAME_HEADER];
        ah_frame_pack(header, &frame);
        if (!ah_link_unread(link, target + offset, end - offset) ||
            !ah_link_unread(link, header, sizeof header)) {
            link->in = -1; /* without memory the link is of no use any more */
            return;
        }
        if (offset == 0) return;
    }
}

/* The payload of the message that has begun; what came of it is read ahead again if it stays
 * incomplete, or is not what was sent: who looks at the link next finds out what is wrong. */
static ah_message_status receive_payload(ah_link *link, const ah_frame *first, uint8_t *target,
                                         int64_t until, int64_t spin) {
    ah_message_status status = AH_MESSAGE_DONE;
    size_t offset = 0, came = 0; /* of the last frame that has begun, and all that came */
    for (;;) {
        ah_frame frame = frame_at(first, offset);
        size_t more = 0;
        int64_t least = ah_link_now() + PAYLOAD_NS;
        status = read_payload(link, target + offset, frame.length, &more,
                              until < least ? least : until, spin);
        came = offset + more;
        if (status != AH_MESSAGE_DONE || came == first->total) break;
        ah_frame due = frame_at(first, came);
        status = take_header(link, &due, least, spin);
        if (status != AH_MESSAGE_DONE) break;
        offset = came;
    }
    if (status == AH_MESSAGE_DONE && !is_intact(link, first, target)) status = AH_MESSAGE_STUCK;
    if (status == AH_MESSAGE_DONE) {
        link->consumed += (int64_t)first->total;
        link->verified_frames += (first->flags & AH_FRAME_DIGEST) != 0;
    } else {
        put_back(link, first, target, came, offset);
    }
    return status;
}

ah_message_status ah_link_receive(ah_link *link, const ah_frame *first, uint8_t *target,
                                  int64_t until, int64_t spin, size_t *foreign) {
    int64_t idle_since = 0;
    for (;;) {
        size_t held = ah_link_pending(link);
        if (held >= AH_FRAME_HEADER) {
            ah_frame frame;
            if (!ah_frame_unpack(link->data + link->start, &frame)) return AH_MESSAGE_STUCK;
            if (ah_credit_take(link, &frame)) continue;
            if (is_same(&frame, first)) {
                link->start += AH_FRAME_HEADER;
                return receive_payload(link, &frame, target, until, spin);
            }
            *foreign = AH_FRAME_HEADER + frame.length;
            if (held >= *foreign) return AH_MESSAGE_FOREIGN;
            if (*foreign > AH_LINK_ROOM) return AH_MESSAGE_STUCK;
        }
        int64_t came = link->in < 0 ? -1 : ah_link_read_ahead(link);
        if (came < 0) return AH_MESSAGE_STUCK;
        if (came == 0 && !wait_for(link, until, spin, &idle_since)) return AH_MESSAGE_LATE;
        if (came > 0) idle_since = 0;
    }
}
