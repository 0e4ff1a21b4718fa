/* A link to one peer, as far as a call on its caller's thread needs it: descriptors, encryption,
 * the bytes read ahead, and the credit for messages that go unasked.
 *
 * Whoever holds the event loop owns it; nothing here locks.
 */
#ifndef ALLHANDS_LINKS_LINK_H
#define ALLHANDS_LINKS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "links/frame.h"

enum { AH_LINK_ROOM = 64 << 10 }; /* bytes read ahead at once */

typedef struct ah_link ah_link;
struct iovec;

/* The encryption of one direction of a link, between the plain bytes and its descriptor. */
typedef struct ah_channel ah_channel;
struct ah_channel {
    /* Read once from the descriptor. The bytes go to `target`, and those for which it has no room
     * behind what the link has read ahead; `*direct` is the count of the former. Returns the count
     * of all, 0: none yet, -1: the link has ended, or failed. */
    int64_t (*read)(ah_channel *channel, ah_link *link, uint8_t *target, size_t nbytes,
                    size_t *direct);
    /* As ah_link_write. */
    int64_t (*write)(ah_channel *channel, ah_link *link, const struct iovec *pieces, int count);
    /* As ah_link_flush. */
    bool (*flush)(ah_channel *channel, ah_link *link);
};

struct ah_link {
    int in, out;                    /* descriptors; -1: there is none */
    ah_channel *opener, *sealer;    /* of what comes, and of what goes; NULL: it is plain */
    ah_digester *signer, *verifier; /* of what goes, and of what comes; NULL: there is none */
    uint64_t signed_frames, verified_frames; /* that have left, and are taken in, with a digest */
    uint8_t *data; /* what was read and belongs to nobody yet: from start to end */
    size_t start, end, room;
    int64_t credit;   /* bytes of unasked messages that may be sent */
    int64_t consumed; /* bytes of unasked messages taken in, for which no credit was given back */
    uint8_t credit_frame[AH_FRAME_HEADER]; /* the last that gave credit back */
    size_t credit_left; /* its last bytes, which have not left, and go before all others */
    bool has_rest;      /* a frame of a call has left in part: nothing else may be sent */
    bool is_lent;       /* both directions are between two frames: known since the loop last ran */
    bool is_noted;      /* the loop knows that something was read ahead, or has stopped */
    bool has_unsent;    /* encrypted bytes wait, which go before all others: see ah_link_flush */
    bool has_stopped;   /* what comes cannot be decrypted any more: the loop says why */
};

/* Send what goes at once of these pieces: the count of bytes that are sent, or are encrypted and
 * wait, 0: none, -1: the link has failed. */
int64_t ah_link_write(ah_link *link, const struct iovec *pieces, int count);

/* Send what goes at once of the encrypted bytes that wait; false: the link has failed. */
bool ah_link_flush(ah_link *link);

/* Read once, at most `nbytes` to `target`, which has so much room: the count, 0: none yet, -1: the
 * link has ended. What comes of an encrypted link behind them is read ahead. */
int64_t ah_link_read(ah_link *link, uint8_t *target, size_t nbytes);

/* Read once behind what is read ahead, as ah_link_read. */
int64_t ah_link_read_ahead(ah_link *link);

/* Append bytes, as if they had been read; false: no memory. */
bool ah_link_feed(ah_link *link, const void *bytes, size_t nbytes);

/* Have memory for so many more bytes behind those that are there; false: no memory. */
bool ah_link_reserve(ah_link *link, size_t nbytes);

/* Put bytes before those that are there; false: no memory. */
bool ah_link_unread(ah_link *link, const void *bytes, size_t nbytes);

static inline bool ah_link_is_encrypted(const ah_link *link) {
    return link->opener != NULL || link->sealer != NULL;
}

static inline size_t ah_link_pending(const ah_link *link) { return link->end - link->start; }

void ah_link_free(ah_link *link);

/* Nanoseconds of the monotonic clock. */
int64_t ah_link_now(void);

#endif
