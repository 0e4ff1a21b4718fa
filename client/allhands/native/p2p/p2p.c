/* How a message travels:
 *
 *   small, few on the way   EAGER ---------------> the receive, or a copy until there is one
 *   other                   OFFER ---------------> kept until there is a receive for it
 *     readable where it is        <-- TAKEN        the receiver copies it from where it lies
 *     not                         <-- CLEAR
 *                           PIECE ... -----------> one after the other, as there is room
 *     not what is expected        <-- REFUSED
 *     given up              WITHDRAWN -----------> the receive is open again
 *
 * A receiver always takes what is on its wires, so no message waits behind one with another tag;
 * what it may have to keep for want of a receive is bounded by a budget, of which the sender counts
 * what it has used and the receiver what it has released.
 *
 * Who reads another's memory looks afterwards whether the offer still holds, and believes what it
 * read only then. Who withdraws says so in its table before its caller may touch the memory.
 *
 * Threads: `lock` guards everything here. Any thread that waits moves things on, for all; only one
 * at a time sleeps on the doorbell, the others on a condition. The bell is as in wait.h, but for a
 * third state: DOZING is a thread that need not be woken for news, only by who has no more room.
 */
#define _GNU_SOURCE
#include "p2p/p2p.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/cma.h"
#include "comm/host.h"
#include "kernels/kernels.h"
#include "p2p/p2p_ring.h"

#define MICROSECONDS INT64_C(1000)
#define SPINS 200
#define SPIN_AGAIN_AFTER 64
#define SOON_YIELDS 4
#define POLL_INTERVAL (50 * 1000 * MICROSECONDS)
#define IDLE_INTERVALS 20 /* where nothing is waited for */

#define EAGER_CREDIT ((uint64_t)4 << 20)
#define COPY_STEP ((size_t)512 << 10) /* of a copy, with the lock held */
#define ATTACH_STEP ((size_t)4 << 20)
#define DATA_BYTES ((size_t)16 << 10)
#define MIN_DATA_BYTES ((size_t)8 << 10)
#define FRAMES_AT_ONCE 64
#define TAG_BUCKETS 64
#define MAX_TEXT 4096

enum { AWAKE, DOZING, ASLEEP };
enum { NEW, QUEUED, RTS_SENT, SENDING, POSTED, READING, RECEIVING, ANSWERING, ENDED }; /* stages */

struct ah_ctrl_msg {
    ah_ctrl_msg *next;
    ah_frame frame;
    ah_message *message; /* that goes on when it is out; NULL: none */
    ah_unexpected *rts;  /* that it answers; freed with it */
    bool queued;
};

/* A message that came before its receive, or that is being received from where it lies. */
struct ah_unexpected {
    ah_unexpected *before, *after;
    uint64_t order;
    int peer;
    ah_frame frame;
    ah_ctrl_msg ctrl; /* the answer to an offer */
    char *text;       /* of a refusal */
    char *payload;    /* of an eager one */
};

typedef struct {
    ah_message *first, *last;
} msg_queue;

typedef struct {
    ah_ring_end out, in;
    ah_ctrl_msg *first, **last; /* to be said, in order */
    msg_queue rts_sent, sending;
    uint64_t eager_used,
        eager_credit;  /* of the budget: used here, and what may be before looking again */
    uint64_t released; /* of the peer's budget, here */
    char attach;       /* 0: not tried, 1: works, -1: does not */
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
    uint64_t has_output; /* peers to whom something is to be said */
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
    int64_t next_deadline; /* no watched message has an earlier deadline */
    int callers, waiters;
    bool caller_sleeps; /* a caller has the doorbell */
    int server_state;   /* how the serving thread sleeps there */
    int64_t server_until;
    int failed_spins;
    bool failed, closed;
    peer_state peers[AH_MAX_RANKS];
};

/* Two copies through a ring that stays in the caches, on two cores at once, take 5 us for 64 KiB
 * and 40 us for 1 MiB; attach, on the receiver's core alone, 11 and 87. From about 3 MiB on it is
 * the other way round: memory is what counts then, and NumPy's arrays lie on huge pages. */
ah_p2p_limits ah_default_p2p_limits(void) {
    return (ah_p2p_limits){
        .eager_max = (size_t)64 << 10,
        .direct_min = (size_t)16 << 10,
        .attach_min = (size_t)3 << 20,
        .poll_interval = POLL_INTERVAL,
    };
}

/* ---- lines */

static void queue_append(msg_queue *to, ah_message *msg) {
    msg->before = to->last;
    msg->after = NULL;
    *(to->last ? &to->last->after : &to->first) = msg;
    to->last = msg;
}

static void queue_remove(msg_queue *from, ah_message *msg) {
    *(msg->before ? &msg->before->after : &from->first) = msg->after;
    *(msg->after ? &msg->after->before : &from->last) = msg->before;
}

/* Receives are matched in the order in which they were posted, also after having been matched. */
static void queue_insert(msg_queue *to, ah_message *msg) {
    ah_message *before = to->last;
    while (before && before->order > msg->order) before = before->before;
    msg->before = before;
    msg->after = before ? before->after : to->first;
    *(before ? &before->after : &to->first) = msg;
    *(msg->after ? &msg->after->before : &to->last) = msg;
}

static msg_queue *posted_queue(ah_p2p *p2p, uint32_t tag) {
    return &p2p->posted[tag % TAG_BUCKETS];
}

static void queue_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    unsigned at = arrived->frame.tag % TAG_BUCKETS;
    ah_unexpected *before = p2p->unexpected[at].last;
    while (before && before->order > arrived->order) before = before->before;
    arrived->before = before;
    arrived->after = before ? before->after : p2p->unexpected[at].first;
    *(before ? &before->after : &p2p->unexpected[at].first) = arrived;
    *(arrived->after ? &arrived->after->before : &p2p->unexpected[at].last) = arrived;
}

static void remove_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    unsigned at = arrived->frame.tag % TAG_BUCKETS;
    *(arrived->before ? &arrived->before->after : &p2p->unexpected[at].first) = arrived->after;
    *(arrived->after ? &arrived->after->before : &p2p->unexpected[at].last) = arrived->before;
}

static void free_unexpected(ah_unexpected *arrived) {
    free(arrived->text);
    free(arrived->payload);
    free(arrived);
}

/* ---- bells */

/* The level is in the lowest bits; the rest counts rings, so that who was about to sleep when it
 * was rung does not take a level that was set again meanwhile for the one that it has seen. */
