/* Ring buffers of frames from rank to rank, single producer and single consumer.
 *
 * Every ordered pair has one, in the sender's region of the memory: a ring of frames of one line
 * each, and beside it a ring of bytes for data that does not fit into a frame. A frame is there
 * once its stamp, written last, is the number that the receiver expects next; frames lie where only
 * frames ever lie, so no data can look like a stamp. The receiver publishes how much it has
 * consumed in its own region: no word but the doorbell has two writers, and nothing is ever locked.
 *
 * No frame is overwritten before it was consumed, so a sender's last frames outlive it: its memory
 * stays mapped by the ranks that are to read them.
 */
#ifndef ALLHANDS_P2P_RING_H
#define ALLHANDS_P2P_RING_H

#include <stdbool.h>

#include "comm/layout.h"

#define AH_FRAMES 512                     /* a power of two */
#define AH_RING_BYTES ((size_t)256 << 10) /* a power of two */
#define AH_RTS_SLOTS 256
#define AH_INLINE 24 /* bytes of data that go in the frame */

typedef enum {
    AH_EAGER = 1, /* a whole message, here */
    AH_RTS,       /* a message that waits at its sender */
    AH_CTS,       /* the receiver of an RTS wants its data sent */
    AH_DATA,      /* `total` bytes of it, from `where` on */
    AH_ACK,       /* the receiver of an RTS has read the data */
    AH_NACK,      /* the receive expects another message; `total` bytes of text follow */
    AH_CANCEL,    /* the RTS holds no more */
} ah_frame_kind;

enum { AH_RTS_IN_HEAP = 1 };

typedef struct {
    _Alignas(AH_CACHE_LINE) _Atomic uint64_t stamp;
    uint16_t kind, flags;
    uint32_t tag;
    uint64_t id; /* of an RTS, as its sender counts them */
    uint64_t signature;
    uint64_t total;
    union {
        struct {
            uint64_t where; /* offset in the sender's heap, else address */
            uint64_t slot;  /* in its RTS table; AH_RTS_SLOTS: none */
        };
        unsigned char small[AH_INLINE];
    };
} ah_frame;
_Static_assert(sizeof(ah_frame) == AH_CACHE_LINE, "a frame is a line");

/* What a rank has consumed of one ring to it; counts for ever. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t frames;
    _Atomic uint64_t bytes;
    _Atomic uint64_t released; /* of the credit: see p2p_state.h */
} ah_ring_consumed;

typedef struct {
    ah_frame frame[AH_FRAMES];
    char bytes[AH_RING_BYTES];
} ah_p2p_ring;

/* A rank's region of the memory. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint32_t doorbell; /* see doorbell.h */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t nonce;
    _Atomic uint64_t nonce_at; /* the one lies at the other, in the right process */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t
        rts_table[AH_RTS_SLOTS];             /* ids of those that hold; 0: none */
    ah_ring_consumed consumed[AH_MAX_RANKS]; /* by sender */
    ah_p2p_ring ring[];                      /* by receiver */
} ah_p2p_region;

/* One end of a ring, as its sender or its receiver knows it. */
typedef struct {
    ah_p2p_ring *ring;
    ah_ring_consumed *consumed;
    uint64_t frames, bytes;           /* put, or consumed */
    uint64_t room_frames, room_bytes; /* the sender's: what it may put before it looks again */
} ah_ring_end;

size_t ah_p2p_region_bytes(int size);

/* Data of a frame in the ring of bytes; 0: all is in the frame. */
static inline size_t ah_trailing_bytes(const ah_frame *frame) {
    switch (frame->kind) {
    case AH_EAGER: return frame->total <= AH_INLINE ? 0 : frame->total;
    case AH_DATA:
    case AH_NACK: return frame->total;
    default: return 0;
    }
}

/* Room in the ring of bytes, at the moment. */
size_t ah_ring_room(ah_ring_end *out);
/* Put a frame and its data; false: no room. The receiver may be asleep. */
bool ah_ring_put(ah_ring_end *out, const ah_frame *frame, const void *data);

/* The next frame, if it is there. */
static inline const ah_frame *ah_ring_peek(const ah_ring_end *in) {
    const ah_frame *next = &in->ring->frame[in->frames & (AH_FRAMES - 1)];
    uint64_t stamp = atomic_load(&next->stamp); /* seq_cst: a look before sleep */
    return stamp == in->frames + 1 ? next : NULL;
}
/* Copy its data. Once. */
void ah_ring_read(const ah_ring_end *in, void *to, size_t nbytes);
/* Consume it, with so many bytes of data. The sender may be waiting. */
void ah_ring_pop(ah_ring_end *in, size_t trailing);

/* Before the memory of an RTS is anything else's: a rank that reads on will notice. */
void ah_rts_release(ah_p2p_region *own, uint64_t slot);
/* Whether all that was read up to now of the memory of an RTS is good. */
bool ah_rts_holds(const ah_p2p_region *region, uint64_t slot, uint64_t id);

#endif
