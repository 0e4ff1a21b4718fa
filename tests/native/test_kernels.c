/* What the tests in Python cannot see: that no byte outside is touched (under a sanitizer), that
 * the loops for every processor give the same bits, and copies past the caches. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/digest.h"
#include "kernels/kernels.h"

/* The kernels once more, as they are on processors of which nothing is known. */
#define ah_copy portable_copy
#define ah_digest portable_digest
#define ah_fold portable_fold
#define ah_has_avx2 portable_has_avx2
#define ah_instructions portable_instructions
#define ah_supports portable_supports
#define ah_type_size portable_type_size
#undef __x86_64__
#include "../../client/allhands/native/kernels/kernels.c"

uint64_t portable_digest(uint64_t before, const void *data, size_t nbytes);
#undef ODD
#include "../../client/allhands/native/kernels/digest.c"
#undef ah_copy
#undef ah_digest
#undef ah_fold
#undef ah_has_avx2
#undef ah_instructions
#undef ah_supports
#undef ah_type_size

#define CHECK(CONDITION, ...)                                                                      \
    do {                                                                                           \
        if (!(CONDITION)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #CONDITION);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t state = 88172645463325252;

static uint64_t random_bits(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Any bits; every third time all of an exponent, so that infinities and NaNs are not rare. */
static void fill(unsigned char *bytes, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) {
        const uint64_t bits = random_bits();
        bytes[i] = bits % 3 == 0 && i % 2 == 1 ? (unsigned char)(0x7c | bits >> 32)
                                               : (unsigned char)(bits >> 40);
    }
}

/* Memory of exactly this size, at an address that is `offset` past a multiple of 16. */
static unsigned char *exactly(size_t nbytes, size_t offset) {
    unsigned char *block = malloc(offset + nbytes + (offset + nbytes == 0));
    CHECK(block != NULL, "%zu bytes", nbytes);
    return block + offset;
}

static void test_all_processors_give_the_same_bits_within_bounds(void) {
    static const size_t counts[] = {0, 1, 2, 7, 8, 15, 16, 17, 33, 100, 1024, 1025, 2500};
    static const int ns[] = {1, 2, 3, 4, 5, 7, 8};
    for (int op = 0; op < AH_OPS; op++)
        for (int type = 0; type < AH_TYPES; type++) {
            CHECK(ah_supports(op, type) == portable_supports(op, type), "%d %d", op, type);
            if (!ah_supports(op, type)) continue;
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (size_t k = 0; k < sizeof ns / sizeof *ns; k++) {
                    const int n = ns[k];
                    const size_t count = counts[c], nbytes = count * ah_type_size(type);
                    const size_t offset = random_bits() % 16;
                    unsigned char *in[8], *out = exactly(nbytes, offset);
                    unsigned char *portable = exactly(nbytes, offset);
                    for (int i = 0; i < n; i++) fill(in[i] = exactly(nbytes, offset), nbytes);
                    ah_fold(op, type, out, (const void *const *)in, n, count, (size_t)n);
                    portable_fold(op, type, portable, (const void *const *)in, n, count, (size_t)n);
                    CHECK(memcmp(out, portable, nbytes) == 0, "op %d, type %d, n %d, count %zu", op,
                          type, n, count);
                    /* In the place of an operand. */
                    unsigned char *place = in[random_bits() % (unsigned)n];
                    ah_fold(op, type, place, (const void *const *)in, n, count, (size_t)n);
                    CHECK(memcmp(out, place, nbytes) == 0, "op %d, type %d, n %d, count %zu", op,
                          type, n, count);
                    for (int i = 0; i < n; i++) free(in[i] - offset);
                    free(out - offset);
                    free(portable - offset);
                }
        }
}

static void test_a_large_result_is_whole(void) {
    for (size_t offset = 0; offset < 32; offset += 4) {
        const size_t count = (size_t)5000011 + offset;
        float *a = malloc(count * sizeof *a), *b = malloc(count * sizeof *b);
        unsigned char *room = exactly(count * sizeof *a + 64, offset);
        CHECK(a != NULL && b != NULL, "no memory");
        for (size_t i = 0; i < count; i++) {
            a[i] = (float)(i % 1000003);
            b[i] = (float)offset;
        }
        memset(room, 0x5a, count * sizeof *a + 64);
        const void *const in[] = {a, b};
        ah_fold(AH_SUM, AH_FLOAT32, room, in, 2, count, 1);
        for (size_t i = 0; i < count; i++) {
            float x;
            memcpy(&x, room + i * sizeof x, sizeof x);
            CHECK(x == a[i] + b[i], "element %zu of %zu at offset %zu", i, count, offset);
        }
        for (size_t i = 0; i < 64; i++) CHECK(room[count * sizeof *a + i] == 0x5a, "byte %zu", i);
        free(room - offset);
        free(a);
        free(b);
    }
}

static void test_a_copy_is_whole_whichever_way_it_takes(void) {
    static const size_t sizes[] = {0, 1, 63, 64, 4096, 16383, 16384, 16385, 16447, 70001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t to = 0; to < 80; to += 7)
            for (size_t from = 0; from < 80; from += 9)
                for (int once = 0; once < 2; once++) {
                    const size_t nbytes = sizes[s];
                    unsigned char *source = exactly(nbytes, from), *room = exactly(nbytes + 2, to);
                    fill(source, nbytes);
                    room[0] = room[nbytes + 1] = 0xa5;
                    ah_copy(room + 1, source, nbytes, once);
                    CHECK(memcmp(room + 1, source, nbytes) == 0, "%zu bytes", nbytes);
                    CHECK(room[0] == 0xa5 && room[nbytes + 1] == 0xa5, "%zu bytes", nbytes);
                    free(source - from);
                    free(room - to);
                }
}

/* Those take another way whose target lies less than a vector behind its source in their pages. */
static void test_a_copy_is_whole_wherever_it_lies_in_its_pages(void) {
    static const size_t sizes[] = {0, 2047, 2048, 2049, 4096, 6145, 70001};
    enum { PAGE = 4096, ROOM = 20 * PAGE };
    unsigned char *source = aligned_alloc(PAGE, ROOM), *room = aligned_alloc(PAGE, ROOM);
    fill(source, ROOM);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t from = 0; from < 40; from += 13)
            for (size_t behind = 0; behind < 34; behind++) {
                const size_t nbytes = sizes[s], to = 1 + from + behind;
                room[to - 1] = room[to + nbytes] = 0xa5;
                ah_copy(room + to, source + 1 + from, nbytes, false);
                CHECK(memcmp(room + to, source + 1 + from, nbytes) == 0, "%zu, %zu", nbytes, to);
                CHECK(room[to - 1] == 0xa5 && room[to + nbytes] == 0xa5, "%zu, %zu", nbytes, to);
            }
    free(source);
    free(room);
}

/* Any bit, at any length, near the ends of what goes in at once too. */
static void test_a_digest_tells_of_every_bit_and_of_the_length(void) {
    static const size_t sizes[] = {1, 4, 7, 8, 127, 128, 131, 136, 255, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t nbytes = sizes[s];
        unsigned char *block = exactly(nbytes, s);
        fill(block, nbytes);
        const uint64_t digest = ah_digest(3, block, nbytes);
        CHECK(digest == portable_digest(3, block, nbytes), "%zu bytes", nbytes);
        CHECK(digest != ah_digest(4, block, nbytes), "%zu bytes", nbytes);
        for (size_t bit = 0; bit < 8 * nbytes; bit++) {
            block[bit / 8] ^= (unsigned char)(1 << bit % 8);
            CHECK(ah_digest(3, block, nbytes) != digest, "bit %zu of %zu bytes", bit, nbytes);
            block[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        block[nbytes - 1] = 0;
        CHECK(ah_digest(3, block, nbytes) != ah_digest(3, block, nbytes - 1), "%zu bytes", nbytes);
        free(block - s);
    }
}

int main(void) {
    test_all_processors_give_the_same_bits_within_bounds();
    test_a_large_result_is_whole();
    test_a_copy_is_whole_whichever_way_it_takes();
    test_a_copy_is_whole_wherever_it_lies_in_its_pages();
    test_a_digest_tells_of_every_bit_and_of_the_length();
    return 0;
}
