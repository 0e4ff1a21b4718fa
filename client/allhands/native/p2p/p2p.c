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
#include "comm/wait.h"
#include "kernels/kernels.h"
#include "p2p/p2p_ring.h"

#define MICROSECONDS INT64_C(1000)
#define SPINS 200
#define TRY_AGAIN 64
#define SOON 4
#define NAP (50 * 1000 * MICROSECONDS)
#define NAPS_OF_REST 20 /* where nothing is waited for */

#define BUDGET ((uint64_t)4 << 20)
#define STEP ((size_t)512 << 10) /* of a copy, with the lock held */
#define ATTACH_STEP ((size_t)4 << 20)
#define PIECE ((size_t)16 << 10)
#define LEAST_PIECE ((size_t)8 << 10)
#define FRAMES_AT_ONCE 64
#define BUCKETS 64
#define LONGEST_TEXT 4096

enum { AWAKE, DOZING, ASLEEP };
enum { NEW, QUEUED, OFFERED, CLEARED, OPEN, PULLING, FILLING, SAYING, OVER }; /* stages */

struct ah_note {
    ah_note *next;
    ah_frame frame;
    ah_message *message; /* that goes on when it is out; NULL: none */
    ah_arrived *offer;   /* that it answers; freed with it */
    bool queued;
};

/* A message that came before its receive, or that is being received from where it lies. */
struct ah_arrived {
    ah_arrived *before, *after;
    uint64_t order;
    int peer;
    ah_frame frame;
    ah_note note;  /* the answer to an offer */
    char *text;    /* of a refusal */
    char *payload; /* of an eager one */
};

typedef struct {
    ah_message *first, *last;
} line;

typedef struct {
    ah_wire_end out, in;
    ah_note *first, **last; /* to be said, in order */
    line offered, cleared;
    uint64_t eager, most;  /* of the budget: used here, and what may be before looking again */
    uint64_t released;     /* of the peer's budget, here */
    char attach;              /* 0: not tried, 1: works, -1: does not */
} correspondent;

struct ah_mail {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int rank, size;
    uint64_t others, left;
    ah_mail_limits limits;
    ah_office *office[AH_MAX_RANKS];
    char *heap[AH_MAX_RANKS];
    size_t heap_bytes;
    pid_t pid[AH_MAX_RANKS];
    uint64_t nonce;
    uint64_t ids, orders;
    uint64_t busy; /* peers to whom something is to be said */
    line open[BUCKETS];
    struct {
        ah_arrived *first, *last;
    } early[BUCKETS];
    line pulling, filling;
    ah_message *oldest, *newest; /* under way */
    size_t pending, watched;
    ah_message *ended, **ended_last;
    bool offer_used[AH_OFFERS];
    int next_offer;
    int64_t soonest; /* no watched message has an earlier deadline */
    int callers, waiters;
    bool sleeping; /* a caller has the doorbell */
    int server;    /* how the serving thread sleeps there */
    int64_t server_until;
    int vain;
    bool failed, closed;
    correspondent with[AH_MAX_RANKS];
};

/* Two copies through a ring that stays in the caches, on two cores at once, take 5 us for 64 KiB
 * and 40 us for 1 MiB; attach, on the receiver's core alone, 11 and 87. From about 3 MiB on it is the
 * other way round: memory is what counts then, and NumPy's arrays lie on huge pages. */
ah_mail_limits ah_default_mail_limits(void) {
    return (ah_mail_limits){
        .eager_max = (size_t)64 << 10,
        .direct_min = (size_t)16 << 10,
        .attach_min = (size_t)3 << 20,
        .nap = NAP,
    };
}

/* ---- lines */

static void append(line *to, ah_message *one) {
    one->before = to->last;
    one->after = NULL;
    *(to->last ? &to->last->after : &to->first) = one;
    to->last = one;
}

static void take_from(line *from, ah_message *one) {
    *(one->before ? &one->before->after : &from->first) = one->after;
    *(one->after ? &one->after->before : &from->last) = one->before;
}

/* Receives are matched in the order in which they were posted, also after having been matched. */
static void insert(line *to, ah_message *one) {
    ah_message *before = to->last;
    while (before && before->order > one->order) before = before->before;
    one->before = before;
    one->after = before ? before->after : to->first;
    *(before ? &before->after : &to->first) = one;
    *(one->after ? &one->after->before : &to->last) = one;
}

static line *open_line(ah_mail *mail, uint32_t tag) { return &mail->open[tag % BUCKETS]; }

static void keep(ah_mail *mail, ah_arrived *one) {
    unsigned at = one->frame.tag % BUCKETS;
    ah_arrived *before = mail->early[at].last;
    while (before && before->order > one->order) before = before->before;
    one->before = before;
    one->after = before ? before->after : mail->early[at].first;
    *(before ? &before->after : &mail->early[at].first) = one;
    *(one->after ? &one->after->before : &mail->early[at].last) = one;
}

static void unkeep(ah_mail *mail, ah_arrived *one) {
    unsigned at = one->frame.tag % BUCKETS;
    *(one->before ? &one->before->after : &mail->early[at].first) = one->after;
    *(one->after ? &one->after->before : &mail->early[at].last) = one->before;
}

static void drop(ah_arrived *one) {
    free(one->text);
    free(one->payload);
    free(one);
}

/* ---- bells */

/* The level is in the lowest bits; the rest counts rings, so that who was about to sleep when it
 * was rung does not take a level that was set again meanwhile for the one that it has seen. */
#define LEVEL 3u

/* Return what the bell is now. */
static uint32_t set_level(ah_mail *mail, uint32_t level) {
    _Atomic uint32_t *bell = &mail->office[mail->rank]->bell;
    uint32_t seen = atomic_load(bell), set;
    do set = (seen & ~LEVEL) | level;
    while (!atomic_compare_exchange_weak(bell, &seen, set));
    return set;
}

