/* The header of a frame of a link: as in transport/frame.py, where the fields are explained. */
#ifndef ALLHANDS_LINKS_FRAME_H
#define ALLHANDS_LINKS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AH_FRAME_HEADER = 64,
    AH_FRAME_PAYLOAD = 1 << 20, /* the longest */
};

enum { /* kinds */
       AH_FRAME_DATA = 1,
       AH_FRAME_CTS = 2,
       AH_FRAME_RTS = 3,
       AH_FRAME_CREDIT = 5,
       AH_FRAME_BYE = 7,
       AH_FRAME_CALL = 8,
};

enum { /* flags */
       AH_FRAME_P2P = 1,
       AH_FRAME_DIGEST = 4, /* as in transport/digests.py */
};

typedef struct {
    uint8_t kind;
    uint32_t epoch;
    uint64_t group, sequence;
    uint32_t step, part;
    uint64_t signature, total, offset;
    uint32_t length, flags;
    uint32_t digest; /* 0 without the flag */
} ah_frame;

void ah_frame_pack(uint8_t *out, const ah_frame *frame);

/* False: no header, or one of a frame that is too long. Nothing else is checked. */
bool ah_frame_unpack(const uint8_t *in, ah_frame *frame);

/* Makes the digests of the frames of one direction of a link. */
typedef struct ah_digester ah_digester;
struct ah_digester {
    /* The digest of the frame of that number among those of its direction that have one; its header
     * has 0 for it. False: none can be made. */
    bool (*compute)(ah_digester *digester, uint64_t number, const uint8_t *header,
                    const uint8_t *payload, size_t nbytes, uint32_t *digest);
};

/* The digest that a frame has as that number, whatever digest it says; false: there is no digester,
 * or none can be made. */
bool ah_frame_digest(ah_digester *digester, uint64_t number, const ah_frame *frame,
                     const uint8_t *payload, uint32_t *digest);

#endif
