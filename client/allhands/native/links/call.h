/* A collective over links, carried out by the thread that makes it: the rounds of a schedule, as in
 * collectives/schedule.py, by whose law they go.
 *
 * Every header is checked against the call before anything of its message is used. Whatever is not
 * for the call at hand stays in order: frames of the group's later calls are left where they are,
 * any other frame is handed out whole, and what this code cannot judge, or has no time for, is
 * given back as the bytes that came (ah_call_withdraw), so that the call can go on elsewhere from
 * the round that it is in.
 */
#ifndef ALLHANDS_LINKS_CALL_H
#define ALLHANDS_LINKS_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "links/frame.h"
#include "links/link.h"

enum {
    AH_CALL_EAGER = 1 << 20, /* longest message that goes unasked; transport/outbox.py */
    AH_CALL_OPERANDS = 64,   /* of one fold */
};

typedef enum { AH_AREA_INPUT, AH_AREA_OUTPUT, AH_AREA_SCRATCH, AH_AREAS } ah_area;

typedef struct {
    uint8_t *at;
    size_t nbytes;
} ah_piece;

typedef struct { /* memory end to end */
    const ah_piece *pieces;
    int count;
} ah_memory;

typedef struct {
    ah_area area;
    size_t start, nbytes;
} ah_span;

typedef struct {
    ah_span source, target;
} ah_move;

typedef struct {
    ah_span sources[AH_CALL_OPERANDS];
    int count;
    ah_span target;
} ah_combine;

typedef struct {
    int link;
    uint32_t step;
    ah_span span;
    /* while the round is under way */
    uint8_t header[AH_FRAME_HEADER];
    const uint8_t *payload;
    size_t sent;
    bool is_signed;  /* the header has the digest under `number` */
    uint64_t number; /* among the link's frames with a digest */
} ah_send;

typedef struct {
    int link;
    uint32_t step;
    ah_span span;
    bool reduces;
    bool is_left;   /* what comes is the left operand */
    bool is_direct; /* may be written as it comes: nothing that is still needed lies there */
    size_t place;   /* in the staging memory, unless it is direct */
    /* while the round is under way */
    uint8_t *target;
    size_t came;
    bool is_begun;   /* its header has come */
    bool is_whole;   /* so has its payload, and its digest is right */
    uint32_t digest; /* in its header */
} ah_recv;

typedef struct {
    ah_move *moves;
    ah_combine *combines;
    ah_send *sends;
    ah_recv *recvs;
    int move_count, combine_count, send_count, recv_count;
    bool is_ahead; /* its messages may leave while the round before is under way: neither that nor
                    * its own copies change what they hold */
} ah_round;

typedef struct {
    ah_link **links;
    int link_count;
    ah_round *rounds;
    int round_count;
    uint64_t group, signature;
    uint32_t part;
    bool has_digests; /* all frames of the group have one */
    ah_op op;
    ah_type type;
    size_t divisor;
    uint8_t *staging;
    size_t staging_bytes;
    /* the call under way */
    uint64_t sequence;
    ah_memory memory[AH_AREAS];
    int at;          /* the round */
    int prepared;    /* rounds whose messages may leave: up to this one, or to the next */
    bool is_begun;   /* the round's copies are made, and its messages are under way */
    bool has_landed; /* something was written to an output */
    int foreign;     /* link whose next frame is not of the call; -1: none */
    size_t foreign_bytes;
} ah_call;

typedef enum {
    AH_CALL_DONE,
    AH_CALL_LATE,    /* not within the time; may go on here */
    AH_CALL_FOREIGN, /* a frame is to be taken (ah_call_take_foreign) */
    AH_CALL_STUCK,   /* cannot go on here; withdraw */
} ah_call_status;

/* Find out of each round whether its messages may leave ahead, once all rounds are there. */
void ah_call_plan_ahead(ah_call *call);

/* Begin the call of that number; `memory` must stay. */
void ah_call_begin(ah_call *call, uint64_t sequence, const ah_memory memory[AH_AREAS]);

/* Go on until `until`, in nanoseconds of the monotonic clock; spin up to `spin` of them at a time
 * before sleeping. */
ah_call_status ah_call_run(ah_call *call, int64_t until, int64_t spin);

/* The frame that is in the way; it is valid until the call runs again. */
const uint8_t *ah_call_take_foreign(ah_call *call, int *link, size_t *nbytes);

/* The round whose messages leave now; NULL: there is none. Those of all before it have left. */
ah_round *ah_call_sending(const ah_call *call);

static inline bool ah_send_is_whole(const ah_send *send) {
    return send->sent == AH_FRAME_HEADER + send->span.nbytes;
}

/* Whether anything has come of the call under way. */
bool ah_call_has_come(const ah_call *call);

/* Give back to the links what came of the round under way: false: no memory, or no digest. What is
 * left of a message that has left in part is for the caller to send, before anything else. */
bool ah_call_withdraw(ah_call *call);

/* The memory of a span in the call under way; NULL: it is empty. */
uint8_t *ah_call_locate(const ah_call *call, const ah_span *span);

/* Whether the span lies in one piece of its area. */
bool ah_call_fits(const ah_memory memory[AH_AREAS], const ah_span *span);

#endif
