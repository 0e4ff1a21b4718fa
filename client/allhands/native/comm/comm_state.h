/* Inside of a communicator: the state that its files share. comm.h has what callers see of it. */
#ifndef ALLHANDS_COMM_STATE_H
#define ALLHANDS_COMM_STATE_H

#include "comm/comm.h"

#define AH_MAX_UNSHARED 8
#define AH_KNOWN_SIGNATURES 256

/* How far a call has come in its steps, which it stops between if it only tries. */
typedef struct {
    bool is_begun;
    bool is_ready;       /* what is awaited first is there */
    uint64_t phase;      /* of a swap */
    uint64_t step;       /* the next one */
    uint64_t unproduced; /* the first step that this rank has not produced */
    bool is_folded;      /* this rank's part of a reduction's step */
    int peer;            /* whose part of the result is next, counted from this rank */
} ah_course;

/* What a staging buffer was filled with last; no readers: nothing that anybody will read. */
typedef struct {
    uint64_t readers;
    uint64_t sequence; /* of the call */
} ah_fill;

struct ah_comm {
    int rank, size;
    uint64_t others; /* bit of every rank but this one */
    ah_limits limits;
    size_t attach_alone_min; /* from this size also unless all ranks are crowded */
    size_t heap_bytes;
    size_t body_stride;     /* from the body of a slot to the next */
    size_t staging_offset;  /* of the staging boxes in each area */
    size_t box_bytes;       /* of one staging box */
    bool oversubscribed;    /* more ranks than processors */
    bool has_spare_cpu;     /* fewer ranks than processors: a second thread has one too */
    int ranks_per_cpu;      /* rounded up */
    int64_t next_migration; /* to another processor: not before */
    int previous_cpu;       /* from which this rank migrated last */
    int64_t no_yield_until; /* the own processor has other work to do: sleep rather than yield */
    int failed_spins;       /* waits since spinning was of no use; 0: it is of use */
    bool can_attach;

    _Atomic uint64_t interrupted; /* calls up to this number are to end */
    uint64_t nonce;

    uint64_t produced, consumed; /* as last published */
    uint64_t base;               /* own, in this call */
    uint64_t phase;              /* running number of the next step of a swap */
    bool phase_known;
    bool has_left;
    bool boxes_returned; /* every box that this rank wrote last is back: see mailboxes.h */
    ah_fill fill[2];     /* by parity, of this rank's staging; see staged_copy.h */
    uint64_t fills;      /* running number of the next, whose parity it has */
    bool fills_known;    /* nobody has used this rank's staging otherwise */

    ah_call *call; /* under way */
    ah_course course;
    bool exposes;  /* other ranks may access our heap in it */
    void *exposed; /* and write here */
    size_t exposed_bytes;
    /* Parts of the own heap that are private memory now; merged when too many. */
    struct {
        uintptr_t from, to;
    } unshared[AH_MAX_UNSHARED];
    int unshared_count;
    bool paused;
    int64_t next_tick;

    ah_area *area[AH_MAX_RANKS];
    char *heap[AH_MAX_RANKS];
    pid_t pid[AH_MAX_RANKS];
    uint64_t reached[AH_MAX_RANKS]; /* each rank has posted or abandoned at least this call */
    uint64_t known_signatures[AH_KNOWN_SIGNATURES]; /* of rooted calls that all ranks have made */
    ah_call_header header[AH_MAX_RANKS];            /* of the call under way, own among them */
};

static inline uint64_t ah_all_ranks(const ah_comm *comm) {
    return comm->others | AH_BIT(comm->rank);
}

static inline ah_slot *ah_slot_of(const ah_comm *comm, int rank, uint64_t sequence) {
    return (ah_slot *)comm->area[rank]->end + (sequence & (AH_SLOTS_PER_RANK - 1));
}

/* The body of `rank`'s slot of a call. */
static inline char *ah_slot_body_of(const ah_comm *comm, int rank, uint64_t sequence) {
    return comm->area[rank]->end + AH_SLOTS_PER_RANK * sizeof(ah_slot) +
           (sequence & (AH_SLOTS_PER_RANK - 1)) * comm->body_stride;
}

/* That of the call under way. */
static inline char *ah_slot_body(const ah_comm *comm, int rank) {
    return ah_slot_body_of(comm, rank, comm->call->sequence);
}

static inline uint64_t *ah_slot_table(const ah_comm *comm, int rank, int which) {
    return (uint64_t *)ah_slot_body(comm, rank) + which * AH_MAX_RANKS;
}

/* Data of `nbytes` of a call: in the slot if it fits, else behind the tables. */
static inline char *ah_slot_data_of(const ah_comm *comm, int rank, uint64_t sequence,
                                    size_t nbytes) {
    ah_slot *slot = ah_slot_of(comm, rank, sequence);
    return nbytes <= sizeof slot->small ? (char *)slot->small
                                        : ah_slot_body_of(comm, rank, sequence) + AH_TABLES;
}

static inline char *ah_slot_data(const ah_comm *comm, int rank, size_t nbytes) {
    return ah_slot_data_of(comm, rank, comm->call->sequence, nbytes);
}

/* The box of staging in `owner`'s area of the pair that it is in with `other`. */
static inline char *ah_staging_box(const ah_comm *comm, int owner, int other, int parity) {
    return (char *)comm->area[owner] + comm->staging_offset +
           ((size_t)parity * (size_t)comm->size + (size_t)other) * comm->box_bytes;
}

/* A rank may fill its staging: no box of a swap, or mailbox, is free before all have posted. */
static inline void ah_forget_boxes(ah_comm *comm) {
    comm->phase_known = comm->boxes_returned = false;
}

/* Any rank may write to any staging: nothing in it is free before all have posted. */
static inline void ah_forget_staging(ah_comm *comm) {
    ah_forget_boxes(comm);
    comm->fills_known = false;
}

#endif
