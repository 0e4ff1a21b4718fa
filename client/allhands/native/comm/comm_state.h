/* Inside of a lane: how the areas are laid out, and how a rank tells the others what it calls.
 *
 * Laws of the shared memory, on which every variant rests:
 *
 * 1. Every word has one writer at a time, and flags have only the rank whose area holds them (but
 *    for the doorbell, see wait.h).
 *    Nothing is ever locked, so a rank that dies leaves nothing locked.
 * 2. A rank posts each call in the slot of that call's number, data first, the number last
 *    (release). Who reads that number in it (acquire) sees the data.
 * 3. The slot of call s is overwritten for call s + AH_SLOTS_PER_RANK only when every rank has
 * posted, or given up, call s + 1: then nobody is in call s, and nobody ever reads data that
 * changes under it. So an owner that gives a call up and goes on leaves what it posted intact for a
 * late rank.
 * 4. Staging memory is written only after every rank has posted this very call: nobody is in an
 *    older one. (pairwise_swap.h has the one exception, and why it is none.)
 * 5. Progress words count up for ever; a call's header says from where they count in it. So nothing
 *    is reset between calls, and no number of an older call can be taken for one of this call.
 * 6. Who gives a call up says so (`abandoned`) before its caller may touch its buffers again. Who
 *    reads another rank's buffers where they lie looks at that word afterwards, and believes what
 *    it read only if it is still behind. Who writes to them is waited for: see heap_access.h.
 */
#ifndef ALLHANDS_COMM_STATE_H
#define ALLHANDS_COMM_STATE_H

#include <stdatomic.h>

#include "comm/comm.h"

/* Flags that are waited on are shared between processes, so they must be true atomics. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "atomics take locks here");

#define AH_CACHE_LINE 64
#define AH_MAX_UNSHARED 8
#define AH_KNOWN_SIGNATURES 256

typedef struct {
    _Alignas(AH_CACHE_LINE) _Atomic uint64_t sequence;
    uint64_t signature;
    unsigned char small[AH_CACHE_LINE - 16]; /* up to so many bytes of data: one line says all */
    /* then the tables of ragged calls, then data: see ah_slot_tables, ah_slot_data */
} ah_slot;

/* Apart by two lines each, because processors fetch neighbours in pairs. */
typedef struct {
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint32_t doorbell;  /* see wait.h */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t abandoned; /* last call that this rank gave up */
    _Atomic int32_t cpu;              /* where this rank last waited, + 1; see cpu_balance.h */
    _Atomic int64_t delayed;          /* when it last yielded there for long */
    _Atomic uint64_t nonce, nonce_at; /* the one lies at the other, in the right process */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t
        access_epoch; /* call in which it touches others' heaps now */
    _Alignas(2 * AH_CACHE_LINE) _Atomic uint64_t
        produced;              /* steps put into staging (or ready in its heap) */
    _Atomic uint64_t consumed; /* steps that this rank has used up of the others' */
    _Alignas(2 * AH_CACHE_LINE) char end[];
} ah_area;

/* What a rank tells in the slot's first line when the data is not in the slot. */
typedef struct {
    uint64_t flags;
    uint64_t where; /* of its buffer: offset in its heap, else address */
    uint64_t base;  /* `put` and `done` count from here in this call */
    uint64_t phase; /* of the exchange's buffers: see pairwise_swap.h */
    uint64_t even;  /* all_to_all: bytes of every piece, if AH_EVEN */
} ah_call_header;
_Static_assert(sizeof(ah_call_header) <= sizeof((ah_slot *)0)->small,
               "terms fit in the first line");

enum {
    AH_CAN_ATTACH = 1,  /* attaching to all others works for this rank */
    AH_IN_HEAP = 2,     /* its buffer (all of them) lies in its heap: `where` is an offset */
    AH_PHASE_KNOWN = 4, /* `phase` is as it was left by a call that ended well */
    AH_EARLY = 8,       /* its first step is put already */
    AH_IN_SLOT = 16,    /* its data is in the slot, although others' may not be */
    AH_EVEN = 32,       /* no table of sizes: all are `even` */
};

struct ah_comm {
    int rank, size;
    uint64_t others; /* bit of every rank but this one */
    ah_limits limits;
    size_t heap_bytes;
    size_t slot_stride;     /* from slot to slot */
    size_t staging_offset;  /* where staging begins in each area */
    size_t box_bytes;       /* bytes of one box of staging */
    bool oversubscribed;    /* more ranks than processors */
    int64_t next_migration; /* to another processor: not before */
    int previous_cpu;       /* the one left last */
    int64_t
        no_yield_until; /* others have work to do for the own processor: sleep rather than yield */
    int failed_spins;   /* spinning was, so many waits ago; 0: it is not */
    bool can_attach;

    _Atomic uint64_t interrupted; /* calls up to this number are to end */
    uint64_t nonce;

    uint64_t produced, consumed; /* as last published */
    uint64_t base;               /* own, in this call */
    uint64_t phase;              /* running number of the exchange's next step */
    bool phase_known;
    bool has_left;       /* said goodbye */
    bool boxes_returned; /* every box that this rank wrote last is back: see mailboxes.h */

    ah_call *call; /* in progress */
    bool exposes;  /* others may touch our heap in it */
    void *exposed; /* and write here */
    size_t exposed_bytes;
    struct {
        uintptr_t from, to;
    } unshared[AH_MAX_UNSHARED]; /* parts of the own heap that are no longer; merged when too many
                                  */
    int unshared_count;
    bool paused;
    int64_t next_tick;

