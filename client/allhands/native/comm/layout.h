/* The memory that the ranks of a group share: slots, doorbells, progress words, staging buffers.
 *
 * Laws of this memory, on which every variant of every collective rests:
 *
 * 1. Every word has one writer at a time, and that is the rank in whose area it lies (but for the
 *    doorbell, see wait.h). Nothing is ever locked, so a rank that dies leaves nothing locked.
 * 2. A rank posts each call in the slot of that call's number: data first, the number last
 *    (release). A rank that reads that number (acquire) sees the data.
 * 3. The slot of call s is overwritten for call s + AH_SLOTS_PER_RANK only when every rank has
 *    posted, or abandoned, call s + 1 + AH_AHEAD: then no rank is in call s, since none posts more
 *    than AH_AHEAD calls beyond the one that it is in, and none reads data that changes under it.
 *    So a rank that abandons a call and goes on leaves what it posted to a late one.
 * 4. Staging buffers are written only after every rank has posted this very call: none is in an
 *    older one, because what is posted ahead needs no staging. (pairwise_swap.h, mailboxes.h and
 *    staged_copy.h have exceptions, and why they are none.)
 * 5. Progress words count up for ever; a call's header has the base from which they count in it. So
 *    nothing is reset between calls, and no number of an older call passes for one of this call.
 * 6. A rank publishes that it abandons a call (`abandoned`) before its caller may touch its buffers
 *    again. A rank that reads another's buffers in place looks at that word afterwards, and
 *    believes what it read only if it is still behind. Writers are waited for: heap_access.h.
 */
#ifndef ALLHANDS_LAYOUT_H
#define ALLHANDS_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Flags that are waited on are shared between processes, so they must be true atomics. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "atomics take locks here");

#define AH_MAX_RANKS 64 /* sets of ranks are bits of a uint64_t */
#define AH_BIT(rank) (UINT64_C(1) << (rank))
#define AH_CACHE_LINE 64
/* A power of two. A root may be so many calls but AH_AHEAD ahead of its readers, which need the
 * processor less often the more they find. */
#define AH_SLOTS_PER_RANK 128
/* How many small calls a rank may post beyond the one that it is in. */
#define AH_AHEAD 32

/* One call of one rank. */
typedef struct {
    _Alignas(AH_CACHE_LINE) _Atomic uint64_t sequence;
    uint64_t signature;
    unsigned char small[AH_CACHE_LINE - 16]; /* up to so many bytes of data: one line says all */
    /* Of calls whose results are compared: the number, last (release), and the result's digest. */
    _Alignas(AH_CACHE_LINE) _Atomic uint64_t digested;
    uint64_t digest;
} ah_slot;

/* What a rank owns: its flags, then its slots, then a body for each, of the tables of ragged calls
 * and what data its slot has no room for, then its staging buffers. Flags are apart by two lines
 * each, because processors fetch neighbours in pairs. Small calls touch no body. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint32_t doorbell;  /* see wait.h */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t abandoned; /* last call that this rank abandoned */
    _Atomic int32_t cpu;              /* where this rank last waited, + 1; see cpu_balance.h */
    _Atomic int64_t delayed;          /* when it last yielded there for long */
    _Atomic uint64_t nonce, nonce_at; /* the one lies at the other, in the right process */
    /* Call in which it accesses other ranks' heaps now: see heap_access.h. */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t access_epoch;
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t produced; /* steps of data that others may read */
    _Atomic uint64_t consumed; /* steps of other ranks' data that it has read */
    /* The last call in which it has read all that others had in staging buffers of that parity. */
    _Atomic uint64_t taken[2];
    _Alignas(2 * AH_CACHE_LINE) char end[];
} ah_area;

/* What a rank posts in the slot's first line when the data is not in the slot. */
typedef struct {
    uint64_t flags;
    uint64_t where; /* of its buffer: offset in its heap, else address */
    uint64_t base;  /* `produced` and `consumed` count from here in this call */
    uint64_t phase; /* which staging comes first: see pairwise_swap.h, staged_copy.h */
    uint64_t even;  /* bytes of every piece, if AH_EVEN; of the one message, if AH_SAME */
} ah_call_header;
_Static_assert(sizeof(ah_call_header) <= sizeof((ah_slot *)0)->small, "it fits in the first line");

enum {
    AH_CAN_ATTACH = 1,  /* cross-memory attach to all other ranks works for this one */
    AH_IN_HEAP = 2,     /* its buffer (all of them) lies in its heap: `where` is an offset */
    AH_PHASE_KNOWN = 4, /* `phase` is as it was left by a call that ended well */
    AH_EARLY = 8,       /* its first step is produced already */
    AH_IN_SLOT = 16,    /* its data is in the slot, although other ranks' may not be */
    AH_EVEN = 32,       /* no table of sizes: all are `even` */
    AH_SAME = 64,       /* exchange: all other ranks get the same, which is in the slot once */
    AH_CROWDED = 128,   /* ranks outnumber the processors that it may run on */
};

static inline size_t ah_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline size_t ah_min(size_t a, size_t b) { return a < b ? a : b; }
/* Whether a set has one rank. */
static inline bool ah_is_single(uint64_t ranks) { return ranks && !(ranks & (ranks - 1)); }

/* Three tables of a number per rank: where, bytes sent, bytes received. */
#define AH_TABLES (3 * AH_MAX_RANKS * sizeof(uint64_t))

/* After reading what another rank will write again, as its only reader: write back a word of each
 * line, as it was. Lines that a core has written (dirty ones) pass to another at full speed, lines
 * that it has only read do not: their owner's next write goes at 2 GB/s between distant processors,
 * instead of 45. Only before the owner may write again, so it is no second writer. */
static inline void ah_dirty_lines(const char *at, size_t nbytes) {
    uintptr_t from = ah_round_up((uintptr_t)at, AH_CACHE_LINE), to = (uintptr_t)at + nbytes;
    for (; from + AH_CACHE_LINE <= to; from += AH_CACHE_LINE) {
        _Atomic uint64_t *word = (_Atomic uint64_t *)from;
        atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed),
                              memory_order_relaxed);
    }
}

/* Ask for a line to be written soon. */
static inline void ah_prefetch_to_write(const void *at) {
#ifdef __x86_64__ /* compilers do so only for processors that they are told of; on others a no-op  \
                   */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch(at, 1);
#endif
}

#endif
