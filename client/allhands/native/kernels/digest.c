#include "kernels/digest.h"

#include <string.h>

#include "kernels/kernels.h"

#define VECTORS 4
#define ODD UINT64_C(0x9e3779b97f4a7c15)

/* Of 32 bits each. Said as vectors, because compilers find none in a loop over them. */
typedef uint32_t vector __attribute__((vector_size(32)));
typedef struct {
    vector at[VECTORS];
} lanes;

static inline uint64_t step(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * ODD;
    return digest ^ digest >> 29;
}

/* Whole blocks of all lanes. */
static inline __attribute__((always_inline)) void take_blocks(lanes *all, const char *at,
                                                              const char *end) {
    lanes kept = *all; /* which nothing else can write: in registers */
    for (; at < end; at += sizeof kept) {
        for (int which = 0; which < VECTORS; which++) {
            vector words; /* one at a time: a whole block would be copied to memory first */
            memcpy(&words, at + (size_t)which * sizeof words, sizeof words);
            vector mixed = (kept.at[which] ^ words) * (uint32_t)(ODD >> 32);
            kept.at[which] = mixed << 13 | mixed >> 19;
        }
    }
    *all = kept;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void take_blocks_avx2(lanes *all, const char *at,
                                                             const char *end) {
    take_blocks(all, at, end);
}
#endif

static void take_blocks_here(lanes *all, const char *at, const char *end) {
#if defined(__x86_64__)
    if (ah_has_avx2()) {
        take_blocks_avx2(all, at, end);
        return;
    }
#endif
    take_blocks(all, at, end);
}

uint64_t ah_digest(uint64_t before, const void *data, size_t nbytes) {
    const char *at = data, *end = at + nbytes;
    uint64_t digest = nbytes, word;
    if (nbytes >= sizeof(lanes)) {
        lanes all;
        memset(&all, 0, sizeof all);
        const char *blocks_end = at + nbytes / sizeof all * sizeof all;
        take_blocks_here(&all, at, blocks_end);
        for (size_t pair = 0; pair < sizeof all; pair += sizeof word) {
            memcpy(&word, (char *)&all + pair, sizeof word);
            digest = step(digest, word);
        }
        at = blocks_end;
    }
    for (; (size_t)(end - at) >= sizeof word; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        digest = step(digest, word);
    }
    if (at < end) {
        word = 0;
        memcpy(&word, at, (size_t)(end - at));
        digest = step(digest, word);
    }
    return step(before, digest);
}
