/* Wires: what one rank says to another in memory, frame by frame and in order.
 *
 * Every ordered pair has one, in the sender's part of the memory: a ring of frames of one line
 * each, and beside it a ring of bytes for what does not fit into a frame. A frame is there once its
 * stamp, written last, is the number that the receiver expects next; frames lie where only frames
 * ever lie, so nobody's data can look like a stamp. How much the receiver has taken it says in its
 * own part: no word but the bell has two writers, and nothing is ever locked.
 *
 * No frame is overwritten before it was taken, so a sender's last words outlive it: its memory
 * stays mapped by whoever is to read them.
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
    AH_CTS,       /* the receiver of an offer wants it in pieces */
    AH_DATA,      /* `total` bytes of it, from `where` on */
    AH_ACK,       /* the receiver of an offer has fetched it */
    AH_NACK,      /* it has another receive in that place; `total` bytes of text follow */
    AH_CANCEL,    /* the offer holds no more */
} ah_frame_kind;

enum { AH_RTS_IN_HEAP = 1 };

typedef struct {
    _Alignas(AH_CACHE_LINE) _Atomic uint64_t stamp;
    uint16_t kind, flags;
    uint32_t tag;
    uint64_t id; /* of an offer, as its sender counts them */
    uint64_t signature;
    uint64_t total;
    union {
        struct {
            uint64_t where; /* offset in the sender's heap, else address */
            uint64_t slot;  /* among its offers; AH_RTS_SLOTS: none */
        };
        unsigned char small[AH_INLINE];
    };
} ah_frame;
_Static_assert(sizeof(ah_frame) == AH_CACHE_LINE, "a frame is a line");

/* What a rank has taken of one other's wire to it; counts for ever. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t frames;
    _Atomic uint64_t bytes;
    _Atomic uint64_t released; /* of its budget: see p2p.c */
} ah_ring_consumed;

typedef struct {
    ah_frame frame[AH_FRAMES];
    char bytes[AH_RING_BYTES];
} ah_p2p_ring;

/* A rank's part of the memory. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint32_t doorbell; /* see p2p.c */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t nonce;
    _Atomic uint64_t nonce_at; /* the one lies at the other, in the right process */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t
        rts_table[AH_RTS_SLOTS];             /* ids of those that hold; 0: none */
    ah_ring_consumed consumed[AH_MAX_RANKS]; /* by sender */
    ah_p2p_ring ring[];                      /* by receiver */
} ah_p2p_region;

/* One end of a wire, as its sender or its receiver has it in mind. */
typedef struct {
    ah_p2p_ring *ring;
    ah_ring_consumed *consumed;
    uint64_t frames, bytes;           /* put, or taken */
    uint64_t room_frames, room_bytes; /* the sender's: what it may put before it looks again */
} ah_ring_end;

size_t ah_p2p_region_bytes(int size);

/* Data of a frame that lies beside it, in the ring of bytes; 0: all is in the frame. */
static inline size_t ah_trailing_bytes(const ah_frame *frame) {
    switch (frame->kind) {
    case AH_EAGER: return frame->total <= AH_INLINE ? 0 : frame->total;
    case AH_DATA:
    case AH_NACK: return frame->total;
    default: return 0;
    }
}

/* Bytes of room beside frames, at the moment. */
size_t ah_ring_room(ah_ring_end *out);
/* Put a frame and the data beside it; false: no room. The receiver may be asleep. */
bool ah_ring_put(ah_ring_end *out, const ah_frame *frame, const void *data);

/* The next frame, if it is there. */
static inline const ah_frame *ah_ring_peek(const ah_ring_end *in) {
    const ah_frame *next = &in->ring->frame[in->frames & (AH_FRAMES - 1)];
    uint64_t stamp = atomic_load(&next->stamp); /* seq_cst: who is about to sleep looks here last */
    return stamp == in->frames + 1 ? next : NULL;
}
/* Copy what is beside it. Once. */
void ah_ring_read(const ah_ring_end *in, void *to, size_t nbytes);
/* Let go of it, with so many bytes beside it. The sender may be waiting. */
void ah_ring_pop(ah_ring_end *in, size_t trailing);

/* Before the memory of an offer is anything else's: who reads on will notice. */
void ah_rts_release(ah_p2p_region *own, uint64_t slot);
/* Whether all that was read up to now of what is offered there is good. */
bool ah_rts_holds(const ah_p2p_region *region, uint64_t slot, uint64_t id);

#endif