#define LEVEL 3u

/* Return what the bell is now. */
static uint32_t set_doorbell(ah_p2p *p2p, uint32_t level) {
    _Atomic uint32_t *doorbell = &p2p->region[p2p->rank]->doorbell;
    uint32_t seen = atomic_load(doorbell), set;
    do set = (seen & ~LEVEL) | level;
    while (!atomic_compare_exchange_weak(doorbell, &seen, set));
    return set;
}

static void wake_peer(ah_p2p_region *region, uint32_t from) {
    uint32_t seen = atomic_load(&region->doorbell);
    while ((seen & LEVEL) >= from && (seen & LEVEL) != AWAKE)
        if (atomic_compare_exchange_weak(&region->doorbell, &seen, (seen & ~LEVEL) + LEVEL + 1)) {
            syscall(SYS_futex, &region->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            return;
        }
}

/* Sleep until rung, or for so long. With the lock, which is let go. */
static void sleep_on_doorbell(ah_p2p *p2p, uint32_t seen, int64_t span) {
    struct timespec time = {span / 1000000000, span % 1000000000};
    pthread_mutex_unlock(&p2p->lock);
    syscall(SYS_futex, &p2p->region[p2p->rank]->doorbell, FUTEX_WAIT, seen, &time, NULL, 0);
    pthread_mutex_lock(&p2p->lock);
}

/* Threads of this process that wait have something to see. */
static void wake_callers(ah_p2p *p2p) {
    if (p2p->waiters) pthread_cond_broadcast(&p2p->changed);
    if (p2p->caller_sleeps) wake_peer(p2p->region[p2p->rank], ASLEEP);
}

static void wake_server(ah_p2p *p2p) {
    if (p2p->server_state) wake_peer(p2p->region[p2p->rank], DOZING);
}

/* ---- ends */

static void end_message(ah_p2p *p2p, ah_message *msg, int outcome) {
    *(msg->older ? &msg->older->newer : &p2p->oldest) = msg->newer;
    *(msg->newer ? &msg->newer->older : &p2p->newest) = msg->older;
    p2p->pending--;
    if (msg->is_async) p2p->async_count--;
    msg->stage = ENDED;
    if (!msg->wait_count && msg->is_async) {
        msg->is_queued = true;
        msg->next_ended = NULL;
        *p2p->ended_last = msg;
        p2p->ended_last = &msg->next_ended;
    }
    atomic_store_explicit(&msg->outcome, outcome, memory_order_release);
}

/* The same, and wake who waits for it. */
static void end_and_wake(ah_p2p *p2p, ah_message *msg, int outcome) {
    bool awaited = msg->wait_count || p2p->pending == 1;
    end_message(p2p, msg, outcome);
    if (awaited) wake_callers(p2p);
    if (msg->is_queued) wake_server(p2p);
}

/* ---- saying */

static void release_rts(ah_p2p *p2p, ah_message *msg) {
    if (msg->slot >= AH_RTS_SLOTS) return;
    ah_rts_release(p2p->region[p2p->rank], msg->slot);
    p2p->rts_used[msg->slot] = false;
    msg->slot = AH_RTS_SLOTS;
}

/* Go on after a note has been put on the wire. */
static void ctrl_sent(ah_p2p *p2p, ah_ctrl_msg *ctrl) {
    ah_message *msg = ctrl->message;
    ctrl->queued = false;
    switch (ctrl->frame.kind) {
    case AH_EAGER:
        free(ctrl);
        if (msg) msg->ctrl = NULL, end_and_wake(p2p, msg, AH_DELIVERED);
        return;
    case AH_RTS:
        msg->stage = RTS_SENT;
        queue_append(&p2p->peers[msg->peer].rts_sent, msg);
        return;
    case AH_ACK:
    case AH_NACK:
        free_unexpected(ctrl->rts);
        if (msg) msg->rts = NULL, end_and_wake(p2p, msg, msg->final_outcome);
        return;
    case AH_CANCEL: free(ctrl); return;
    default: /* CLEAR: the answer is pieces */ return;
    }
}

static const void *data_of(const ah_ctrl_msg *ctrl) {
    if (ctrl->frame.kind == AH_EAGER) return ctrl->message->data;
    return ctrl->rts ? ctrl->rts->text : NULL;
}

static bool put_frame(ah_p2p *p2p, int peer, const ah_frame *frame, const void *data) {
    bool out = ah_ring_put(&p2p->peers[peer].out, frame, data);
    wake_peer(p2p->region[peer], out ? ASLEEP : DOZING);
    return out;
}

/* Say it when what was to be said before is out. */
static void send_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl) {
    peer_state *state = &p2p->peers[peer];
    if (!state->first && put_frame(p2p, peer, &ctrl->frame, data_of(ctrl))) {
        ctrl_sent(p2p, ctrl);
        return;
    }
    ctrl->next = NULL;
    ctrl->queued = true;
    *state->last = ctrl;
    state->last = &ctrl->next;
    p2p->has_output |= AH_BIT(peer);
}

static void unsend_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl) {
    peer_state *state = &p2p->peers[peer];
    ah_ctrl_msg **at = &state->first;
    while (*at != ctrl) at = &(*at)->next;
    *at = ctrl->next;
    if (!*at) state->last = at;
    ctrl->queued = false;
}

static void send_answer(ah_p2p *p2p, ah_message *msg, ah_frame_kind kind) {
    ah_unexpected *rts = msg->rts;
    ah_ctrl_msg *ctrl = &rts->ctrl;
    *ctrl = (ah_ctrl_msg){.message = msg, .rts = rts};
    ctrl->frame = (ah_frame){.kind = (uint16_t)kind, .id = rts->frame.id};
    if (kind == AH_NACK && (rts->text = malloc(MAX_TEXT)) != NULL) {
        snprintf(rts->text, MAX_TEXT, "message(%s[%zu])", msg->type, msg->count);
        ctrl->frame.total = strlen(rts->text);
    }
    send_ctrl(p2p, rts->peer, ctrl);
}

/* ---- receiving */

static void match_receive(ah_p2p *p2p, ah_message *msg);

static ah_message *find_receive(ah_p2p *p2p, int peer, uint32_t tag) {
    for (ah_message *msg = posted_queue(p2p, tag)->first; msg; msg = msg->after)
        if (msg->tag == tag && (msg->peer < 0 || msg->peer == peer)) return msg;
    return NULL;
}

