#define _GNU_SOURCE
#include "python/libcrypto.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static bool load(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* as POSIX has it: a pointer to a function is one */
    return found != NULL;
}

static bool load_all(void *library, Libcrypto *to) {
#define LOAD(name) load(library, "EVP_" #name, &to->name)
    return LOAD(MAC_fetch) && LOAD(MAC_CTX_new) && LOAD(MAC_CTX_free) && LOAD(MAC_free) &&
           LOAD(MAC_init) && LOAD(MAC_update) && LOAD(MAC_final) && LOAD(aes_256_gcm) &&
           LOAD(CIPHER_CTX_new) && LOAD(CIPHER_CTX_free) && LOAD(CIPHER_CTX_ctrl) &&
           LOAD(EncryptInit_ex) && LOAD(EncryptUpdate) && LOAD(EncryptFinal_ex) &&
           load(library, "ERR_clear_error", &to->clear_error);
#undef LOAD
}

const Libcrypto *libcrypto_find(void) {
    static Libcrypto functions; /* the same for the whole process, once they are found */
    static enum { UNKNOWN, FOUND, MISSING } state;
    if (state == UNKNOWN) {
        void *library = dlopen("libcrypto.so.3", RTLD_LAZY | RTLD_LOCAL);
        state = library != NULL && load_all(library, &functions) ? FOUND : MISSING;
    }
    return state == FOUND ? &functions : NULL;
}
