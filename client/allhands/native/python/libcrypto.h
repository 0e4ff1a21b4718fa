/* The functions of OpenSSL 3's libcrypto that digests of frames need.
 *
 * The library is the one of the process, which Python's own modules for hashes and TLS have loaded
 * unless they contain it, else the one of the system. It is looked for when it is needed and not
 * linked, so that wheels do without a copy that would miss its security updates.
 */
#ifndef ALLHANDS_LIBCRYPTO_H
#define ALLHANDS_LIBCRYPTO_H

#include <stddef.h>

typedef struct evp_mac_st EVP_MAC;
typedef struct evp_mac_ctx_st EVP_MAC_CTX;
typedef struct evp_cipher_st EVP_CIPHER;
typedef struct evp_cipher_ctx_st EVP_CIPHER_CTX;
typedef struct engine_st ENGINE;

/* OSSL_PARAM(3) */
typedef struct {
    const char *key;
    unsigned int data_type;
    void *data;
    size_t data_size, return_size;
} OSSL_PARAM;

enum {
    OSSL_PARAM_UNSIGNED_INTEGER = 2,
    EVP_CTRL_AEAD_GET_TAG = 0x10,
};

/* Its functions, by their names in the library without EVP_. */
typedef struct {
    EVP_MAC *(*MAC_fetch)(void *context, const char *algorithm, const char *properties);
    EVP_MAC_CTX *(*MAC_CTX_new)(EVP_MAC *mac);
    void (*MAC_CTX_free)(EVP_MAC_CTX *context);
    void (*MAC_free)(EVP_MAC *mac);
    int (*MAC_init)(EVP_MAC_CTX *context, const unsigned char *key, size_t key_bytes,
                    const OSSL_PARAM parameters[]);
    int (*MAC_update)(EVP_MAC_CTX *context, const unsigned char *data, size_t nbytes);
    int (*MAC_final)(EVP_MAC_CTX *context, unsigned char *out, size_t *nbytes, size_t room);
    const EVP_CIPHER *(*aes_256_gcm)(void);
    EVP_CIPHER_CTX *(*CIPHER_CTX_new)(void);
    void (*CIPHER_CTX_free)(EVP_CIPHER_CTX *context);
    int (*CIPHER_CTX_ctrl)(EVP_CIPHER_CTX *context, int command, int argument, void *pointer);
    int (*EncryptInit_ex)(EVP_CIPHER_CTX *context, const EVP_CIPHER *cipher, ENGINE *engine,
                          const unsigned char *key, const unsigned char *nonce);
    int (*EncryptUpdate)(EVP_CIPHER_CTX *context, unsigned char *out, int *nbytes,
                         const unsigned char *data, int data_bytes);
    int (*EncryptFinal_ex)(EVP_CIPHER_CTX *context, unsigned char *out, int *nbytes);
    void (*clear_error)(void); /* of ERR_: what failed stays in a queue that TLS looks at */
} Libcrypto;

/* The library; NULL: there is none. To be called with the GIL. */
const Libcrypto *libcrypto_find(void);

#endif
