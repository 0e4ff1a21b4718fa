#define _GNU_SOURCE
#include "links/message.h"

#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "kernels/copy.h"
#include "links/credit.h"

/* Wait until the link takes more; false: it has not within `patience`. */
static bool wait_for_room(const ah_link *link, int64_t patience) {
    struct pollfd wanted = {link->out, POLLOUT, 0};
    struct timespec timeout = {0, patience};
    return ppoll(&wanted, 1, &timeout, NULL) > 0;
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

size_t ah_link_send(ah_link *link, const uint8_t *header, const uint8_t *payload, size_t nbytes,
                    int64_t patience) {
    size_t sent = 0, total = AH_FRAME_HEADER + nbytes;
    for (;;) {
        int64_t more = 0;
        if (sent < total)
            more = write_more(link, header, payload, nbytes, sent);
        else if (!ah_link_flush(link))
            more = -1;
        if (more < 0) return sent;
        sent += (size_t)more;
        if (sent == total && !link->has_unsent) return sent;
        if (more == 0 && !wait_for_room(link, patience)) return sent;
    }
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

/* The payload of the message that has begun; what came of it is read ahead again if it stays
 * incomplete, or is not what was sent: who looks at the link next finds out what is wrong. */
static ah_message_status receive_payload(ah_link *link, const ah_frame *frame, uint8_t *target,
                                         int64_t until, int64_t spin) {
    size_t came = ah_link_pending(link) < frame->length ? ah_link_pending(link) : frame->length;
    int64_t idle_since = 0;
    if (came < frame->length && until < ah_link_now() + PAYLOAD_NS)
        until = ah_link_now() + PAYLOAD_NS;
    if (came) ah_copy_bytes(target, link->data + link->start, came);
    link->start += came;
    ah_message_status status = AH_MESSAGE_DONE;
    while (came < frame->length) {
        int64_t more = ah_link_read(link, target + came, frame->length - came);
        if (more > 0) {
            came += (size_t)more;
            idle_since = 0;
            continue;
        }
        if (more < 0)
            status = AH_MESSAGE_STUCK;
        else if (!wait_for(link, until, spin, &idle_since))
            status = AH_MESSAGE_LATE;
        if (status != AH_MESSAGE_DONE) break;
    }
    if (status == AH_MESSAGE_DONE && !is_intact(link, frame, target)) status = AH_MESSAGE_STUCK;
    if (status == AH_MESSAGE_DONE) {
        link->consumed += frame->length;
        link->verified_frames += (frame->flags & AH_FRAME_DIGEST) != 0;
        return status;
    }
    uint8_t header[AH_FRAME_HEADER];
    ah_frame_pack(header, frame);
    if (!ah_link_unread(link, target, came) || !ah_link_unread(link, header, sizeof header))
        link->in = -1; /* without memory the link is of no use any more */
    return status;
}

ah_message_status ah_link_receive(ah_link *link, const ah_frame *expected, uint8_t *target,
                                  int64_t until, int64_t spin, size_t *foreign) {
    int64_t idle_since = 0;
    for (;;) {
        size_t held = ah_link_pending(link);
        if (held >= AH_FRAME_HEADER) {
            ah_frame frame;
            if (!ah_frame_unpack(link->data + link->start, &frame)) return AH_MESSAGE_STUCK;
            if (ah_credit_take(link, &frame)) continue;
            if (is_same(&frame, expected)) {
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
