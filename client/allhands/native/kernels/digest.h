/* Digests of results, by which ranks find that theirs differ.
 *
 * Each word of the data goes into the digest by steps that are bijections of the word, and of what
 * was there before: data that differs in one word of four bytes has another digest for certain,
 * other data but for one case in 2^32 at most. Not against forgery. The same on all processors of
 * one byte order, as fast as memory is read.
 */
#ifndef ALLHANDS_DIGEST_H
#define ALLHANDS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* The digest of some data, behind that whose digest is `before`; 0: none. */
uint64_t ah_digest(uint64_t before, const void *data, size_t nbytes);

#endif