static bool rts_holds(const ah_p2p *p2p, const ah_unexpected *rts) {
    return ah_rts_holds(p2p->region[rts->peer], rts->frame.slot, rts->frame.id);
}

static bool is_mismatch(const ah_message *msg, const ah_frame *frame) {
    return frame->signature != msg->signature || frame->total != msg->nbytes;
}

static bool read_from(const ah_p2p *p2p, int peer, uint64_t address, void *to, size_t nbytes) {
    return ah_cma_read_process(p2p->pid[peer], address, to, nbytes);
}

/* Whether the process of that number is the peer, and not one that took the number over: then it
 * was so for all that was read before. (In one call with the data, that comes a tenth slower.) */
static bool is_peer(const ah_p2p *p2p, int peer) {
    uint64_t at = atomic_load(&p2p->region[peer]->nonce_at), nonce = 0;
    return at && read_from(p2p, peer, at, &nonce, sizeof nonce) &&
           nonce == atomic_load(&p2p->region[peer]->nonce);
}

static bool can_attach(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    if (!state->attach) state->attach = is_peer(p2p, peer) ? 1 : -1;
    return state->attach > 0;
}

static void answer_and_end(ah_p2p *p2p, ah_message *msg, ah_frame_kind kind, int outcome) {
    msg->stage = ANSWERING;
    msg->final_outcome = outcome;
    send_answer(p2p, msg, kind);
}

/* A receive has found its offer: fetch it. */
static void start_transfer(ah_p2p *p2p, ah_message *msg) {
    const ah_unexpected *rts = msg->rts;
    const ah_frame *frame = &rts->frame;
    bool is_held = frame->slot < AH_RTS_SLOTS;
    if (is_mismatch(msg, frame)) {
        msg->sent_nbytes = frame->total;
        msg->sent_signature = frame->signature;
        answer_and_end(p2p, msg, AH_NACK, AH_MISMATCHED);
        return;
    }
    if (!frame->total) {
        msg->way = AH_WAY_EAGER;
        answer_and_end(p2p, msg, AH_ACK, AH_DELIVERED);
        return;
    }
    msg->transferred = 0;
    msg->way = AH_WAY_PIECES;
    if (is_held && frame->flags & AH_RTS_IN_HEAP) {
        if (p2p->heap[rts->peer] && frame->where <= p2p->heap_bytes &&
            frame->total <= p2p->heap_bytes - frame->where)
            msg->way = AH_WAY_DIRECT;
    } else if (is_held && frame->total >= p2p->limits.attach_min && can_attach(p2p, rts->peer))
        msg->way = AH_WAY_ATTACH;
    if (msg->way == AH_WAY_PIECES) {
        msg->stage = RECEIVING;
        queue_append(&p2p->receiving, msg);
        send_answer(p2p, msg, AH_CTS);
    } else {
        msg->stage = READING;
        queue_append(&p2p->reading, msg);
    }
}

/* Bring a message that has arrived and a receive, in no line, together. False: it was withdrawn,
 * and is gone; the word of that is on its way. */
static bool deliver(ah_p2p *p2p, ah_message *msg, ah_unexpected *arrived) {
    const ah_frame *frame = &arrived->frame;
    if (frame->kind == AH_RTS) {
        if (frame->slot < AH_RTS_SLOTS && !rts_holds(p2p, arrived)) {
            free_unexpected(arrived);
            return false;
        }
        msg->source = arrived->peer;
        msg->rts = arrived;
        start_transfer(p2p, msg);
        return true;
    }
    bool sent_nbytes = is_mismatch(msg, frame);
    msg->source = arrived->peer;
    msg->way = AH_WAY_EAGER;
    msg->sent_nbytes = frame->total;
    msg->sent_signature = frame->signature;
    if (!sent_nbytes && frame->total)
        memcpy(msg->data, arrived->payload ? arrived->payload : (const char *)frame->small,
               frame->total);
    peer_state *state = &p2p->peers[arrived->peer];
    state->released += AH_CACHE_LINE + frame->total;
    atomic_store_explicit(&state->in.consumed->released, state->released, memory_order_release);
    free_unexpected(arrived);
    end_and_wake(p2p, msg, sent_nbytes ? AH_MISMATCHED : AH_DELIVERED);
    return true;
}

/* A message has no receive (any more): give it to the first that is open for it, or keep it. */
static void match_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    ah_message *msg = find_receive(p2p, arrived->peer, arrived->frame.tag);
    if (!msg) {
        queue_unexpected(p2p, arrived);
        return;
    }
    queue_remove(posted_queue(p2p, msg->tag), msg);
    if (!deliver(p2p, msg, arrived)) match_receive(p2p, msg);
}

/* A receive has no message (any more): give it the first that fits, or let it wait. */
static void match_receive(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *next;
    for (ah_unexpected *at = p2p->unexpected[msg->tag % TAG_BUCKETS].first; at; at = next) {
        next = at->after;
        if (at->frame.tag != msg->tag || (msg->peer >= 0 && msg->peer != at->peer)) continue;
        remove_unexpected(p2p, at);
        if (deliver(p2p, msg, at)) return;
    }
    msg->source = -1;
    msg->rts = NULL;
    msg->stage = POSTED;
    queue_insert(posted_queue(p2p, msg->tag), msg);
}

/* Fetch some of what lies with its sender. */
static void read_some(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *rts = msg->rts;
    const ah_frame *frame = &rts->frame;
    bool direct = msg->way == AH_WAY_DIRECT;
    size_t part = ah_min(direct ? COPY_STEP : ATTACH_STEP, msg->nbytes - msg->transferred);
    char *to = (char *)msg->data + msg->transferred;
    queue_remove(&p2p->reading, msg);
    msg->touched = true;
    if (direct)
        ah_copy(to, p2p->heap[rts->peer] + frame->where + msg->transferred, part,
                msg->nbytes > COPY_STEP);
    else if (!read_from(p2p, rts->peer, frame->where + msg->transferred, to, part) ||
             (msg->transferred + part == msg->nbytes && !is_peer(p2p, rts->peer))) {
        /* Dead, or not to be looked at any more: asking it does no harm. */
        p2p->peers[rts->peer].attach = -1;
        start_transfer(p2p, msg);
        return;
    }
    msg->transferred += part;
    bool good = rts_holds(p2p, rts);
    if (!good) {
        free_unexpected(rts);
        match_receive(p2p, msg);
    } else if (msg->transferred == msg->nbytes)
        answer_and_end(p2p, msg, AH_ACK, AH_DELIVERED);
    else
        queue_append(&p2p->reading, msg);
}

