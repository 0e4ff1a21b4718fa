/* Messages from point to point between ranks that share memory: matched as MPI has it.
 *
 * No Python in here. ah_p2p is one group as one rank sees it, for any number of threads. A message
 * goes to the first receive posted that fits its sender and tag, in the order sent; a receive may
 * leave the sender open. One whose size or signature is another than its receive's is a
 * mismatch: nothing is touched, and its sender learns it unless the message was sent eagerly.
 */
#ifndef ALLHANDS_P2P_H
#define ALLHANDS_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/comm.h"

/* Where one way ends and the next begins; ranks need not agree. Bytes. */
typedef struct {
    size_t eager_max;  /* messages up to here are sent eagerly, if the receiver has few of them */
    size_t direct_min; /* from here on arrays in a heap are left where they are */
    size_t attach_min; /* from here on others are read by cross-memory attach; SIZE_MAX: never */
    int64_t poll_interval; /* of sleepers: others may be killed before they ring the doorbell */
} ah_p2p_limits;

ah_p2p_limits ah_default_p2p_limits(void);

typedef enum {
    AH_RUNNING,
    AH_DELIVERED,  /* received; of a send: its memory is free */
    AH_TIMED_OUT,  /* the deadline passed */
    AH_MISMATCHED, /* what was sent is not what the receive is for */
    AH_CANCELLED,
    AH_PEER_LEFT, /* all ranks that could be the other end have left */
    AH_FAILED     /* ah_p2p_fail was called */
} ah_outcome;

typedef enum { AH_WAY_NONE, AH_WAY_EAGER, AH_WAY_PIECES, AH_WAY_DIRECT, AH_WAY_ATTACH } ah_way;

typedef struct ah_p2p ah_p2p;
typedef struct ah_unexpected ah_unexpected;
typedef struct ah_ctrl_msg ah_ctrl_msg;

/* One send or receive; the caller's memory, which it does not move from start to end. */
typedef struct ah_message {
    bool receives;
    bool is_async;   /* its end is for ah_p2p_serve, unless a thread waits for it */
    bool is_private; /* of a send: its pages in the heap are not shared (any more) */
    int peer;        /* -1: a receive from anybody */
    uint32_t tag;
    uint64_t signature;
    size_t nbytes;
    void *data;
    const char *type; /* and count: of the array, for a sender of another; kept by the caller */
    size_t count;
    int64_t deadline; /* nanoseconds on CLOCK_MONOTONIC */
    void *owner;

    /* Out, once `outcome` says that it has ended (which only ah_p2p_wait and ah_p2p_serve may ask
     * without a lock; see ah_message_outcome). */
    _Atomic int outcome;
    int source;
    ah_way way;
    bool touched;         /* of a receive: some of a message, whole or not, lies in its memory */
    uint64_t sent_nbytes; /* bytes of what was sent in place of this receive */
    uint64_t sent_signature;
    char *expected_text; /* of a mismatched send: by the receiver, malloc'd */

    /* Inside. */
    int stage;
    int final_outcome; /* the outcome once its answer is sent */
    int wait_count;
    bool is_queued;
    uint64_t order, id, slot, transferred;
    ah_unexpected *rts;
    ah_ctrl_msg *ctrl;
    struct ah_message *before, *after; /* in the queue of its stage */
    struct ah_message *older, *newer;  /* among all that have not ended */
    struct ah_message *next_ended;
} ah_message;

/* Hooks of a wait, as those of ah_call. */
typedef struct {
    void (*pause)(void *owner);
    void (*resume)(void *owner);
    bool (*tick)(void *owner); /* after `pause`; true: end the wait */
    int64_t tick_ns;
    void *owner;
} ah_wait_hooks;

/* `regions[r]`: of rank r, ah_p2p_region_bytes(size), all zero at first. NULL: out of memory. */
ah_p2p *ah_p2p_new(int rank, int size, void *const regions[], const pid_t pids[],
                   void *const heaps[], size_t heap_bytes, const ah_p2p_limits *limits);
/* After ah_p2p_close, with no message under way and no thread inside. */
void ah_p2p_free(ah_p2p *p2p);

/* Begin. 1: it has ended already, and ah_p2p_serve will not return it; 0: it is under way, and may
 * have ended meanwhile; -1: out of memory, and nothing was begun. */
int ah_p2p_start(ah_p2p *p2p, ah_message *message);
/* Send a message that can go eagerly now; false: nothing has happened. */
bool ah_p2p_try_send(ah_p2p *p2p, ah_message *message);
/* Wait until it has ended, or `until`: AH_OK, AH_TIMEOUT, or AH_INTERRUPTED by the hook. What has
 * passed its own deadline ends so here. */
ah_status ah_p2p_wait(ah_p2p *p2p, ah_message *message, int64_t until, const ah_wait_hooks *hooks);
/* End it early, with this outcome unless it has ended. Its memory is the caller's from now on. */
void ah_p2p_end(ah_p2p *p2p, ah_message *message, ah_outcome outcome);
int ah_message_outcome(const ah_message *message);

/* For a thread of its own: make progress where no caller does, until asynchronous messages have
 * ended. Returns them by `next_ended`, first to last; NULL: closed. */
ah_message *ah_p2p_serve(ah_p2p *p2p);
void ah_p2p_close(ah_p2p *p2p);

/* This rank has left: what it sent before is received, all else with it ends in AH_PEER_LEFT. */
void ah_p2p_remove_peer(ah_p2p *p2p, int rank);
/* End everything, and all to come, but for what is here already. */
void ah_p2p_fail(ah_p2p *p2p);
/* Wait until nothing is under way, nor waits to be sent to ranks that are there. */
void ah_p2p_wait_idle(ah_p2p *p2p);
bool ah_p2p_is_idle(ah_p2p *p2p);

#endif
