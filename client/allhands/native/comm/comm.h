/* A communicator: one group of ranks that share memory, as one of them sees it.
 *
 * No Python in here: callers bring memory, a deadline and hooks. Every rank of a group makes the
 * same calls in the same order; calls that differ are found by their signatures and refused before
 * any output is touched. Each rank has one area of shared memory, mapped by all ranks, all zero at
 * first. collectives/collectives.h has the calls.
 */
#ifndef ALLHANDS_COMM_H
#define ALLHANDS_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/layout.h"

typedef enum {
    AH_OK,
    AH_TIMEOUT,     /* the deadline passed before `waiting` posted */
    AH_INTERRUPTED, /* ah_comm_interrupt was called, or the tick hook said so */
    AH_MISMATCH,    /* `offenders` made another call under this number; no output was touched */
    AH_ABANDONED,   /* `offenders` abandoned this very call (timeout, interrupt) */
    AH_DIFFERENT,   /* the results of `offenders` are unlike the others'; of all: no majority */
    AH_PENDING /* of a call that only tries: it has posted, and goes on when it is made again */
} ah_status;

/* How a call was carried out; Work.explain() names it. */
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

/* The limits that were measured best for a group of `size` ranks. */
ah_limits ah_default_limits(int size);

/* One call. `sequence` counts the group's calls from 1, without gaps but for those skipped. */
typedef struct {
    uint64_t sequence;
    uint64_t signature;
    int64_t deadline; /* nanoseconds on CLOCK_MONOTONIC */
    size_t nbytes;    /* about what each rank brings: a waiter yields for as long as that takes */

    /* Called at most once, before the call sleeps or moves much memory, and undone at its end by
     * `resume` (if it was called): the shell releases the GIL in it. May be NULL. */
    void (*pause)(void *owner);
    void (*resume)(void *owner);
    /* Called about every `tick_ns` while blocked, after `pause`; true interrupts. */
    bool (*tick)(void *owner, uint64_t waiting);
    int64_t tick_ns;
    /* Digest of this rank's result, where ranks are to compare theirs before the call ends; NULL:
     * they are not. All ranks must say the same. */
    uint64_t (*digest)(void *owner);
    void *owner;
    /* Wait for nobody: end in AH_PENDING instead. The same call, made again with this structure and
     * the same arguments, trying or not, goes on; no other call comes between. Trying begins where
     * ah_slot_is_free, and finds no mismatch: that is left to who waits. */
    bool only_tries;

    /* Out. */
    bool is_posted;     /* what this rank brings lies where the others find it; set by the caller
                         * too, for a call that was posted ahead */
    bool has_headers;   /* those of all ranks have been read */
    uint64_t waiting;   /* ranks that had not posted; AH_PENDING with none: only waiting helps */
    uint64_t offenders; /* of a mismatch, an abandoned call or different results */
    bool is_left;       /* set by the tick hook that interrupts: the call has not ended, and goes on
                         * when it is started again under its number */
    bool touches_output; /* outputs may be touched from here on, as data is there for them */
    ah_variant variant;
    void *unshared; /* a stopped peer could write to these pages: see ah_comm_unshare */
    size_t unshared_bytes;
} ah_call;

typedef struct ah_comm ah_comm;

/* Bytes of each rank's area for a group of `size`; sparse: untouched pages cost nothing. */
size_t ah_area_bytes(int size, const ah_limits *limits);

/* Make a communicator. `areas[r]` is rank r's area as this process maps it; `pids[r]` its process.
 * `heaps[r]`: rank r's shared heap of `heap_bytes` as mapped here (arrays in it are accessed in
 * place: the direct variants), or NULL. NULL when out of memory. */
ah_comm *ah_comm_new(int rank, int size, void *const areas[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_limits *limits);
void ah_comm_free(ah_comm *comm);
/* Leave the group: from here on, freeing included, nothing is written to the shared memory. */
void ah_comm_leave(ah_comm *comm);

/* Let calls up to that number end in AH_INTERRUPTED, one that is blocked now included. From any
 * thread, at any time. */
void ah_comm_interrupt(ah_comm *comm, uint64_t sequence);

/* Abandon calls up to that number, none of which is under way here. Ranks that number their calls
 * with gaps skip each gap before the call behind it. */
void ah_comm_skip(ah_comm *comm, uint64_t sequence);

/* These pages of the own heap are private memory from now on. A communicator does so itself, and
 * reports them in `unshared`, when a call is abandoned while a stopped peer could still write to
 * the array: the array keeps its address, with other pages under it. Other communicators of the
 * same heap must be told the same. An array in a heap should have its pages to itself. */
void ah_comm_unshare(ah_comm *comm, const void *at, size_t nbytes);

/* Whether cross-memory attach to every other rank works: reads a word of each process. */
bool ah_comm_probe_attach(ah_comm *comm);

#endif
