#include "links/frame.h"

#include <string.h>

enum { VERSION = 1 };
enum { /* where fields begin */
       KIND = 3,
       EPOCH = 4,
       GROUP = 8,
       SEQUENCE = 16,
       STEP = 24,
       PART = 28,
       SIGNATURE = 32,
       TOTAL = 40,
       OFFSET = 48,
       LENGTH = 56,
       FLAGS = 60,
};
enum { HALF = 48 }; /* bits of total and offset, above which each has half of the digest */
#define BELOW ((UINT64_C(1) << HALF) - 1)

static void put(uint8_t *at, uint64_t value, int nbytes) {
    for (int i = 0; i < nbytes; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at, int nbytes) {
    uint64_t value = 0;
    for (int i = 0; i < nbytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

void ah_frame_pack(uint8_t *out, const ah_frame *frame) {
    memset(out, 0, AH_FRAME_HEADER);
    out[0] = 'A';
    out[1] = 'H';
    out[2] = VERSION;
    uint64_t low = 0, high = 0; /* of the digest */
    if (frame->flags & AH_FRAME_DIGEST) {
        low = (uint64_t)(frame->digest & 0xFFFF) << HALF;
        high = (uint64_t)(frame->digest >> 16) << HALF;
    }
    out[KIND] = frame->kind;
    put(out + EPOCH, frame->epoch, 4);
    put(out + GROUP, frame->group, 8);
    put(out + SEQUENCE, frame->sequence, 8);
    put(out + STEP, frame->step, 4);
    put(out + PART, frame->part, 4);
    put(out + SIGNATURE, frame->signature, 8);
    put(out + TOTAL, frame->total | low, 8);
    put(out + OFFSET, frame->offset | high, 8);
    put(out + LENGTH, frame->length, 4);
    put(out + FLAGS, frame->flags, 4);
}

bool ah_frame_unpack(const uint8_t *in, ah_frame *frame) {
    *frame = (ah_frame){
        .kind = in[KIND],
        .epoch = (uint32_t)get(in + EPOCH, 4),
        .group = get(in + GROUP, 8),
        .sequence = get(in + SEQUENCE, 8),
        .step = (uint32_t)get(in + STEP, 4),
        .part = (uint32_t)get(in + PART, 4),
        .signature = get(in + SIGNATURE, 8),
        .total = get(in + TOTAL, 8),
        .offset = get(in + OFFSET, 8),
        .length = (uint32_t)get(in + LENGTH, 4),
        .flags = (uint32_t)get(in + FLAGS, 4),
    };
    if (frame->flags & AH_FRAME_DIGEST) {
        frame->digest = (uint32_t)(frame->total >> HALF | frame->offset >> HALF << 16);
        frame->total &= BELOW;
        frame->offset &= BELOW;
    }
    return in[0] == 'A' && in[1] == 'H' && in[2] == VERSION && frame->length <= AH_FRAME_PAYLOAD;
}

bool ah_frame_digest(ah_digester *digester, uint64_t number, const ah_frame *frame,
                     const uint8_t *payload, uint32_t *digest) {
    uint8_t header[AH_FRAME_HEADER];
    ah_frame unsigned_frame = *frame;
    unsigned_frame.digest = 0;
    ah_frame_pack(header, &unsigned_frame);
    return digester != NULL &&
           digester->compute(digester, number, header, payload, frame->length, digest);
}