/* ---- hearing; false: not now */

static bool handle_eager(ah_p2p *p2p, int peer, const ah_frame *frame) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = find_receive(p2p, peer, frame->tag);
    if (msg) { /* into its place at once */
        bool sent_nbytes = is_mismatch(msg, frame);
        queue_remove(posted_queue(p2p, msg->tag), msg);
        msg->source = peer;
        msg->way = AH_WAY_EAGER;
        msg->sent_nbytes = frame->total;
        msg->sent_signature = frame->signature;
        if (!sent_nbytes && frame->total > AH_INLINE)
            ah_ring_read(&state->in, msg->data, frame->total);
        else if (!sent_nbytes)
            memcpy(msg->data, frame->small, frame->total);
        state->released += AH_CACHE_LINE + frame->total;
        atomic_store_explicit(&state->in.consumed->released, state->released, memory_order_release);
        end_and_wake(p2p, msg, sent_nbytes ? AH_MISMATCHED : AH_DELIVERED);
        return true;
    }
    ah_unexpected *arrived = calloc(1, sizeof *arrived);
    char *payload = frame->total > AH_INLINE ? malloc(frame->total) : NULL;
    if (!arrived || (frame->total > AH_INLINE && !payload)) {
        free(arrived);
        free(payload);
        return false; /* it stays on the wire, and its sender waits */
    }
    if (payload) ah_ring_read(&state->in, payload, frame->total);
    *arrived = (ah_unexpected){.order = ++p2p->last_order, .peer = peer, .payload = payload};
    memcpy(&arrived->frame, frame, sizeof *frame);
    queue_unexpected(p2p, arrived);
    return true;
}

static bool handle_rts(ah_p2p *p2p, int peer, const ah_frame *frame) {
    ah_unexpected *arrived = calloc(1, sizeof *arrived);
    if (!arrived) return false;
    arrived->order = ++p2p->last_order;
    arrived->peer = peer;
    memcpy(&arrived->frame, frame, sizeof *frame);
    match_unexpected(p2p, arrived);
    return true;
}

static ah_message *find_sent(ah_p2p *p2p, int peer, uint64_t id) {
    for (ah_message *msg = p2p->peers[peer].rts_sent.first; msg; msg = msg->after)
        if (msg->id == id) return msg;
    return NULL;
}

static void handle_answer(ah_p2p *p2p, int peer, const ah_frame *frame) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = find_sent(p2p, peer, frame->id);
    if (!msg) return; /* it has been withdrawn meanwhile */
    queue_remove(&state->rts_sent, msg);
    if (frame->kind == AH_CTS) {
        msg->stage = SENDING;
        msg->transferred = 0;
        msg->way = AH_WAY_PIECES;
        queue_append(&state->sending, msg);
        p2p->has_output |= AH_BIT(peer);
        return;
    }
    release_rts(p2p, msg);
    free(msg->ctrl);
    msg->ctrl = NULL;
    if (frame->kind == AH_NACK && (msg->expected_text = malloc(frame->total + 1)) != NULL) {
        ah_ring_read(&state->in, msg->expected_text, frame->total);
        msg->expected_text[frame->total] = 0;
    }
    end_and_wake(p2p, msg, frame->kind == AH_ACK ? AH_DELIVERED : AH_MISMATCHED);
}

static ah_message *find_receiving(ah_p2p *p2p, int peer, uint64_t id) {
    for (ah_message *msg = p2p->receiving.first; msg; msg = msg->after)
        if (msg->source == peer && msg->rts->frame.id == id) return msg;
    return NULL;
}

static void handle_data(ah_p2p *p2p, int peer, const ah_frame *frame) {
    ah_message *msg = find_receiving(p2p, peer, frame->id);
    if (!msg) return; /* of a receive that has ended early */
    if (frame->where != msg->transferred || frame->total > msg->nbytes - msg->transferred)
        return; /* nonsense */
    msg->touched = true;
    ah_ring_read(&p2p->peers[peer].in, (char *)msg->data + msg->transferred, frame->total);
    msg->transferred += frame->total;
    if (msg->transferred < msg->nbytes) return;
    queue_remove(&p2p->receiving, msg);
    free_unexpected(msg->rts);
    msg->rts = NULL;
    end_and_wake(p2p, msg, AH_DELIVERED);
}

static void handle_cancel(ah_p2p *p2p, int peer, const ah_frame *frame) {
    for (ah_unexpected *at = p2p->unexpected[frame->tag % TAG_BUCKETS].first; at; at = at->after)
        if (at->peer == peer && at->frame.kind == AH_RTS && at->frame.id == frame->id) {
            remove_unexpected(p2p, at);
            free_unexpected(at);
            return;
        }
    ah_message *msg = find_receiving(p2p, peer, frame->id); /* others look at the table of offers */
    if (!msg) return;
    queue_remove(&p2p->receiving, msg);
    if (msg->rts->ctrl.queued) unsend_ctrl(p2p, peer, &msg->rts->ctrl);
    free_unexpected(msg->rts);
    match_receive(p2p, msg);
}

static bool handle(ah_p2p *p2p, int peer, const ah_frame *frame) {
    switch (frame->kind) {
    case AH_EAGER: return handle_eager(p2p, peer, frame);
    case AH_RTS: return handle_rts(p2p, peer, frame);
    case AH_CTS:
    case AH_ACK:
    case AH_NACK: handle_answer(p2p, peer, frame); break;
    case AH_DATA: handle_data(p2p, peer, frame); break;
    case AH_CANCEL: handle_cancel(p2p, peer, frame); break;
    default: break;
    }
    return true;
}

/* ---- moving on */

static bool drain(ah_p2p *p2p, int peer) {
    ah_ring_end *in = &p2p->peers[peer].in;
    const ah_frame *frame;
    int handled = 0;
    while (handled < FRAMES_AT_ONCE && (frame = ah_ring_peek(in))) {
        size_t trailing = ah_trailing_bytes(frame);
        if (trailing > AH_RING_BYTES || !handle(p2p, peer, frame)) break;
        ah_ring_pop(in, trailing);
        handled++;
    }
    if (handled) wake_peer(p2p->region[peer], ASLEEP);
    return handled > 0;
}