static void ring(ah_office *office, uint32_t from) {
    uint32_t seen = atomic_load(&office->bell);
    while ((seen & LEVEL) >= from && (seen & LEVEL) != AWAKE)
        if (atomic_compare_exchange_weak(&office->bell, &seen, (seen & ~LEVEL) + LEVEL + 1)) {
            syscall(SYS_futex, &office->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
            return;
        }
}

/* Sleep until rung, or for so long. With the lock, which is let go. */
static void sleep_until_rung(ah_mail *mail, uint32_t seen, int64_t span) {
    struct timespec time = {span / 1000000000, span % 1000000000};
    pthread_mutex_unlock(&mail->lock);
    syscall(SYS_futex, &mail->office[mail->rank]->bell, FUTEX_WAIT, seen, &time, NULL, 0);
    pthread_mutex_lock(&mail->lock);
}

/* Threads of this process that wait have something to see. */
static void stir_callers(ah_mail *mail) {
    if (mail->waiters) pthread_cond_broadcast(&mail->changed);
    if (mail->sleeping) ring(mail->office[mail->rank], ASLEEP);
}

static void stir_server(ah_mail *mail) {
    if (mail->server) ring(mail->office[mail->rank], DOZING);
}

/* ---- ends */

static void end(ah_mail *mail, ah_message *one, int outcome) {
    *(one->older ? &one->older->newer : &mail->oldest) = one->newer;
    *(one->newer ? &one->newer->older : &mail->newest) = one->older;
    mail->pending--;
    if (one->watched) mail->watched--;
    one->stage = OVER;
    if (!one->awaited && one->watched) {
        one->listed = true;
        one->next_ended = NULL;
        *mail->ended_last = one;
        mail->ended_last = &one->next_ended;
    }
    atomic_store_explicit(&one->outcome, outcome, memory_order_release);
}

/* The same, and wake who waits for it. */
static void end_and_tell(ah_mail *mail, ah_message *one, int outcome) {
    bool awaited = one->awaited || mail->pending == 1;
    end(mail, one, outcome);
    if (awaited) stir_callers(mail);
    if (one->listed) stir_server(mail);
}

/* ---- saying */

static void release_offer(ah_mail *mail, ah_message *one) {
    if (one->slot >= AH_OFFERS) return;
    ah_offer_release(mail->office[mail->rank], one->slot);
    mail->offer_used[one->slot] = false;
    one->slot = AH_OFFERS;
}

/* Go on after a note has been put on the wire. */
static void said(ah_mail *mail, ah_note *note) {
    ah_message *one = note->message;
    note->queued = false;
    switch (note->frame.kind) {
    case AH_EAGER:
        free(note);
        if (one) one->note = NULL, end_and_tell(mail, one, AH_DELIVERED);
        return;
    case AH_OFFER:
        one->stage = OFFERED;
        append(&mail->with[one->peer].offered, one);
        return;
    case AH_TAKEN:
    case AH_REFUSED:
        drop(note->offer);
        if (one) one->offer = NULL, end_and_tell(mail, one, one->settling);
        return;
    case AH_WITHDRAWN:
        free(note);
        return;
    default: /* CLEAR: the answer is pieces */
        return;
    }
}

static const void *data_of(const ah_note *note) {
    if (note->frame.kind == AH_EAGER) return note->message->data;
    return note->offer ? note->offer->text : NULL;
}

static bool put(ah_mail *mail, int peer, const ah_frame *frame, const void *data) {
    bool out = ah_wire_put(&mail->with[peer].out, frame, data);
    ring(mail->office[peer], out ? ASLEEP : DOZING);
    return out;
}

/* Say it when what was to be said before is out. */
static void say(ah_mail *mail, int peer, ah_note *note) {
    correspondent *with = &mail->with[peer];
    if (!with->first && put(mail, peer, &note->frame, data_of(note))) {
        said(mail, note);
        return;
    }
    note->next = NULL;
    note->queued = true;
    *with->last = note;
    with->last = &note->next;
    mail->busy |= AH_BIT(peer);
}

static void unsay(ah_mail *mail, int peer, ah_note *note) {
    correspondent *with = &mail->with[peer];
    ah_note **at = &with->first;
    while (*at != note) at = &(*at)->next;
    *at = note->next;
    if (!*at) with->last = at;
    note->queued = false;
}

static void answer(ah_mail *mail, ah_message *one, ah_frame_kind kind) {
    ah_arrived *offer = one->offer;
    ah_note *note = &offer->note;
    *note = (ah_note){.message = one, .offer = offer};
    note->frame = (ah_frame){.kind = (uint16_t)kind, .id = offer->frame.id};
    if (kind == AH_REFUSED && (offer->text = malloc(LONGEST_TEXT)) != NULL) {
        snprintf(offer->text, LONGEST_TEXT, "message(%s[%zu])", one->type, one->count);
        note->frame.total = strlen(offer->text);
    }
    say(mail, offer->peer, note);
}

/* ---- receiving */

static void seek(ah_mail *mail, ah_message *one);

static ah_message *receive_for(ah_mail *mail, int peer, uint32_t tag) {
    for (ah_message *one = open_line(mail, tag)->first; one; one = one->after)
        if (one->tag == tag && (one->peer < 0 || one->peer == peer)) return one;
    return NULL;
}

static bool holds(const ah_mail *mail, const ah_arrived *offer) {
    return ah_offer_holds(mail->office[offer->peer], offer->frame.slot, offer->frame.id);
}

static bool is_unlike(const ah_message *one, const ah_frame *frame) {
    return frame->signature != one->signature || frame->total != one->nbytes;
}

static bool read_from(const ah_mail *mail, int peer, uint64_t address, void *to, size_t nbytes) {
    return ah_cma_read_process(mail->pid[peer], address, to, nbytes);
}

/* Whether the process of that number is the peer, and not one that took the number over: then it
 * was so for all that was read before. (In one call with the data, that comes a tenth slower.) */
static bool is_peer(const ah_mail *mail, int peer) {
    uint64_t at = atomic_load(&mail->office[peer]->nonce_at), nonce = 0;
    return at && read_from(mail, peer, at, &nonce, sizeof nonce) &&
           nonce == atomic_load(&mail->office[peer]->nonce);
}

static bool can_attach(ah_mail *mail, int peer) {
    correspondent *with = &mail->with[peer];
    if (!with->attach) with->attach = is_peer(mail, peer) ? 1 : -1;
    return with->attach > 0;
}

static void conclude(ah_mail *mail, ah_message *one, ah_frame_kind kind, int outcome) {
    one->stage = SAYING;
    one->settling = outcome;
    answer(mail, one, kind);
}

/* A receive has found its offer: fetch it. */
static void fetch(ah_mail *mail, ah_message *one) {
    const ah_arrived *offer = one->offer;
    const ah_frame *frame = &offer->frame;
    bool is_held = frame->slot < AH_OFFERS;
    if (is_unlike(one, frame)) {
        one->unlike = frame->total;
        one->unlike_signature = frame->signature;
        conclude(mail, one, AH_REFUSED, AH_UNLIKE);
        return;
    }
    if (!frame->total) {
        one->way = AH_WAY_EAGER;
        conclude(mail, one, AH_TAKEN, AH_DELIVERED);
        return;
    }
    one->at = 0;
    one->way = AH_WAY_PIECES;
    if (is_held && frame->flags & AH_OFFER_IN_HEAP) {
        if (mail->heap[offer->peer] && frame->where <= mail->heap_bytes &&
            frame->total <= mail->heap_bytes - frame->where)
            one->way = AH_WAY_DIRECT;
    } else if (is_held && frame->total >= mail->limits.attach_min && can_attach(mail, offer->peer))
        one->way = AH_WAY_ATTACH;
    if (one->way == AH_WAY_PIECES) {
        one->stage = FILLING;
        append(&mail->filling, one);
        answer(mail, one, AH_CLEAR);
    } else {
        one->stage = PULLING;
        append(&mail->pulling, one);
    }
}

/* Bring a message that has arrived and a receive, in no line, together. False: it was withdrawn,
 * and is gone; the word of that is on its way. */
static bool bind(ah_mail *mail, ah_message *one, ah_arrived *arrived) {
    const ah_frame *frame = &arrived->frame;
    if (frame->kind == AH_OFFER) {
        if (frame->slot < AH_OFFERS && !holds(mail, arrived)) {
            drop(arrived);
            return false;
        }
        one->source = arrived->peer;
        one->offer = arrived;
        fetch(mail, one);
        return true;
    }
    bool unlike = is_unlike(one, frame);
    one->source = arrived->peer;
    one->way = AH_WAY_EAGER;
    one->unlike = frame->total;
    one->unlike_signature = frame->signature;
    if (!unlike && frame->total)
        memcpy(one->data, arrived->payload ? arrived->payload : (const char *)frame->small,
               frame->total);
    correspondent *with = &mail->with[arrived->peer];
    with->released += AH_CACHE_LINE + frame->total;
    atomic_store_explicit(&with->in.taken->released, with->released, memory_order_release);
    drop(arrived);
    end_and_tell(mail, one, unlike ? AH_UNLIKE : AH_DELIVERED);
    return true;
}

/* A message has no receive (any more): give it to the first that is open for it, or keep it. */
static void place(ah_mail *mail, ah_arrived *arrived) {
    ah_message *one = receive_for(mail, arrived->peer, arrived->frame.tag);
    if (!one) {
        keep(mail, arrived);
        return;
    }
    take_from(open_line(mail, one->tag), one);
    if (!bind(mail, one, arrived)) seek(mail, one);
}

/* A receive has no message (any more): give it the first that fits, or let it wait. */
static void seek(ah_mail *mail, ah_message *one) {
    ah_arrived *next;
    for (ah_arrived *at = mail->early[one->tag % BUCKETS].first; at; at = next) {
        next = at->after;
        if (at->frame.tag != one->tag || (one->peer >= 0 && one->peer != at->peer)) continue;
        unkeep(mail, at);
        if (bind(mail, one, at)) return;
    }
    one->source = -1;
    one->offer = NULL;
    one->stage = OPEN;
    insert(open_line(mail, one->tag), one);
}

/* Fetch some of what lies with its sender. */
static void pull(ah_mail *mail, ah_message *one) {
    ah_arrived *offer = one->offer;
    const ah_frame *frame = &offer->frame;
    bool direct = one->way == AH_WAY_DIRECT;
    size_t part = ah_min(direct ? STEP : ATTACH_STEP, one->nbytes - one->at);
    char *to = (char *)one->data + one->at;
    take_from(&mail->pulling, one);
    one->touched = true;
    if (direct)
        ah_copy(to, mail->heap[offer->peer] + frame->where + one->at, part, one->nbytes > STEP);
    else if (!read_from(mail, offer->peer, frame->where + one->at, to, part) ||
             (one->at + part == one->nbytes && !is_peer(mail, offer->peer))) {
        /* Dead, or not to be looked at any more: asking it does no harm. */
        mail->with[offer->peer].attach = -1;
        fetch(mail, one);
        return;
    }
    one->at += part;
    bool good = holds(mail, offer);
    if (!good) {
        drop(offer);
        seek(mail, one);
    } else if (one->at == one->nbytes)
        conclude(mail, one, AH_TAKEN, AH_DELIVERED);
    else
        append(&mail->pulling, one);
}

/* ---- hearing; false: not now */

static bool hear_eager(ah_mail *mail, int peer, const ah_frame *frame) {
    correspondent *with = &mail->with[peer];
    ah_message *one = receive_for(mail, peer, frame->tag);
    if (one) { /* into its place at once */
        bool unlike = is_unlike(one, frame);
        take_from(open_line(mail, one->tag), one);
        one->source = peer;
        one->way = AH_WAY_EAGER;
        one->unlike = frame->total;
        one->unlike_signature = frame->signature;
        if (!unlike && frame->total > AH_INLINE) ah_wire_read(&with->in, one->data, frame->total);
        else if (!unlike) memcpy(one->data, frame->small, frame->total);
        with->released += AH_CACHE_LINE + frame->total;
        atomic_store_explicit(&with->in.taken->released, with->released, memory_order_release);
        end_and_tell(mail, one, unlike ? AH_UNLIKE : AH_DELIVERED);
        return true;
    }
    ah_arrived *arrived = calloc(1, sizeof *arrived);
    char *payload = frame->total > AH_INLINE ? malloc(frame->total) : NULL;
    if (!arrived || (frame->total > AH_INLINE && !payload)) {
        free(arrived);
        free(payload);
        return false; /* it stays on the wire, and its sender waits */
    }
    if (payload) ah_wire_read(&with->in, payload, frame->total);
    *arrived = (ah_arrived){.order = ++mail->orders, .peer = peer, .payload = payload};
    memcpy(&arrived->frame, frame, sizeof *frame);
    keep(mail, arrived);
    return true;
}

static bool hear_offer(ah_mail *mail, int peer, const ah_frame *frame) {
    ah_arrived *arrived = calloc(1, sizeof *arrived);
    if (!arrived) return false;
    arrived->order = ++mail->orders;
    arrived->peer = peer;
    memcpy(&arrived->frame, frame, sizeof *frame);
    place(mail, arrived);
    return true;
}

static ah_message *sent(ah_mail *mail, int peer, uint64_t id) {
    for (ah_message *one = mail->with[peer].offered.first; one; one = one->after)
        if (one->id == id) return one;
    return NULL;
}

static void hear_answer(ah_mail *mail, int peer, const ah_frame *frame) {
    correspondent *with = &mail->with[peer];
    ah_message *one = sent(mail, peer, frame->id);
    if (!one) return; /* it has been withdrawn meanwhile */
    take_from(&with->offered, one);
    if (frame->kind == AH_CLEAR) {
        one->stage = CLEARED;
        one->at = 0;
        one->way = AH_WAY_PIECES;
        append(&with->cleared, one);
        mail->busy |= AH_BIT(peer);
        return;
    }
    release_offer(mail, one);
    free(one->note);
    one->note = NULL;
    if (frame->kind == AH_REFUSED && (one->told = malloc(frame->total + 1)) != NULL) {
        ah_wire_read(&with->in, one->told, frame->total);
        one->told[frame->total] = 0;
    }
    end_and_tell(mail, one, frame->kind == AH_TAKEN ? AH_DELIVERED : AH_UNLIKE);
}

static ah_message *filled(ah_mail *mail, int peer, uint64_t id) {
    for (ah_message *one = mail->filling.first; one; one = one->after)
        if (one->source == peer && one->offer->frame.id == id) return one;
    return NULL;
}

static void hear_piece(ah_mail *mail, int peer, const ah_frame *frame) {
    ah_message *one = filled(mail, peer, frame->id);
    if (!one) return; /* of a receive that has ended early */
    if (frame->where != one->at || frame->total > one->nbytes - one->at) return; /* nonsense */
    one->touched = true;
    ah_wire_read(&mail->with[peer].in, (char *)one->data + one->at, frame->total);
    one->at += frame->total;
    if (one->at < one->nbytes) return;
    take_from(&mail->filling, one);
    drop(one->offer);
    one->offer = NULL;
    end_and_tell(mail, one, AH_DELIVERED);
}

static void hear_withdrawn(ah_mail *mail, int peer, const ah_frame *frame) {
    for (ah_arrived *at = mail->early[frame->tag % BUCKETS].first; at; at = at->after)
        if (at->peer == peer && at->frame.kind == AH_OFFER && at->frame.id == frame->id) {
            unkeep(mail, at);
            drop(at);
            return;
        }
    ah_message *one = filled(mail, peer, frame->id); /* others look at the table of offers */
    if (!one) return;
    take_from(&mail->filling, one);
    if (one->offer->note.queued) unsay(mail, peer, &one->offer->note);
    drop(one->offer);
    seek(mail, one);
}

static bool hear(ah_mail *mail, int peer, const ah_frame *frame) {
    switch (frame->kind) {
    case AH_EAGER: return hear_eager(mail, peer, frame);
    case AH_OFFER: return hear_offer(mail, peer, frame);
    case AH_CLEAR:
    case AH_TAKEN:
    case AH_REFUSED: hear_answer(mail, peer, frame); break;
    case AH_PIECE: hear_piece(mail, peer, frame); break;
    case AH_WITHDRAWN: hear_withdrawn(mail, peer, frame); break;
    default: break;
    }
    return true;
}

/* ---- moving on */

static bool drain(ah_mail *mail, int peer) {
    ah_wire_end *in = &mail->with[peer].in;
    const ah_frame *frame;
    int heard = 0;
    while (heard < FRAMES_AT_ONCE && (frame = ah_wire_look(in))) {
        size_t beside = ah_beside(frame);
        if (beside > AH_WIRE_BYTES || !hear(mail, peer, frame)) break;
        ah_wire_pass(in, beside);
        heard++;
    }
    if (heard) ring(mail->office[peer], ASLEEP);
    return heard > 0;
}

static bool push_piece(ah_mail *mail, int peer) {
    correspondent *with = &mail->with[peer];
    ah_message *one = with->cleared.first;
    size_t rest = one->nbytes - one->at, part = ah_min(rest, PIECE);
    size_t room = ah_wire_room(&with->out);
    if (part > room) part = room >= LEAST_PIECE ? room / AH_CACHE_LINE * AH_CACHE_LINE : 0;
    ah_frame frame = {.kind = AH_PIECE, .id = one->id, .total = part};
    frame.where = one->at;
    if (!part || !put(mail, peer, &frame, (const char *)one->data + one->at)) {
        ring(mail->office[peer], DOZING);
        return false;
    }
    one->at += part;
    if (one->at == one->nbytes) {
        take_from(&with->cleared, one);
        release_offer(mail, one);
        free(one->note);
        one->note = NULL;
        end_and_tell(mail, one, AH_DELIVERED);
    }
    return true;
}

static bool push(ah_mail *mail, int peer) {
    correspondent *with = &mail->with[peer];
    bool moved = false;
    while (with->first) {
        ah_note *note = with->first;
        if (!put(mail, peer, &note->frame, data_of(note))) return moved;
        with->first = note->next;
        if (!with->first) with->last = &with->first;
        said(mail, note);
        moved = true;
    }
    while (with->cleared.first && !with->first && push_piece(mail, peer)) moved = true;
    if (!with->first && !with->cleared.first) mail->busy &= ~AH_BIT(peer);
    return moved;
}

/* Do what can be done now; say whether there was anything. */
static bool advance(ah_mail *mail) {
    bool moved = false;
    for (uint64_t rest = mail->others; rest; rest &= rest - 1)
        moved |= drain(mail, __builtin_ctzll(rest));
    for (uint64_t rest = mail->busy; rest; rest &= rest - 1)
        moved |= push(mail, __builtin_ctzll(rest));
    if (mail->pulling.first) {
        pull(mail, mail->pulling.first);
        moved = true;
    }
    return moved;
}

/* ---- early ends */

static void withdraw_send(ah_mail *mail, ah_message *one) {
    correspondent *with = &mail->with[one->peer];
    ah_note *note = one->note;
    one->note = NULL;
    release_offer(mail, one);
    if (one->stage == QUEUED) {
        if (note->frame.kind == AH_EAGER) with->eager -= AH_CACHE_LINE + one->nbytes;
        unsay(mail, one->peer, note);
        free(note);
        return;
    }
    take_from(one->stage == OFFERED ? &with->offered : &with->cleared, one);
    note->message = NULL;
    note->frame = (ah_frame){.kind = AH_WITHDRAWN, .id = one->id, .tag = one->tag};
    say(mail, one->peer, note);
}

/* Take a receive out of its line. Its offer, if it has one, is for others, or dropped. */
static void retract(ah_mail *mail, ah_message *one) {
    ah_arrived *offer = one->offer;
    one->offer = NULL;
    switch (one->stage) {
    case OPEN:
        take_from(open_line(mail, one->tag), one);
        break;
    case PULLING:
        take_from(&mail->pulling, one);
        place(mail, offer);
        break;
    case FILLING:
        take_from(&mail->filling, one);
        if (offer->note.queued) {
            unsay(mail, offer->peer, &offer->note);
            place(mail, offer);
        } else
            drop(offer); /* the pieces are on their way, for nobody */
        break;
    case SAYING:
        offer->note.message = NULL;
        break;
    }
}

static void end_early(ah_mail *mail, ah_message *one, int outcome) {
    if (one->stage == OVER) return;
    if (one->stage == SAYING) outcome = one->settling; /* it has ended, but for the last word */
    if (one->receives) retract(mail, one);
    else withdraw_send(mail, one);
    end_and_tell(mail, one, outcome);
}

static bool is_gone(const ah_mail *mail, const ah_message *one) {
    uint64_t ends = one->peer < 0 ? mail->others : AH_BIT(one->peer);
    return ends && !(ends & ~mail->left);
}

/* End what cannot go on. A step may end others than its own: begin anew after each. */
static void end_all(ah_mail *mail, bool (*hopeless)(const ah_mail *, const ah_message *),
                    int outcome) {
    ah_message *one = mail->oldest;
    while (one) {
        if (!hopeless(mail, one)) {
            one = one->newer;
            continue;
        }
        end_early(mail, one, outcome);
        one = mail->oldest;
    }
}

static bool always(const ah_mail *mail, const ah_message *one) {
    (void)mail;
    (void)one;
    return true;
}

/* End watched messages whose time is over; find out when the next one's is. */
static void expire(ah_mail *mail) {
    int64_t now = ah_now();
    if (now < mail->soonest) return;
    ah_message *one = mail->oldest;
    mail->soonest = INT64_MAX;
    while (one) {
        if (one->watched && one->deadline <= now) {
            end_early(mail, one, AH_LATE);
            one = mail->oldest;
            mail->soonest = INT64_MAX;
            continue;
        }
        if (one->watched && one->deadline < mail->soonest) mail->soonest = one->deadline;
        one = one->newer;
    }
}

/* ---- beginning */

/* Where a message lies in the own heap, if others see it there. */
static bool in_heap(const ah_mail *mail, const ah_message *one, uint64_t *where) {
    const char *heap = mail->heap[mail->rank], *data = one->data;
    if (!heap || one->private || data < heap || (size_t)(data - heap) > mail->heap_bytes ||
        one->nbytes > mail->heap_bytes - (size_t)(data - heap))
        return false;
    *where = (uint64_t)(data - heap);
    return true;
}

/* Whether it may go at once: it is small, and the receiver has room for it whatever it receives. */
static bool is_eager(ah_mail *mail, const ah_message *one, bool direct) {
    correspondent *with = &mail->with[one->peer];
    size_t most = mail->limits.eager_max;
    if (direct && mail->limits.direct_min <= most) most = mail->limits.direct_min - 1;
    if (most > AH_WIRE_BYTES / 4) most = AH_WIRE_BYTES / 4;
    if (one->nbytes > most && one->nbytes > AH_INLINE) return false;
    uint64_t used = with->eager + AH_CACHE_LINE + one->nbytes;
    if (used > with->most) with->most = atomic_load(&with->out.taken->released) + BUDGET;
    if (used > with->most) return false;
    with->eager = used;
    return true;
}

static void enlist(ah_mail *mail, ah_message *one) {
    one->older = mail->newest;
    one->newer = NULL;
    *(mail->newest ? &mail->newest->newer : &mail->oldest) = one;
    mail->newest = one;
    mail->pending++;
    if (!one->watched) return;
    mail->watched++;
    if (one->deadline < mail->soonest) mail->soonest = one->deadline;
}

static ah_note *noted(ah_message *one, const ah_frame *frame) {
    ah_note *note = calloc(1, sizeof *note);
    if (note) *note = (ah_note){.frame = *frame, .message = one};
    one->note = note;
    return note;
}

static ah_frame frame_of(const ah_message *one) {
    return (ah_frame){.tag = one->tag, .signature = one->signature, .total = one->nbytes};
}

/* Send one that is eager, if nothing is to be said before it and there is room. */
static bool goes_at_once(ah_mail *mail, ah_message *one, ah_frame *frame) {
    frame->kind = AH_EAGER;
    one->way = AH_WAY_EAGER;
    if (one->nbytes <= AH_INLINE && one->nbytes) memcpy(frame->small, one->data, one->nbytes);
    if (mail->with[one->peer].first || !put(mail, one->peer, frame, one->data)) return false;
    one->stage = OVER;
    atomic_store_explicit(&one->outcome, AH_DELIVERED, memory_order_relaxed);
    return true;
}

static bool start_send(ah_mail *mail, ah_message *one) {
    correspondent *with = &mail->with[one->peer];
    ah_frame frame = frame_of(one);
    uint64_t where = (uint64_t)(uintptr_t)one->data;
    bool direct = in_heap(mail, one, &where);
    if (is_eager(mail, one, direct)) {
        if (goes_at_once(mail, one, &frame)) return true;
        if (!noted(one, &frame)) {
            with->eager -= AH_CACHE_LINE + one->nbytes;
            return false;
        }
    } else {
        frame.kind = AH_OFFER;
        frame.flags = direct ? AH_OFFER_IN_HEAP : 0;
        frame.id = one->id = ++mail->ids;
        frame.where = where;
        if (!noted(one, &frame)) return false;
        for (int tries = 0; tries < AH_OFFERS && one->slot >= AH_OFFERS; tries++) {
            int slot = mail->next_offer++ % AH_OFFERS;
            if (!mail->offer_used[slot]) one->slot = (uint64_t)slot;
        }
        one->way = direct ? AH_WAY_DIRECT : AH_WAY_ATTACH;
        if (one->slot < AH_OFFERS) {
            mail->offer_used[one->slot] = true;
            atomic_store(&mail->office[mail->rank]->offers[one->slot], one->id);
        }
        one->note->frame.slot = one->slot;
    }
    enlist(mail, one);
    one->stage = QUEUED;
    say(mail, one->peer, one->note);
    return true;
}

static void start_receive(ah_mail *mail, ah_message *one) {
    one->order = ++mail->orders;
    enlist(mail, one);
    seek(mail, one);
    if (one->stage == OPEN && !mail->failed && !is_gone(mail, one)) return;
    if (one->stage != OVER && (mail->failed || is_gone(mail, one)))
        end_early(mail, one, mail->failed ? AH_FAILED : AH_GONE);
}

/* Whether the serving thread has to see to things when no caller waits. */
static bool wants_server(const ah_mail *mail) {
    return mail->watched || mail->busy || mail->pulling.first;
}

/* No caller waits any more: from now on news are for the serving thread. */
static void hand_over(ah_mail *mail) {
    if (mail->callers || !wants_server(mail)) return;
    if (mail->server == DOZING) {
        mail->server = ASLEEP;
        set_level(mail, ASLEEP);
        while (advance(mail)) continue; /* who came before that did not ring */
    }
    if (mail->pulling.first || mail->soonest < mail->server_until) stir_server(mail);
}

/* A caller waits: nobody needs to wake the serving thread for what it will see. */
static void excuse_server(ah_mail *mail) {
    if (mail->server != ASLEEP) return;
    mail->server = DOZING;
    if (!mail->sleeping) set_level(mail, DOZING);
}

static void begin(ah_message *one) {
    one->stage = NEW;
    atomic_store_explicit(&one->outcome, AH_UNDER_WAY, memory_order_relaxed);
    one->source = -1;
    one->way = AH_WAY_NONE;
    one->touched = false;
    one->unlike = one->unlike_signature = 0;
    one->told = NULL;
    one->settling = 0;
    one->listed = false;
    one->id = one->at = 0;
    one->slot = AH_OFFERS;
    one->offer = NULL;
    one->note = NULL;
    one->awaited = 1; /* what ends here needs not be told */
}

bool ah_mail_post(ah_mail *mail, ah_message *one) {
    begin(one);
    ah_frame frame = frame_of(one);
    uint64_t where;
    pthread_mutex_lock(&mail->lock);
    bool gone = mail->failed || is_gone(mail, one);
    bool eager = !gone && is_eager(mail, one, in_heap(mail, one, &where));
    bool out = eager && goes_at_once(mail, one, &frame);
    if (eager && !out) mail->with[one->peer].eager -= AH_CACHE_LINE + one->nbytes;
    pthread_mutex_unlock(&mail->lock);
    return out;
}

int ah_mail_start(ah_mail *mail, ah_message *one) {
    begin(one);
    bool begun = true;
    pthread_mutex_lock(&mail->lock);
    if (one->receives) start_receive(mail, one);
    else if (mail->failed || is_gone(mail, one)) {
        one->stage = OVER;
        atomic_store_explicit(&one->outcome, mail->failed ? AH_FAILED : AH_GONE,
                              memory_order_relaxed);
    } else
        begun = start_send(mail, one);
    one->awaited--;
    int ended = one->stage == OVER;
    if (begun && one->watched && !ended) hand_over(mail);
    pthread_mutex_unlock(&mail->lock);
    return begun ? ended : -1;
}

int ah_mail_outcome(const ah_message *one) {
    return atomic_load_explicit(&one->outcome, memory_order_acquire);
}

void ah_mail_end(ah_mail *mail, ah_message *one, ah_outcome outcome) {
    pthread_mutex_lock(&mail->lock);
    end_early(mail, one, outcome);
    hand_over(mail);
    pthread_mutex_unlock(&mail->lock);
}

/* ---- waiting */

/* A wait, of a message or (NULL) of all. */
typedef struct {
    ah_mail *mail;
    ah_message *one;
    const ah_hooks *hooks;
    bool spun, paused;
    int64_t next_tick;
} waiting;

static bool is_over(const waiting *wait) {
    return wait->one ? wait->one->stage == OVER : !wait->mail->pending;
}

static void sleep_on_bell(const waiting *wait, int64_t span) {
    ah_mail *mail = wait->mail;
    mail->sleeping = true;
    uint32_t seen = set_level(mail, ASLEEP);
    if (!advance(mail) && !is_over(wait)) sleep_until_rung(mail, seen, span);
    mail->sleeping = false;
    set_level(mail, (uint32_t)mail->server);
    if (mail->waiters) pthread_cond_signal(&mail->changed); /* the bell is free */
}

static void sleep_on_condition(ah_mail *mail, int64_t until) {
    struct timespec time = {until / 1000000000, until % 1000000000};
    mail->waiters++;
    pthread_cond_timedwait(&mail->changed, &mail->lock, &time);
    mail->waiters--;
}

static ah_status block(waiting *wait, int64_t until) {
    ah_mail *mail = wait->mail;
    const ah_hooks *hooks = wait->hooks;
    pthread_mutex_unlock(&mail->lock);
    if (hooks && hooks->pause) hooks->pause(hooks->owner);
    wait->paused = true;
    int64_t now = ah_now(), moved = now, deadline = wait->one ? wait->one->deadline : INT64_MAX;
    /* Who has offered much sees nothing move until all of it has been read. */
    int64_t awake = ah_yield_time(wait->one ? wait->one->nbytes : 0);
    wait->next_tick = hooks && hooks->tick ? now + hooks->tick_ns : INT64_MAX;
    pthread_mutex_lock(&mail->lock);
    for (int turn = 0;; turn++) {
        bool moves = advance(mail);
        if (is_over(wait)) {
            if (wait->spun && turn <= SOON) mail->vain = 1;
            return AH_OK;
        }
        if (moves) moved = now;
        if (now >= deadline) {
            end_early(mail, wait->one, AH_LATE);
            return AH_OK;
        }
        if (now >= until) return AH_TIMEOUT;
        if (now - moved >= awake) {
            int64_t next = until < deadline ? until : deadline;
            if (wait->next_tick < next) next = wait->next_tick;
            if (next > now + mail->limits.nap) next = now + mail->limits.nap;
            if (next > now && !mail->sleeping) sleep_on_bell(wait, next - now);
            else if (next > now) sleep_on_condition(mail, next);
            now = ah_now();
        } else {
            pthread_mutex_unlock(&mail->lock);
            sched_yield();
            now = ah_now();
            pthread_mutex_lock(&mail->lock);
        }
        if (now >= wait->next_tick) {
            wait->next_tick = now + hooks->tick_ns;
            pthread_mutex_unlock(&mail->lock);
            bool stop = hooks->tick(hooks->owner);
            pthread_mutex_lock(&mail->lock);
            if (stop && !is_over(wait)) return AH_INTERRUPTED;
        }
    }
}

static ah_status await(waiting *wait, int64_t until) {
    ah_mail *mail = wait->mail;
    if (is_over(wait)) return AH_OK;
    wait->spun = !mail->vain || ++mail->vain > TRY_AGAIN;
    for (int spin = 0; wait->spun && spin < SPINS; spin++) {
        advance(mail);
        if (is_over(wait)) {
            mail->vain = 0;
            return AH_OK;
        }
        ah_cpu_relax();
    }
    return block(wait, until);
}

static ah_status wait_for(waiting *wait, int64_t until) {
    ah_mail *mail = wait->mail;
    pthread_mutex_lock(&mail->lock);
    mail->callers++;
    excuse_server(mail);
    if (wait->one) wait->one->awaited++;
    ah_status status = await(wait, until);
    if (wait->one) wait->one->awaited--;
    mail->callers--;
    hand_over(mail);
    pthread_mutex_unlock(&mail->lock);
    if (wait->paused && wait->hooks && wait->hooks->resume) wait->hooks->resume(wait->hooks->owner);
    return status;
}

ah_status ah_mail_wait(ah_mail *mail, ah_message *one, int64_t until, const ah_hooks *hooks) {
    waiting wait = {.mail = mail, .one = one, .hooks = hooks};
    return wait_for(&wait, until);
}

void ah_mail_idle(ah_mail *mail) {
    waiting wait = {.mail = mail};
    wait_for(&wait, INT64_MAX);
}

/* ---- serving */

static void doze(ah_mail *mail) {
    bool wanted = !mail->callers && wants_server(mail);
    mail->server = wanted ? ASLEEP : DOZING;
    /* A caller may sleep there too. */
    uint32_t seen = set_level(mail, mail->sleeping ? ASLEEP : (uint32_t)mail->server);
    if (mail->callers || !advance(mail)) {
        int64_t now = ah_now(), until = now + mail->limits.nap * (wanted ? 1 : NAPS_OF_REST);
        if (mail->soonest < until) until = mail->soonest;
        mail->server_until = until;
        if (!mail->ended && !mail->closed && until > now) sleep_until_rung(mail, seen, until - now);
    }
    mail->server = AWAKE;
}

ah_message *ah_mail_serve(ah_mail *mail) {
    ah_message *ended = NULL;
    pthread_mutex_lock(&mail->lock);
    while (!ended) {
        expire(mail);
        bool moves = !mail->callers && advance(mail);
        ended = mail->ended;
        mail->ended = NULL;
        mail->ended_last = &mail->ended;
        if (ended || mail->closed) break;
        if (moves) { /* others may want the lock between */
            pthread_mutex_unlock(&mail->lock);
            sched_yield();
            pthread_mutex_lock(&mail->lock);
        } else
            doze(mail);
    }
    pthread_mutex_unlock(&mail->lock);
    return ended;
}

void ah_mail_close(ah_mail *mail) {
    pthread_mutex_lock(&mail->lock);
    mail->closed = true;
    /* The last word there: the memory may be given back after this. */
    atomic_store(&mail->office[mail->rank]->nonce_at, 0);
    stir_server(mail);
    pthread_mutex_unlock(&mail->lock);
}

/* ---- what becomes of others */

/* Nothing that is missing of these will come any more. */
static void forget_offers(ah_mail *mail, int rank) {
    for (int at = 0; at < BUCKETS; at++)
        for (ah_arrived *one = mail->early[at].first, *next; one; one = next) {
            next = one->after;
            if (one->peer != rank || one->frame.kind != AH_OFFER) continue;
            unkeep(mail, one);
            drop(one);
        }
    for (ah_message *one = mail->filling.first, *next; one; one = next) {
        next = one->after;
        if (one->source != rank) continue;
        take_from(&mail->filling, one);
        if (one->offer->note.queued) unsay(mail, rank, &one->offer->note);
        drop(one->offer);
        seek(mail, one); /* what it finds is another's */
    }
}

void ah_mail_leave(ah_mail *mail, int rank) {
    correspondent *with = &mail->with[rank];
    pthread_mutex_lock(&mail->lock);
    bool moves = true;
    while (moves) {
        moves = drain(mail, rank);
        while (mail->pulling.first) moves = advance(mail);
    }
    mail->left |= AH_BIT(rank);
    forget_offers(mail, rank);
    end_all(mail, is_gone, AH_GONE);
    while (with->first) { /* last words, for nobody */
        ah_note *note = with->first;
        if (note->message) end_early(mail, note->message, AH_GONE);
        if (with->first != note) continue; /* it went with the message */
        unsay(mail, rank, note);
        if (note->offer) drop(note->offer);
        else free(note);
    }
    hand_over(mail);
    pthread_mutex_unlock(&mail->lock);
}

void ah_mail_fail(ah_mail *mail) {
    pthread_mutex_lock(&mail->lock);
    for (int turn = 0; turn < 1000 && advance(mail); turn++) continue;
    mail->failed = true;
    end_all(mail, always, AH_FAILED);
    stir_callers(mail);
    pthread_mutex_unlock(&mail->lock);
}

/* ---- life */

ah_mail *ah_mail_new(int rank, int size, void *const offices[], const pid_t pids[],
                     void *const heaps[], size_t heap_bytes, const ah_mail_limits *limits) {
    ah_mail *mail = calloc(1, sizeof *mail);
    pthread_condattr_t monotonic;
    if (!mail) return NULL;
    pthread_mutex_init(&mail->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&mail->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    mail->rank = rank;
    mail->size = size;
    mail->others = (size == 64 ? UINT64_MAX : AH_BIT(size) - 1) & ~AH_BIT(rank);
    mail->limits = *limits;
    mail->heap_bytes = heap_bytes;
    mail->ended_last = &mail->ended;
    mail->soonest = INT64_MAX;
    mail->vain = size > ah_cpu_count();
    for (int peer = 0; peer < size; peer++) {
        mail->office[peer] = offices[peer];
        mail->heap[peer] = heaps ? heaps[peer] : NULL;
        mail->pid[peer] = pids[peer];
    }
    ah_office *own = mail->office[rank];
    for (int peer = 0; peer < size; peer++) {
        correspondent *with = &mail->with[peer];
        ah_office *theirs = mail->office[peer];
        with->out.wire = &own->wire[peer];
        with->out.taken = &theirs->taken[rank];
        with->in.wire = &theirs->wire[rank];
        with->in.taken = &own->taken[peer];
        with->last = &with->first;
    }
    mail->nonce = ah_new_nonce();
    atomic_store(&own->nonce, mail->nonce);
    atomic_store(&own->nonce_at, (uint64_t)(uintptr_t)&mail->nonce);
    return mail;
}

void ah_mail_free(ah_mail *mail) {
    if (!mail) return;
    for (int at = 0; at < BUCKETS; at++)
        for (ah_arrived *one = mail->early[at].first, *next; one; one = next) {
            next = one->after;
            drop(one);
        }
    for (int peer = 0; peer < mail->size; peer++)
        for (ah_note *note = mail->with[peer].first, *next; note; note = next) {
            next = note->next;
            note->offer ? drop(note->offer) : free(note);
        }
    pthread_cond_destroy(&mail->changed);
    pthread_mutex_destroy(&mail->lock);
    free(mail);
}
