/* Messages from point to point between ranks that share memory: matched as MPI has it.
 *
 * No Python in here. ah_mail is one group as one rank sees it, for any number of threads. A message
 * goes to the first receive posted that fits its sender and tag, in the order sent; a receive may
 * leave the sender open. One whose size or signature is another than its receive's is refused:
 * nothing is touched, and its sender is told unless the message had gone already.
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
    size_t eager_max;  /* messages up to here are sent at once, if the receiver has few of them */
    size_t direct_min; /* from here on arrays in a heap are left where they are */
    size_t attach_min; /* from here on others are read by cross-memory attach; SIZE_MAX: never */
    int64_t nap; /* who sleeps looks by itself as often: others may be killed before they ring */
} ah_mail_limits;

ah_mail_limits ah_default_mail_limits(void);

typedef enum {
    AH_UNDER_WAY,
    AH_DELIVERED, /* received; of a send: its memory is free */
    AH_LATE,      /* the deadline passed */
    AH_UNLIKE,    /* what was sent is not what the receive is for */
    AH_CANCELLED,
    AH_GONE,  /* who could have been the other end has left */
    AH_FAILED /* ah_mail_fail was called */
} ah_outcome;

typedef enum { AH_WAY_NONE, AH_WAY_EAGER, AH_WAY_PIECES, AH_WAY_DIRECT, AH_WAY_ATTACH } ah_way;

typedef struct ah_mail ah_mail;
typedef struct ah_arrived ah_arrived;
typedef struct ah_note ah_note;

/* One send or receive; the caller's memory, at one place from start to end. */
typedef struct ah_message {
    bool receives;
    bool watched; /* its end is for ah_mail_serve, unless somebody waits for it */
    bool private; /* of a send: its pages in the heap are not shared (any more) */
    int peer;     /* -1: a receive from anybody */
    uint32_t tag;
    uint64_t signature;
    size_t nbytes;
    void *data;
    const char *type; /* and count: what it is, for who sent another; kept by the caller */
    size_t count;
    int64_t deadline; /* nanoseconds on CLOCK_MONOTONIC */
    void *owner;

    /* Out, once `outcome` says that it has ended (which only ah_mail_wait and ah_mail_serve may ask
     * without a lock; see ah_mail_outcome). */
    _Atomic int outcome;
    int source;
    ah_way way;
    bool touched; /* of a receive: some of a message, whole or not, lies in its memory */
    uint64_t unlike; /* bytes of what was sent in place of this receive */
    uint64_t unlike_signature;
    char *told;      /* of an unlike send: the receiver's text, malloc'd */

    /* Inside. */
    int stage;
    int settling; /* the outcome once its last word is out */
    int awaited;
    bool listed;
    uint64_t order, id, slot, at;
    ah_arrived *offer;
    ah_note *note;
    struct ah_message *before, *after; /* in the line of its stage */
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
} ah_hooks;

/* `offices[r]`: rank r's part, ah_office_bytes(size), all zero at first. NULL: out of memory. */
ah_mail *ah_mail_new(int rank, int size, void *const offices[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_mail_limits *limits);
/* After ah_mail_close, with no message under way and no thread inside. */
void ah_mail_free(ah_mail *mail);

/* Begin. 1: it has ended already, and nobody else will be told; 0: it is under way, and may have
 * ended meanwhile; -1: out of memory, and nothing was begun. */
int ah_mail_start(ah_mail *mail, ah_message *message);
/* Send at once what needs not wait for anything; false: nothing has happened. */
bool ah_mail_post(ah_mail *mail, ah_message *message);
/* Wait until it has ended, or `until`: AH_OK, AH_TIMEOUT, or AH_INTERRUPTED by the hook. What has
 * passed its own deadline ends so here. */
ah_status ah_mail_wait(ah_mail *mail, ah_message *message, int64_t until, const ah_hooks *hooks);
/* End it early, with this outcome unless it has ended. Its memory is the caller's from now on. */
void ah_mail_end(ah_mail *mail, ah_message *message, ah_outcome outcome);
int ah_mail_outcome(const ah_message *message);

/* For a thread of its own: keep things going where no caller does, until watched messages have
 * ended. Returns them by `next_ended`, first to last; NULL: closed. */
ah_message *ah_mail_serve(ah_mail *mail);
void ah_mail_close(ah_mail *mail);

/* This rank has left: what it sent before is received, all else with it ends in AH_GONE. */
void ah_mail_leave(ah_mail *mail, int rank);
/* End everything, and all to come, but for what is here already. */
void ah_mail_fail(ah_mail *mail);
/* Wait until nothing is under way, nor waits to be said to ranks that are there. */
void ah_mail_idle(ah_mail *mail);

#endif