static bool push_data(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    ah_message *msg = state->sending.first;
    size_t rest = msg->nbytes - msg->transferred, part = ah_min(rest, DATA_BYTES);
    size_t room = ah_ring_room(&state->out);
    if (part > room) part = room >= MIN_DATA_BYTES ? room / AH_CACHE_LINE * AH_CACHE_LINE : 0;
    ah_frame frame = {.kind = AH_DATA, .id = msg->id, .total = part};
    frame.where = msg->transferred;
    if (!part || !put_frame(p2p, peer, &frame, (const char *)msg->data + msg->transferred)) {
        wake_peer(p2p->region[peer], DOZING);
        return false;
    }
    msg->transferred += part;
    if (msg->transferred == msg->nbytes) {
        queue_remove(&state->sending, msg);
        release_rts(p2p, msg);
        free(msg->ctrl);
        msg->ctrl = NULL;
        end_and_wake(p2p, msg, AH_DELIVERED);
    }
    return true;
}

static bool push(ah_p2p *p2p, int peer) {
    peer_state *state = &p2p->peers[peer];
    bool moved = false;
    while (state->first) {
        ah_ctrl_msg *ctrl = state->first;
        if (!put_frame(p2p, peer, &ctrl->frame, data_of(ctrl))) return moved;
        state->first = ctrl->next;
        if (!state->first) state->last = &state->first;
        ctrl_sent(p2p, ctrl);
        moved = true;
    }
    while (state->sending.first && !state->first && push_data(p2p, peer)) moved = true;
    if (!state->first && !state->sending.first) p2p->has_output &= ~AH_BIT(peer);
    return moved;
}

/* Do what can be done now; say whether there was anything. */
static bool progress(ah_p2p *p2p) {
    bool moved = false;
    for (uint64_t rest = p2p->others; rest; rest &= rest - 1)
        moved |= drain(p2p, __builtin_ctzll(rest));
    for (uint64_t rest = p2p->has_output; rest; rest &= rest - 1)
        moved |= push(p2p, __builtin_ctzll(rest));
    if (p2p->reading.first) {
        read_some(p2p, p2p->reading.first);
        moved = true;
    }
    return moved;
}

/* ---- early ends */

static void cancel_send(ah_p2p *p2p, ah_message *msg) {
    peer_state *state = &p2p->peers[msg->peer];
    ah_ctrl_msg *ctrl = msg->ctrl;
    msg->ctrl = NULL;
    release_rts(p2p, msg);
    if (msg->stage == QUEUED) {
        if (ctrl->frame.kind == AH_EAGER) state->eager_used -= AH_CACHE_LINE + msg->nbytes;
        unsend_ctrl(p2p, msg->peer, ctrl);
        free(ctrl);
        return;
    }
    queue_remove(msg->stage == RTS_SENT ? &state->rts_sent : &state->sending, msg);
    ctrl->message = NULL;
    ctrl->frame = (ah_frame){.kind = AH_CANCEL, .id = msg->id, .tag = msg->tag};
    send_ctrl(p2p, msg->peer, ctrl);
}

/* Take a receive out of its line. Its offer, if it has one, is for others, or dropped. */
static void cancel_receive(ah_p2p *p2p, ah_message *msg) {
    ah_unexpected *rts = msg->rts;
    msg->rts = NULL;
    switch (msg->stage) {
    case POSTED: queue_remove(posted_queue(p2p, msg->tag), msg); break;
    case READING:
        queue_remove(&p2p->reading, msg);
        match_unexpected(p2p, rts);
        break;
    case RECEIVING:
        queue_remove(&p2p->receiving, msg);
        if (rts->ctrl.queued) {
            unsend_ctrl(p2p, rts->peer, &rts->ctrl);
            match_unexpected(p2p, rts);
        } else
            free_unexpected(rts); /* the pieces are on their way, for nobody */
        break;
    case ANSWERING: rts->ctrl.message = NULL; break;
    }
}

static void end_early(ah_p2p *p2p, ah_message *msg, int outcome) {
    if (msg->stage == ENDED) return;
    if (msg->stage == ANSWERING)
        outcome = msg->final_outcome; /* it has ended, but for the last word */
    if (msg->receives)
        cancel_receive(p2p, msg);
    else
        cancel_send(p2p, msg);
    end_and_wake(p2p, msg, outcome);
}

static bool has_no_peer(const ah_p2p *p2p, const ah_message *msg) {
    uint64_t ends = msg->peer < 0 ? p2p->others : AH_BIT(msg->peer);
    return ends && !(ends & ~p2p->left);
}

/* End what cannot go on. A step may end others than its own: begin anew after each. */
static void end_where(ah_p2p *p2p, bool (*applies)(const ah_p2p *, const ah_message *),
                      int outcome) {
    ah_message *msg = p2p->oldest;
    while (msg) {
        if (!applies(p2p, msg)) {
            msg = msg->newer;
            continue;
        }
        end_early(p2p, msg, outcome);
        msg = p2p->oldest;
    }
}

static bool always(const ah_p2p *p2p, const ah_message *msg) {
    (void)p2p;
    (void)msg;
    return true;
}

/* End watched messages whose time is over; find out when the next one's is. */
static void expire(ah_p2p *p2p) {
    int64_t now = ah_now();
    if (now < p2p->next_deadline) return;
    ah_message *msg = p2p->oldest;
    p2p->next_deadline = INT64_MAX;
    while (msg) {
        if (msg->is_async && msg->deadline <= now) {
            end_early(p2p, msg, AH_TIMED_OUT);
            msg = p2p->oldest;
            p2p->next_deadline = INT64_MAX;
            continue;
        }
        if (msg->is_async && msg->deadline < p2p->next_deadline) p2p->next_deadline = msg->deadline;
        msg = msg->newer;
    }
}

/* ---- beginning */

/* Where a message lies in the own heap, if others see it there. */
static bool find_in_heap(const ah_p2p *p2p, const ah_message *msg, uint64_t *where) {
    const char *heap = p2p->heap[p2p->rank], *data = msg->data;
    if (!heap || msg->is_private || data < heap || (size_t)(data - heap) > p2p->heap_bytes ||
        msg->nbytes > p2p->heap_bytes - (size_t)(data - heap))
        return false;
    *where = (uint64_t)(data - heap);
    return true;
}

