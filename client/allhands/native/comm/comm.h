/* Collectives of ranks that share memory: one lane is one group, as one rank sees it.
 *
 * No Python in here: callers bring memory, a deadline and hooks. Every rank of a group makes the
 * same calls in the same order; what differs is found by signature and refused before any output is
 * touched. Memory of a lane is one area per rank, each mapped by all ranks, all zero at first.
 */
#ifndef ALLHANDS_COMM_H
#define ALLHANDS_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/kernels.h"

#define AH_MAX_RANKS 64 /* sets of ranks are bits of a uint64_t */
/* Slots of a rank, a power of two: one more than the calls that a root may be ahead of its readers,
 * which need the processor less often the more they find. */
#define AH_SLOTS_PER_RANK 16

typedef enum {
    AH_OK,
    AH_TIMEOUT,     /* the deadline passed; `waiting` says for whom */
    AH_INTERRUPTED, /* ah_comm_interrupt was called, or the tick hook said so */
    AH_MISMATCH,    /* `offenders` made another call under this number; no output was touched */
    AH_ABANDONED /* `offenders` gave this very call up (timeout, interrupt) while it was under way
                  */
} ah_status;

/* How a call was carried out; what Work.explain() tells. */
typedef enum {
    AH_NONE,
    AH_SLOTS,
    AH_STAGED,
    AH_SWAP,
    AH_MAILBOXES,
    AH_DIRECT,
    AH_ATTACH
} ah_variant;

/* Limits that choose the variant; all ranks of a group must have the same. Bytes. */
typedef struct {
    size_t slot_max;   /* slots up to this many bytes of a rank's contribution */
    size_t chunk;      /* of the staging buffers of large calls */
    size_t attach_min; /* cross-memory attach from this size; SIZE_MAX: never */
} ah_limits;

/* What was measured best; `size` ranks. */
ah_limits ah_default_limits(int size);

/* One call. `sequence` counts the lane's calls from 1, without gaps but for what is skipped. */
typedef struct {
    uint64_t sequence;
    uint64_t signature;
    int64_t deadline; /* nanoseconds on CLOCK_MONOTONIC */
    size_t
        nbytes; /* about what each rank brings: who waits stays awake for as long as that takes */

    /* Called at most once, before the call sleeps or moves much memory, and undone at its end by
     * `resume` (if it was called). The shell lets the GIL go in it. May be NULL. */
    void (*pause)(void *owner);
    void (*resume)(void *owner);
    /* Called about every `tick` nanoseconds while blocked, after `pause`; true interrupts. */
    bool (*tick)(void *owner, uint64_t waiting);
    int64_t tick_ns;
    void *owner;

    /* Out. */
    uint64_t waiting;   /* ranks that had not come */
    uint64_t offenders; /* of a mismatch or an abandoned call */
    bool all_arrived;   /* all ranks are in this very call: outputs may be touched from here on */
    ah_variant variant;
    void *unshared; /* a peer hangs where it could write to these pages: see ah_comm_unshare */
    size_t unshared_bytes;
} ah_call;

typedef struct ah_comm ah_comm;

/* Bytes of each rank's area for a group of `size`; sparse: untouched pages cost nothing. */
size_t ah_area_bytes(int size, const ah_limits *limits);

/* Make a lane. `areas[r]` is rank r's area as this process maps it; `pids[r]` its process.
 * `heap[r]`/`heap_bytes`: rank r's shared heap as mapped here (arrays in it are used where they
 * lie: the direct variants), or NULL. NULL when out of memory. */
ah_comm *ah_comm_new(int rank, int size, void *const areas[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_limits *limits);
void ah_comm_free(ah_comm *comm);
/* Say goodbye to the others; freeing it writes nothing to the memory then. */
void ah_comm_leave(ah_comm *comm);

/* Let calls up to that number end in AH_INTERRUPTED, one that is blocked now included. From any
 * thread, at any time. */
void ah_comm_interrupt(ah_comm *comm, uint64_t sequence);

/* Say that this rank makes no calls up to that number any more; those that it made have ended.
 * Ranks that number their calls with gaps skip each gap before the call behind it. */
void ah_comm_skip(ah_comm *comm, uint64_t sequence);

/* These pages of the own heap are ordinary memory from now on. A lane does so itself, and tells in
 * `unshared`, when a call is given up while a peer that hangs could still write to the array: the
 * array stays where it is, with other pages under it. Other lanes of the same heap must be told the
 * same. An array in a heap should have its pages to itself. */
void ah_comm_unshare(ah_comm *comm, const void *at, size_t nbytes);

/* Whether cross-memory attach to every other rank works; asks the kernel, reads a word of each. */
bool ah_comm_probe_attach(ah_comm *comm);

/* The collectives. On any status but AH_OK outputs may be undefined if `met` is set, are untouched
 * else, and the next call on the lane is correct. Not for two threads at once. A rooted call whose
 * like all ranks have made here before may end on ranks that wait for nobody. */
ah_status ah_barrier(ah_comm *, ah_call *);
ah_status ah_all_reduce(ah_comm *, ah_call *, ah_op, ah_type, void *x, size_t count);
/* The same in two steps, where ah_all_reduce_splits says so: `start` gives this rank's part and
 * does not wait for the others' (but for ranks that are several calls behind). Unless it ends in
 * AH_OK there is nothing to finish. No other call of the lane comes between the two. */
bool ah_all_reduce_splits(const ah_comm *, ah_type, size_t count);
/* Whether a call with that number can start without waiting for ranks that are far behind. */
bool ah_slot_is_free(const ah_comm *, uint64_t sequence);
ah_status ah_all_reduce_start(ah_comm *, ah_call *, ah_op, ah_type, const void *x, size_t count);
ah_status ah_all_reduce_finish(ah_comm *, ah_op, ah_type, void *x, size_t count);
ah_status ah_reduce(ah_comm *, ah_call *, ah_op, ah_type, const void *in, void *out, size_t count,
                    int root); /* out: root only, may be in */
ah_status ah_reduce_scatter(ah_comm *, ah_call *, ah_op, ah_type, const void *const in[], void *out,
                            size_t count); /* in[r]: count elements for rank r */
ah_status ah_broadcast(ah_comm *, ah_call *, void *x, size_t nbytes, int root);
ah_status ah_gather(ah_comm *, ah_call *, const void *in, void *const out[], size_t nbytes,
                    int root);
ah_status ah_scatter(ah_comm *, ah_call *, const void *const in[], void *out, size_t nbytes,
                     int root);
ah_status ah_all_gather(ah_comm *, ah_call *, const void *in, void *const out[], size_t nbytes);
/* send[r] bytes at in[r] go to rank r, recv[r] bytes come to out[r] from it; what a rank sends to
 * another must be what that one expects, else AH_MISMATCH. in and out never overlap. */
ah_status ah_all_to_all(ah_comm *, ah_call *, const void *const in[], const size_t send[],
                        void *const out[], const size_t recv[]);

#endif
