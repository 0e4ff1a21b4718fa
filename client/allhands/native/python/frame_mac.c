#include "python/frame_mac.h"

#include "links/frame.h"

enum {
    DIGEST = 4,
    TAG = 16,
    LONG_BYTES = 512, /* payloads from here on are condensed */
};

static const uint8_t NONCE[12];

static bool set_hash(FrameMac *self, const uint8_t key[FRAME_MAC_KEY]) {
    EVP_MAC *mac = self->lib->MAC_fetch(NULL, "BLAKE2BMAC", NULL);
    if (mac == NULL) return false;
    self->hash = self->lib->MAC_CTX_new(mac);
    self->lib->MAC_free(mac);
    size_t nbytes = DIGEST;
    const OSSL_PARAM parameters[] = {
        {"size", OSSL_PARAM_UNSIGNED_INTEGER, &nbytes, sizeof nbytes, 0}, {NULL, 0, NULL, 0, 0}};
    return self->hash != NULL && self->lib->MAC_init(self->hash, key, FRAME_MAC_KEY, parameters);
}

static bool set_condenser(FrameMac *self, const uint8_t key[FRAME_MAC_KEY]) {
    self->condenser = self->lib->CIPHER_CTX_new();
    return self->condenser != NULL &&
           self->lib->EncryptInit_ex(self->condenser, self->lib->aes_256_gcm(), NULL, key, NONCE);
}

bool frame_mac_set(FrameMac *self, const uint8_t frames[FRAME_MAC_KEY],
                   const uint8_t payloads[FRAME_MAC_KEY]) {
    frame_mac_clear(self);
    self->lib = libcrypto_find();
    if (self->lib == NULL) return false;
    if (set_hash(self, frames) && set_condenser(self, payloads)) return true;
    self->lib->clear_error();
    frame_mac_clear(self);
    return false;
}

void frame_mac_clear(FrameMac *self) {
    if (self->lib != NULL) {
        self->lib->MAC_CTX_free(self->hash);
        self->lib->CIPHER_CTX_free(self->condenser);
    }
    *self = (FrameMac){0};
}

static bool condense(const FrameMac *self, const uint8_t *payload, size_t nbytes,
                     uint8_t tag[TAG]) {
    const Libcrypto *lib = self->lib;
    EVP_CIPHER_CTX *context = self->condenser;
    int written;
    return lib->EncryptInit_ex(context, NULL, NULL, NULL, NONCE) &&
           lib->EncryptUpdate(context, NULL, &written, payload, (int)nbytes) &&
           lib->EncryptFinal_ex(context, tag, &written) &&
           lib->CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG, tag);
}

static bool compute(const FrameMac *self, uint64_t number, const uint8_t *header,
                    const uint8_t *payload, size_t nbytes, uint8_t made[DIGEST]) {
    uint8_t tag[TAG], count[8];
    size_t length;
    if (nbytes >= LONG_BYTES) {
        if (!condense(self, payload, nbytes, tag)) return false;
        payload = tag;
        nbytes = sizeof tag;
    }
    for (int i = 0; i < 8; i++) count[i] = (uint8_t)(number >> 8 * i);
    const Libcrypto *lib = self->lib;
    return lib->MAC_init(self->hash, NULL, 0, NULL) && /* with the same key */
           lib->MAC_update(self->hash, count, sizeof count) &&
           lib->MAC_update(self->hash, header, AH_FRAME_HEADER) &&
           (nbytes == 0 || lib->MAC_update(self->hash, payload, nbytes)) &&
           lib->MAC_final(self->hash, made, &length, DIGEST) && length == DIGEST;
}

bool frame_mac_compute(FrameMac *self, uint64_t number, const uint8_t *header,
                       const uint8_t *payload, size_t nbytes, uint32_t *digest) {
    uint8_t made[DIGEST];
    if (nbytes > AH_FRAME_PAYLOAD) return false;
    if (!compute(self, number, header, payload, nbytes, made)) {
        self->lib->clear_error();
        return false;
    }
    *digest = 0;
    for (int i = 0; i < DIGEST; i++) *digest |= (uint32_t)made[i] << 8 * i;
    return true;
}