/* Whether it may go at once: it is small, and the receiver has room for it whatever it receives. */
static bool is_eager(ah_p2p *p2p, const ah_message *msg, bool direct) {
    peer_state *state = &p2p->peers[msg->peer];
    size_t eager_credit = p2p->limits.eager_max;
    if (direct && p2p->limits.direct_min <= eager_credit) eager_credit = p2p->limits.direct_min - 1;
    if (eager_credit > AH_RING_BYTES / 4) eager_credit = AH_RING_BYTES / 4;
    if (msg->nbytes > eager_credit && msg->nbytes > AH_INLINE) return false;
    uint64_t used = state->eager_used + AH_CACHE_LINE + msg->nbytes;
    if (used > state->eager_credit)
        state->eager_credit = atomic_load(&state->out.consumed->released) + EAGER_CREDIT;
    if (used > state->eager_credit) return false;
    state->eager_used = used;
    return true;
}

static void add_running(ah_p2p *p2p, ah_message *msg) {
    msg->older = p2p->newest;
    msg->newer = NULL;
    *(p2p->newest ? &p2p->newest->newer : &p2p->oldest) = msg;
    p2p->newest = msg;
    p2p->pending++;
    if (!msg->is_async) return;
    p2p->async_count++;
    if (msg->deadline < p2p->next_deadline) p2p->next_deadline = msg->deadline;
}

static ah_ctrl_msg *new_ctrl_msg(ah_message *msg, const ah_frame *frame) {
    ah_ctrl_msg *ctrl = calloc(1, sizeof *ctrl);
    if (ctrl) *ctrl = (ah_ctrl_msg){.frame = *frame, .message = msg};
    msg->ctrl = ctrl;
    return ctrl;
}

static ah_frame frame_of(const ah_message *msg) {
    return (ah_frame){.tag = msg->tag, .signature = msg->signature, .total = msg->nbytes};
}

/* Send one that is eager, if nothing is to be said before it and there is room. */
static bool send_eagerly(ah_p2p *p2p, ah_message *msg, ah_frame *frame) {
    frame->kind = AH_EAGER;
    msg->way = AH_WAY_EAGER;
    if (msg->nbytes <= AH_INLINE && msg->nbytes) memcpy(frame->small, msg->data, msg->nbytes);
    if (p2p->peers[msg->peer].first || !put_frame(p2p, msg->peer, frame, msg->data)) return false;
    msg->stage = ENDED;
    atomic_store_explicit(&msg->outcome, AH_DELIVERED, memory_order_relaxed);
    return true;
}

static bool start_send(ah_p2p *p2p, ah_message *msg) {
    peer_state *state = &p2p->peers[msg->peer];
    ah_frame frame = frame_of(msg);
    uint64_t where = (uint64_t)(uintptr_t)msg->data;
    bool direct = find_in_heap(p2p, msg, &where);
    if (is_eager(p2p, msg, direct)) {
        if (send_eagerly(p2p, msg, &frame)) return true;
        if (!new_ctrl_msg(msg, &frame)) {
            state->eager_used -= AH_CACHE_LINE + msg->nbytes;
            return false;
        }
    } else {
        frame.kind = AH_RTS;
        frame.flags = direct ? AH_RTS_IN_HEAP : 0;
        frame.id = msg->id = ++p2p->last_id;
        frame.where = where;
        if (!new_ctrl_msg(msg, &frame)) return false;
        for (int tries = 0; tries < AH_RTS_SLOTS && msg->slot >= AH_RTS_SLOTS; tries++) {
            int slot = p2p->next_rts++ % AH_RTS_SLOTS;
            if (!p2p->rts_used[slot]) msg->slot = (uint64_t)slot;
        }
        msg->way = direct ? AH_WAY_DIRECT : AH_WAY_ATTACH;
        if (msg->slot < AH_RTS_SLOTS) {
            p2p->rts_used[msg->slot] = true;
            atomic_store(&p2p->region[p2p->rank]->rts_table[msg->slot], msg->id);
        }
        msg->ctrl->frame.slot = msg->slot;
    }
    add_running(p2p, msg);
    msg->stage = QUEUED;
    send_ctrl(p2p, msg->peer, msg->ctrl);
    return true;
}

static void start_receive(ah_p2p *p2p, ah_message *msg) {
    msg->order = ++p2p->last_order;
    add_running(p2p, msg);
    match_receive(p2p, msg);
    if (msg->stage == POSTED && !p2p->failed && !has_no_peer(p2p, msg)) return;
    if (msg->stage != ENDED && (p2p->failed || has_no_peer(p2p, msg)))
        end_early(p2p, msg, p2p->failed ? AH_FAILED : AH_PEER_LEFT);
}

/* Whether the serving thread has to see to things when no caller waits. */
static bool needs_server(const ah_p2p *p2p) {
    return p2p->async_count || p2p->has_output || p2p->reading.first;
}

/* No caller waits any more: from now on news are for the serving thread. */
static void hand_to_server(ah_p2p *p2p) {
    if (p2p->callers || !needs_server(p2p)) return;
    if (p2p->server_state == DOZING) {
        p2p->server_state = ASLEEP;
        set_doorbell(p2p, ASLEEP);
        while (progress(p2p)) continue; /* who came before that did not ring */
    }
    if (p2p->reading.first || p2p->next_deadline < p2p->server_until) wake_server(p2p);
}

/* A caller waits: nobody needs to wake the serving thread for what it will see. */
static void skip_server(ah_p2p *p2p) {
    if (p2p->server_state != ASLEEP) return;
    p2p->server_state = DOZING;
    if (!p2p->caller_sleeps) set_doorbell(p2p, DOZING);
}

static void reset_message(ah_message *msg) {
    msg->stage = NEW;
    atomic_store_explicit(&msg->outcome, AH_RUNNING, memory_order_relaxed);
    msg->source = -1;
    msg->way = AH_WAY_NONE;
    msg->touched = false;
    msg->sent_nbytes = msg->sent_signature = 0;
    msg->expected_text = NULL;
    msg->final_outcome = 0;
    msg->is_queued = false;
    msg->id = msg->transferred = 0;
    msg->slot = AH_RTS_SLOTS;
    msg->rts = NULL;
    msg->ctrl = NULL;
    msg->wait_count = 1; /* what ends here needs not be told */
}