    ah_area *area[AH_MAX_RANKS];
    char *heap[AH_MAX_RANKS];
    pid_t pid[AH_MAX_RANKS];
    uint64_t reached[AH_MAX_RANKS]; /* each rank has posted or given up at least this call */
    uint64_t known_signatures[AH_KNOWN_SIGNATURES]; /* signatures of rooted calls that all ranks
                                                       were seen to make */
    ah_call_header header[AH_MAX_RANKS];            /* of the call in progress, own among them */
};

#define AH_BIT(rank) (UINT64_C(1) << (rank))

static inline size_t ah_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static inline size_t ah_min(size_t a, size_t b) { return a < b ? a : b; }

static inline ah_slot *ah_slot_of(const ah_comm *comm, int rank, uint64_t sequence) {
    return (ah_slot *)(comm->area[rank]->end +
                       (sequence & (AH_SLOTS_PER_RANK - 1)) * comm->slot_stride);
}

/* Staging is used, or may be by others: no box can be taken for free before a call is met. */
static inline void ah_forget_phase(ah_comm *comm) {
    comm->phase_known = comm->boxes_returned = false;
}

/* Three tables of a number per rank: where, bytes sent, bytes received. */
static inline uint64_t *ah_slot_table(ah_slot *slot, int which) {
    return (uint64_t *)(slot + 1) + which * AH_MAX_RANKS;
}
#define AH_TABLES (3 * AH_MAX_RANKS * sizeof(uint64_t))

/* Data of up to `nbytes` in a slot: in its first line if it fits, else behind the tables. */
static inline char *ah_slot_data(ah_slot *slot, size_t nbytes) {
    return nbytes <= sizeof slot->small ? (char *)slot->small : (char *)(slot + 1) + AH_TABLES;
}

/* Box of staging in `owner`'s area, of the pair that it is in with `other`. */
static inline char *ah_staging_box(const ah_comm *comm, int owner, int other, int parity) {
    return (char *)comm->area[owner] + comm->staging_offset +
           ((size_t)parity * (size_t)comm->size + (size_t)other) * comm->box_bytes;
}

/* After reading what another rank will write again, as its only reader: write back a word of each
 * line, as it was. Lines that a core has written pass to another at full speed, lines that it has
 * only read do not: their owner's next write goes at 2 GB/s between distant processors, instead of
 * 45. Only before the owner may write again, so it is no second writer. */
static inline void ah_dirty_lines(const char *at, size_t nbytes) {
    uintptr_t from = ah_round_up((uintptr_t)at, AH_CACHE_LINE), to = (uintptr_t)at + nbytes;
    for (; from + AH_CACHE_LINE <= to; from += AH_CACHE_LINE) {
        _Atomic uint64_t *word = (_Atomic uint64_t *)from;
        atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed),
                              memory_order_relaxed);
    }
}

/* Start a call: refused (AH_INTERRUPTED) or AH_OK. Every started call goes through ah_call_finish.
 */
ah_status ah_call_start(ah_comm *comm, ah_call *call);
ah_status ah_call_finish(ah_comm *comm, ah_status status);

/* The signature of this call with what this file knows of it: never trust sizes to a caller's. */
uint64_t ah_sign_call(const ah_call *call, int operation, uint64_t a, uint64_t b, uint64_t c);

/* This call's own slot, waiting until it may be overwritten. */
ah_status ah_acquire_slot(ah_comm *comm, ah_slot **slot);
/* Publish it. */
void ah_post(ah_comm *comm, ah_slot *slot, uint64_t signature);
/* Wait until these ranks have posted this call, and compare. */
ah_status ah_await_posted(ah_comm *comm, uint64_t ranks, uint64_t signature);
/* The same in a rooted call, where no more need be awaited than these ranks (perhaps none) once all
 * were seen to make a call like it: till then all are, so that who calls something else is refused
 * by every rank, and not only by those that wait for it. */
ah_status ah_await_posted_rooted(ah_comm *comm, uint64_t ranks, uint64_t signature);
/* Compare with whoever has posted already; does not wait. */
ah_status ah_check_posted(ah_comm *comm, uint64_t signature);

/* Post terms (flags, where, even are the caller's) and wait for everybody's. */
ah_status ah_exchange_headers(ah_comm *comm, uint64_t signature, ah_call_header header);
/* The same in two steps, for who fills tables of the slot between. */
void ah_post_header(ah_comm *comm, ah_slot *slot, uint64_t signature, ah_call_header header);
ah_status ah_await_headers(ah_comm *comm, uint64_t signature);

/* Publish that this rank has put, or used up, so many steps of this call. */
void ah_publish_produced(ah_comm *comm, uint64_t steps);
void ah_publish_consumed(ah_comm *comm, uint64_t steps);

/* `where` of a buffer: AH_IN_HEAP and its offset, or 0 and its address. */
uint64_t ah_locate_buffer(const ah_comm *comm, const void *at, size_t nbytes, uint64_t *where);
/* The same for a buffer per rank, the own left out; `each` has their sizes, or NULL: `nbytes`. */
uint64_t ah_locate_buffers(const ah_comm *comm, const void *const at[], const size_t each[],
                           size_t nbytes, uint64_t where[]);
/* The place in `rank`'s heap, or NULL if it would reach out of it. */
char *ah_heap_address(const ah_comm *comm, int rank, uint64_t offset, size_t nbytes);

#endif
