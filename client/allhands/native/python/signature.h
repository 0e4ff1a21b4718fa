/* Parts of a call's signature: the same on every machine, unlike the hashes of Python's objects. */
#ifndef ALLHANDS_SIGNATURE_H
#define ALLHANDS_SIGNATURE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15u; /* splitmix64 (Steele, Lea & Flood 2014) */
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static inline uint64_t mix_in(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

/* Of a shape, dimension by dimension: begun with how many there are. 0 stands for none. */
static inline uint64_t shape_begun(size_t ndim) { return ndim + 1; }
static inline uint64_t shape_with(uint64_t hash, ptrdiff_t dim) {
    return mix_in(hash, (uint64_t)dim + 1);
}

/* Of a label of some bytes; of none it is 0. */
static inline uint64_t label_signature(const char *text, size_t nbytes) {
    if (nbytes == 0) return 0;
    uint64_t hash = mix(nbytes), word = 0;
    for (; nbytes > 8; nbytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        hash = mix_in(hash, word);
    }
    word = 0;
    memcpy(&word, text, nbytes);
    return mix(mix_in(hash, word));
}

#endif