bool ah_p2p_try_send(ah_p2p *p2p, ah_message *msg) {
    reset_message(msg);
    ah_frame frame = frame_of(msg);
    uint64_t where;
    pthread_mutex_lock(&p2p->lock);
    bool gone = p2p->failed || has_no_peer(p2p, msg);
    bool eager_used = !gone && is_eager(p2p, msg, find_in_heap(p2p, msg, &where));
    bool out = eager_used && send_eagerly(p2p, msg, &frame);
    if (eager_used && !out) p2p->peers[msg->peer].eager_used -= AH_CACHE_LINE + msg->nbytes;
    pthread_mutex_unlock(&p2p->lock);
    return out;
}

int ah_p2p_start(ah_p2p *p2p, ah_message *msg) {
    reset_message(msg);
    bool begun = true;
    pthread_mutex_lock(&p2p->lock);
    if (msg->receives)
        start_receive(p2p, msg);
    else if (p2p->failed || has_no_peer(p2p, msg)) {
        msg->stage = ENDED;
        atomic_store_explicit(&msg->outcome, p2p->failed ? AH_FAILED : AH_PEER_LEFT,
                              memory_order_relaxed);
    } else
        begun = start_send(p2p, msg);
    msg->wait_count--;
    int ended = msg->stage == ENDED;
    if (begun && msg->is_async && !ended) hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
    return begun ? ended : -1;
}

int ah_message_outcome(const ah_message *msg) {
    return atomic_load_explicit(&msg->outcome, memory_order_acquire);
}

