/* The digests of the frames of one direction of a link, by OpenSSL: those of LinkKey in
 * transport/digests.py. */
#ifndef ALLHANDS_FRAME_MAC_H
#define ALLHANDS_FRAME_MAC_H

#include <stdbool.h>
#include <stdint.h>

#include "python/libcrypto.h"

enum { FRAME_MAC_KEY = 32 }; /* bytes of either key */

typedef struct {
    const Libcrypto *lib;      /* NULL: it is not set */
    EVP_MAC_CTX *hash;         /* keyed BLAKE2b of 32 bits */
    EVP_CIPHER_CTX *condenser; /* AES-GMAC of payloads that are not short */
} FrameMac;

/* Set the keys of frames and of payloads; false: OpenSSL lacks something, nothing is set. To be
 * called with the GIL; so is the next. */
bool frame_mac_set(FrameMac *self, const uint8_t frames[FRAME_MAC_KEY],
                   const uint8_t payloads[FRAME_MAC_KEY]);

void frame_mac_clear(FrameMac *self);

/* Compute the digest of the frame of that number; false: OpenSSL cannot. */
bool frame_mac_compute(FrameMac *self, uint64_t number, const uint8_t *header,
                       const uint8_t *payload, size_t nbytes, uint32_t *digest);

#endif
