/* The state of messages from point to point, and the protocol:
 *
 *   small, within credit    EAGER ---------------> the receive, or a copy until there is one
 *   other                     RTS ---------------> kept until there is a receive for it
 *     readable in place           <-- ACK          the receiver copies it from where it lies
 *     not                         <-- CTS
 *                            DATA ... -----------> piece by piece, as there is room
 *     not what is expected        <-- NACK
 *     abandoned              CANCEL -------------> the receive is open again
 *
 * A receiver always takes what is in its rings, so no message waits behind one with another tag;
 * what it may have to keep for want of a receive (unexpected messages) is bounded by a credit, of
 * which the sender counts what it has used and the receiver what it has released.
 *
 * A rank that reads another's memory looks afterwards whether the RTS still holds, and believes
 * what it read only then. A sender that withdraws it clears it in its table before its caller may
 * touch the memory.
 *
 * Threads: `lock` guards everything here. Any thread that waits makes progress for all; only one at
 * a time sleeps on the doorbell, the others on a condition.
 */
#ifndef ALLHANDS_P2P_STATE_H
#define ALLHANDS_P2P_STATE_H

#include <pthread.h>

#include "p2p/p2p.h"
#include "p2p/p2p_ring.h"

#define TAG_BUCKETS 64
#define SPIN_AGAIN_AFTER 64
#define SOON_YIELDS 4

enum { AWAKE, DOZING, ASLEEP };
enum { NEW, QUEUED, RTS_SENT, SENDING, POSTED, READING, RECEIVING, ANSWERING, ENDED }; /* stages */

struct ah_ctrl_msg {
    ah_ctrl_msg *next;
    ah_frame frame;
    ah_message *message; /* that goes on once it is sent; NULL: none */
    ah_unexpected *rts;  /* the RTS that it answers; freed with it */
    bool queued;
};

/* An unexpected message: it came before its receive. Or an RTS whose data is being received. */
struct ah_unexpected {
    ah_unexpected *before, *after;
    uint64_t order;
    int peer;
    ah_frame frame;
    ah_ctrl_msg ctrl; /* the answer to an RTS */
    char *text;       /* of a NACK */
    char *payload;    /* of an eager message */
};

typedef struct {
    ah_message *first, *last;
} msg_queue;

typedef struct {
    ah_ring_end out, in;
    ah_ctrl_msg *first, **last; /* to be sent, in order */
    msg_queue rts_sent, sending;
    uint64_t eager_used;   /* bytes sent eagerly, for ever */
    uint64_t eager_credit; /* what they may be before looking again at what the peer released */
    uint64_t released;     /* of the peer's credit, here */
    char attach;           /* 0: not tried, 1: works, -1: does not */
} peer_state;

struct ah_p2p {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int rank, size;
    uint64_t others, left;
    ah_p2p_limits limits;
    ah_p2p_region *region[AH_MAX_RANKS];
    char *heap[AH_MAX_RANKS];
    size_t heap_bytes;
    pid_t pid[AH_MAX_RANKS];
    uint64_t nonce;
    uint64_t last_id, last_order;
    uint64_t has_output; /* peers for which frames wait to be sent */
    msg_queue posted[TAG_BUCKETS];
    struct {
        ah_unexpected *first, *last;
    } unexpected[TAG_BUCKETS];
    msg_queue reading, receiving;
    ah_message *oldest, *newest; /* under way */
    size_t pending, async_count;
    ah_message *ended, **ended_last;
    bool rts_used[AH_RTS_SLOTS];
    int next_rts;
    int64_t next_deadline; /* no asynchronous message has an earlier deadline */
    int callers, waiters;
    bool caller_sleeps; /* a caller has the doorbell */
    int server_state;   /* how the serving thread sleeps there */
    int64_t server_until;
    int failed_spins;
    bool failed, closed;
    peer_state peers[AH_MAX_RANKS];
};

#endif