void ah_p2p_end(ah_p2p *p2p, ah_message *msg, ah_outcome outcome) {
    pthread_mutex_lock(&p2p->lock);
    end_early(p2p, msg, outcome);
    hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

/* ---- waiting */

/* A wait, of a message or (NULL) of all. */
typedef struct {
    ah_p2p *p2p;
    ah_message *msg;
    const ah_wait_hooks *hooks;
    bool spun, paused;
    int64_t next_tick;
} wait_state;

static bool has_ended(const wait_state *wait) {
    return wait->msg ? wait->msg->stage == ENDED : !wait->p2p->pending;
}

static void wait_on_doorbell(const wait_state *wait, int64_t span) {
    ah_p2p *p2p = wait->p2p;
    p2p->caller_sleeps = true;
    uint32_t seen = set_doorbell(p2p, ASLEEP);
    if (!progress(p2p) && !has_ended(wait)) sleep_on_doorbell(p2p, seen, span);
    p2p->caller_sleeps = false;
    set_doorbell(p2p, (uint32_t)p2p->server_state);
    if (p2p->waiters) pthread_cond_signal(&p2p->changed); /* the bell is free */
}

static void wait_on_condition(ah_p2p *p2p, int64_t until) {
    struct timespec time = {until / 1000000000, until % 1000000000};
    p2p->waiters++;
    pthread_cond_timedwait(&p2p->changed, &p2p->lock, &time);
    p2p->waiters--;
}

static ah_status block(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    const ah_wait_hooks *hooks = wait->hooks;
    pthread_mutex_unlock(&p2p->lock);
    if (hooks && hooks->pause) hooks->pause(hooks->owner);
    wait->paused = true;
    int64_t now = ah_now(), moved = now, deadline = wait->msg ? wait->msg->deadline : INT64_MAX;
    /* Who has offered much sees nothing move until all of it has been read. */
    int64_t awake = ah_yield_time(wait->msg ? wait->msg->nbytes : 0);
    wait->next_tick = hooks && hooks->tick ? now + hooks->tick_ns : INT64_MAX;
    pthread_mutex_lock(&p2p->lock);
    for (int turn = 0;; turn++) {
        bool moves = progress(p2p);
        if (has_ended(wait)) {
            if (wait->spun && turn <= SOON_YIELDS) p2p->failed_spins = 1;
            return AH_OK;
        }
        if (moves) moved = now;
        if (now >= deadline) {
            end_early(p2p, wait->msg, AH_TIMED_OUT);
            return AH_OK;
        }
        if (now >= until) return AH_TIMEOUT;
        if (now - moved >= awake) {
            int64_t next = until < deadline ? until : deadline;
            if (wait->next_tick < next) next = wait->next_tick;
            if (next > now + p2p->limits.poll_interval) next = now + p2p->limits.poll_interval;
            if (next > now && !p2p->caller_sleeps)
                wait_on_doorbell(wait, next - now);
            else if (next > now)
                wait_on_condition(p2p, next);
            now = ah_now();
        } else {
            pthread_mutex_unlock(&p2p->lock);
            sched_yield();
            now = ah_now();
            pthread_mutex_lock(&p2p->lock);
        }
        if (now >= wait->next_tick) {
            wait->next_tick = now + hooks->tick_ns;
            pthread_mutex_unlock(&p2p->lock);
            bool stop = hooks->tick(hooks->owner);
            pthread_mutex_lock(&p2p->lock);
            if (stop && !has_ended(wait)) return AH_INTERRUPTED;
        }
    }
}

static ah_status spin_then_block(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    if (has_ended(wait)) return AH_OK;
    wait->spun = !p2p->failed_spins || ++p2p->failed_spins > SPIN_AGAIN_AFTER;
    for (int spin = 0; wait->spun && spin < SPINS; spin++) {
        progress(p2p);
        if (has_ended(wait)) {
            p2p->failed_spins = 0;
            return AH_OK;
        }
        ah_cpu_relax();
    }
    return block(wait, until);
}

static ah_status wait_until(wait_state *wait, int64_t until) {
    ah_p2p *p2p = wait->p2p;
    pthread_mutex_lock(&p2p->lock);
    p2p->callers++;
    skip_server(p2p);
    if (wait->msg) wait->msg->wait_count++;
    ah_status status = spin_then_block(wait, until);
    if (wait->msg) wait->msg->wait_count--;
    p2p->callers--;
    hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
    if (wait->paused && wait->hooks && wait->hooks->resume) wait->hooks->resume(wait->hooks->owner);
    return status;
}

ah_status ah_p2p_wait(ah_p2p *p2p, ah_message *msg, int64_t until, const ah_wait_hooks *hooks) {
    wait_state wait = {.p2p = p2p, .msg = msg, .hooks = hooks};
    return wait_until(&wait, until);
}

void ah_p2p_wait_idle(ah_p2p *p2p) {
    wait_state wait = {.p2p = p2p};
    wait_until(&wait, INT64_MAX);
}

/* ---- serving */

static void idle_wait(ah_p2p *p2p) {
    bool wanted = !p2p->callers && needs_server(p2p);
    p2p->server_state = wanted ? ASLEEP : DOZING;
    /* A caller may sleep there too. */
    uint32_t seen = set_doorbell(p2p, p2p->caller_sleeps ? ASLEEP : (uint32_t)p2p->server_state);
    if (p2p->callers || !progress(p2p)) {
        int64_t now = ah_now(),
                until = now + p2p->limits.poll_interval * (wanted ? 1 : IDLE_INTERVALS);
        if (p2p->next_deadline < until) until = p2p->next_deadline;
        p2p->server_until = until;
        if (!p2p->ended && !p2p->closed && until > now) sleep_on_doorbell(p2p, seen, until - now);
    }
    p2p->server_state = AWAKE;
}

ah_message *ah_p2p_serve(ah_p2p *p2p) {
    ah_message *ended = NULL;
    pthread_mutex_lock(&p2p->lock);
    while (!ended) {
        expire(p2p);
        bool moves = !p2p->callers && progress(p2p);
        ended = p2p->ended;
        p2p->ended = NULL;
        p2p->ended_last = &p2p->ended;
        if (ended || p2p->closed) break;
        if (moves) { /* others may want the lock between */
            pthread_mutex_unlock(&p2p->lock);
            sched_yield();
            pthread_mutex_lock(&p2p->lock);
        } else
            idle_wait(p2p);
    }
    pthread_mutex_unlock(&p2p->lock);
    return ended;
}

void ah_p2p_close(ah_p2p *p2p) {
    pthread_mutex_lock(&p2p->lock);
    p2p->closed = true;
    /* The last word there: the memory may be given back after this. */
    atomic_store(&p2p->region[p2p->rank]->nonce_at, 0);
    wake_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

/* ---- what becomes of others */

/* Nothing that is missing of these will come any more. */
static void forget_rts(ah_p2p *p2p, int rank) {
    for (int at = 0; at < TAG_BUCKETS; at++)
        for (ah_unexpected *arrived = p2p->unexpected[at].first, *next; arrived; arrived = next) {
            next = arrived->after;
            if (arrived->peer != rank || arrived->frame.kind != AH_RTS) continue;
            remove_unexpected(p2p, arrived);
            free_unexpected(arrived);
        }
    for (ah_message *msg = p2p->receiving.first, *next; msg; msg = next) {
        next = msg->after;
        if (msg->source != rank) continue;
        queue_remove(&p2p->receiving, msg);
        if (msg->rts->ctrl.queued) unsend_ctrl(p2p, rank, &msg->rts->ctrl);
        free_unexpected(msg->rts);
        match_receive(p2p, msg); /* what it finds is another's */
    }
}

void ah_p2p_remove_peer(ah_p2p *p2p, int rank) {
    peer_state *state = &p2p->peers[rank];
    pthread_mutex_lock(&p2p->lock);
    bool moves = true;
    while (moves) {
        moves = drain(p2p, rank);
        while (p2p->reading.first) moves = progress(p2p);
    }
    p2p->left |= AH_BIT(rank);
    forget_rts(p2p, rank);
    end_where(p2p, has_no_peer, AH_PEER_LEFT);
    while (state->first) { /* last words, for nobody */
        ah_ctrl_msg *ctrl = state->first;
        if (ctrl->message) end_early(p2p, ctrl->message, AH_PEER_LEFT);
        if (state->first != ctrl) continue; /* it went with the message */
        unsend_ctrl(p2p, rank, ctrl);
        if (ctrl->rts)
            free_unexpected(ctrl->rts);
        else
            free(ctrl);
    }
    hand_to_server(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

void ah_p2p_fail(ah_p2p *p2p) {
    pthread_mutex_lock(&p2p->lock);
    for (int turn = 0; turn < 1000 && progress(p2p); turn++) continue;
    p2p->failed = true;
    end_where(p2p, always, AH_FAILED);
    wake_callers(p2p);
    pthread_mutex_unlock(&p2p->lock);
}

/* ---- life */

ah_p2p *ah_p2p_new(int rank, int size, void *const regions[], const pid_t pids[],
                   void *const heaps[], size_t heap_bytes, const ah_p2p_limits *limits) {
    ah_p2p *p2p = calloc(1, sizeof *p2p);
    pthread_condattr_t monotonic;
    if (!p2p) return NULL;
    pthread_mutex_init(&p2p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p2p->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p2p->rank = rank;
    p2p->size = size;
    p2p->others = (size == 64 ? UINT64_MAX : AH_BIT(size) - 1) & ~AH_BIT(rank);
    p2p->limits = *limits;
    p2p->heap_bytes = heap_bytes;
    p2p->ended_last = &p2p->ended;
    p2p->next_deadline = INT64_MAX;
    p2p->failed_spins = size > ah_cpu_count();
    for (int peer = 0; peer < size; peer++) {
        p2p->region[peer] = regions[peer];
        p2p->heap[peer] = heaps ? heaps[peer] : NULL;
        p2p->pid[peer] = pids[peer];
    }
    ah_p2p_region *own = p2p->region[rank];
    for (int peer = 0; peer < size; peer++) {
        peer_state *state = &p2p->peers[peer];
        ah_p2p_region *theirs = p2p->region[peer];
        state->out.ring = &own->ring[peer];
        state->out.consumed = &theirs->consumed[rank];
        state->in.ring = &theirs->ring[rank];
        state->in.consumed = &own->consumed[peer];
        state->last = &state->first;
    }
    p2p->nonce = ah_new_nonce();
    atomic_store(&own->nonce, p2p->nonce);
    atomic_store(&own->nonce_at, (uint64_t)(uintptr_t)&p2p->nonce);
    return p2p;
}

void ah_p2p_free(ah_p2p *p2p) {
    if (!p2p) return;
    for (int at = 0; at < TAG_BUCKETS; at++)
        for (ah_unexpected *arrived = p2p->unexpected[at].first, *next; arrived; arrived = next) {
            next = arrived->after;
            free_unexpected(arrived);
        }
    for (int peer = 0; peer < p2p->size; peer++)
        for (ah_ctrl_msg *ctrl = p2p->peers[peer].first, *next; ctrl; ctrl = next) {
            next = ctrl->next;
            ctrl->rts ? free_unexpected(ctrl->rts) : free(ctrl);
        }
    pthread_cond_destroy(&p2p->changed);
    pthread_mutex_destroy(&p2p->lock);
    free(p2p);
}
