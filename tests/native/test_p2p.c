/* Stress of messages from point to point: ranks as threads (for ThreadSanitizer) or as processes.
 *
 *     test_p2p threads|forks [rounds [seed]]
 *
 * Every message says in its first bytes who sent it and which of a stream it is, and all its bytes
 * follow from that: so whoever receives one can tell whether it is whole, and the one that was due.
 * Ends with status 0 and one line, or says what was wrong where and aborts.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "p2p/p2p.h"
#include "p2p/p2p_ring.h"

#ifndef LONG_TIME
#define LONG_TIME (60000 * MILLISECONDS)
#endif
#define MOST 6 /* ranks */
#define TAGS 3
#define WINDOW 4
#define HEAD 16 /* bytes that name a message */

typedef struct {
    int size, threads;
    bool forks, heaps, serves;
    ah_p2p_limits limits;
    uint64_t seed;
    int rounds;
    void *memory[AH_MAX_RANKS], *heap[AH_MAX_RANKS];
    _Atomic int *board;
    _Atomic int *pids;
} world;

typedef struct {
    const world *world;
    int rank;
    ah_p2p *p2p;
    uint64_t own;
    _Atomic size_t heap_used;
} rank_state;

typedef void (*program)(rank_state *, int thread);

#define PROGRAM "test_p2p"
#include "ranks.h"

static void print_call(const rank_state *me) { (void)me; }

static size_t memory_bytes(const world *w) { return ah_p2p_region_bytes(w->size); }

/* ---- worlds */

typedef struct {
    rank_state *me;
    program run;
    int thread;
} task;

static void *run_task(void *given) {
    task *one = given;
    one->run(one->me, one->thread);
    return NULL;
}

static void *serve(void *given) {
    rank_state *me = given;
    for (ah_message *one; (one = ah_p2p_serve(me->p2p)) != NULL;)
        for (ah_message *next; one; one = next) {
            next = one->next_ended;
            atomic_store((_Atomic int *)one->owner, 1);
        }
    return NULL;
}

static void live(const start *begin) {
    const world *w = begin->world;
    rank_state me = {.world = w, .rank = begin->rank};
    pid_t pids[AH_MAX_RANKS];
    me.own = w->seed * 1000 + (uint64_t)begin->rank;
    learn_pids(w, me.rank, pids);
    me.p2p = ah_p2p_new(me.rank, w->size, w->memory, pids, w->heaps ? w->heap : NULL,
                        w->heaps ? HEAP_BYTES : 0, &w->limits);
    CHECK(&me, me.p2p);
    line_up(&me, 0);
    pthread_t server, threads[8];
    task tasks[8];
    if (w->serves && pthread_create(&server, NULL, serve, &me)) abort();
    for (int t = 0; t < w->threads; t++) {
        tasks[t] = (task){&me, begin->run, t};
        if (pthread_create(&threads[t], NULL, run_task, &tasks[t])) abort();
    }
    for (int t = 0; t < w->threads; t++) pthread_join(threads[t], NULL);
    ah_p2p_wait_idle(me.p2p);
    ah_p2p_close(me.p2p);
    if (w->serves) pthread_join(server, NULL);
    if (!atomic_load(&w->board[KILLED])) line_up(&me, 2); /* all bells stay up */
    ah_p2p_free(me.p2p);
}

/* ---- messages that can be told */

static size_t size_of(const world *w, int from, int to, int tag, int number) {
    uint64_t state = w->seed + (uint64_t)(((from * 64 + to) * 64 + tag) * 100000 + number);
    size_t direct = w->limits.direct_min, attach = w->limits.attach_min;
    size_t marks[] = {0,
                      1,
                      AH_INLINE,
                      AH_CACHE_LINE,
                      w->limits.eager_max,
                      direct == SIZE_MAX ? 100 : direct,
                      attach == SIZE_MAX ? 200 : attach,
                      64 << 10,
                      AH_RING_BYTES / 4,
                      AH_RING_BYTES,
                      (size_t)1 << 20};
    size_t mark = marks[draw(&state) % (draw(&state) % 8 ? 7 : sizeof marks / sizeof *marks)];
    size_t change = draw(&state) % 40;
    return draw(&state) % 2 || change > mark ? mark + change : mark - change;
}

static uint64_t seed_of(int from, int tag, int number) {
    return (uint64_t)from << 48 | (uint64_t)tag << 32 | (uint64_t)number;
}

static void fill(void *at, size_t nbytes, uint64_t seed) {
    unsigned char *bytes = at;
    uint64_t state = seed;
    for (size_t i = 0; i < nbytes; i += 8) {
        uint64_t word = i == 0 ? seed : draw(&state);
        memcpy(bytes + i, &word, nbytes - i < 8 ? nbytes - i : 8);
    }
}

static bool is(const void *at, size_t nbytes, uint64_t seed) {
    const unsigned char *bytes = at;
    uint64_t state = seed;
    for (size_t i = 0; i < nbytes; i += 8) {
        uint64_t word = i == 0 ? seed : draw(&state);
        if (memcmp(bytes + i, &word, nbytes - i < 8 ? nbytes - i : 8)) return false;
    }
    return true;
}

/* One message in a window, with a buffer that is used again. */
typedef struct {
    ah_message message;
    _Atomic int served;
    int number;
    size_t room;
    char *buffer;
    bool freed; /* at the end, for it is not in a heap */
} slot;

static void give(rank_state *me, slot *one, size_t nbytes, bool heap) {
    if (one->room >= nbytes && one->buffer) return;
    size_t room = (nbytes + 4096) / 4096 * 4096;
    if (one->freed) free(one->buffer);
    one->room = room;
    size_t used = heap ? atomic_fetch_add(&me->heap_used, room) : HEAP_BYTES;
    if (me->world->heaps && used + room <= HEAP_BYTES)
        one->buffer = (char *)me->world->heap[me->rank] + used;
    else
        one->buffer = malloc(room);
    one->freed = !me->world->heaps || used + room > HEAP_BYTES;
    CHECK(me, one->buffer);
}

static void let_go(slot *one) {
    if (one->freed) free(one->buffer);
}

static void begin(rank_state *me, slot *one, bool receives, int peer, int tag, size_t nbytes,
                  bool is_async, int64_t timeout) {
    one->message = (ah_message){
        .receives = receives,
        .is_async = is_async,
        .peer = peer,
        .tag = (uint32_t)tag,
        .signature = nbytes * 31 + 7,
        .nbytes = nbytes,
        .data = one->buffer,
        .type = "octets",
        .count = nbytes,
        .deadline = now() + timeout,
        .owner = &one->served,
    };
    one->served = 0;
    bool posted = !receives && one->number % 2 && ah_p2p_try_send(me->p2p, &one->message);
    int started = posted ? 1 : ah_p2p_start(me->p2p, &one->message);
    CHECK(me, started >= 0);
    if (started) one->served = 1;
}

/* Whether it has ended; gives it a little time now and then. */
static bool ended(rank_state *me, slot *one, uint64_t *state) {
    if (one->message.is_async && draw(state) % 4) return atomic_load(&one->served) == 1;
    int64_t until = draw(state) % 4 ? 0 : now() + (int64_t)(draw(state) % 200000);
    if (ah_p2p_wait(me->p2p, &one->message, until, NULL) != AH_OK) return false;
    /* A is_async one may have been handed to the server first: then that one has it. */
    while (one->message.is_queued && !atomic_load(&one->served)) sched_yield();
    return true;
}

/* ---- every stream in order, every message whole */

static void random_traffic(rank_state *me, int thread) {
    const world *w = me->world;
    uint64_t state = me->own * 31 + (uint64_t)thread;
    static const int kinds = 2;
    slot *slots = calloc((size_t)(w->size * TAGS * kinds * WINDOW), sizeof *slots);
    int next[MOST][TAGS][2] = {0}, done[MOST][TAGS][2] = {0};
    bool all = false;
    while (!all) {
        all = true;
        for (int peer = 0; peer < w->size; peer++) {
            if (peer == me->rank) continue;
            for (int stream = 0; stream < TAGS * kinds; stream++) {
                int tag = stream / kinds, receives = stream % kinds, label = thread * TAGS + tag;
                int *begun = &next[peer][tag][receives], *over = &done[peer][tag][receives];
                int from = receives ? peer : me->rank, to = receives ? me->rank : peer;
                slot *window = &slots[(peer * TAGS * kinds + stream) * WINDOW];
                if (*over == w->rounds) continue;
                all = false;
                while (*begun < w->rounds && *begun < *over + WINDOW && draw(&state) % 4) {
                    slot *one = &window[*begun % WINDOW];
                    size_t nbytes = size_of(w, from, to, label, *begun);
                    give(me, one, nbytes, draw(&state) % 2);
                    one->number = (*begun)++;
                    if (receives)
                        memset(one->buffer, 0xee, nbytes);
                    else
                        fill(one->buffer, nbytes, seed_of(from, label, one->number));
                    begin(me, one, receives, peer, label, nbytes, w->serves && draw(&state) % 2,
                          LONG_TIME);
                }
                while (*over < *begun && ended(me, &window[*over % WINDOW], &state)) {
                    slot *one = &window[*over % WINDOW];
                    if (ah_message_outcome(&one->message) != AH_DELIVERED)
                        fail(me, "%s peer %d tag %d number %d of %zu bytes ended in %d (way %d)",
                             receives ? "recv" : "send", peer, label, one->number,
                             one->message.nbytes, ah_message_outcome(&one->message),
                             one->message.way);
                    if (!is(one->buffer, one->message.nbytes, seed_of(from, label, one->number)))
                        fail(me, "wrong: peer %d tag %d number %d of %zu bytes (way %d)", peer,
                             label, one->number, one->message.nbytes, one->message.way);
                    if (receives)
                        CHECK(me, one->message.source == peer);
                    else
                        memset(one->buffer, 0xdd, one->message.nbytes); /* it is ours again */
                    (*over)++;
                }
            }
        }
    }
    for (int i = 0; i < w->size * TAGS * kinds * WINDOW; i++) let_go(&slots[i]);
    free(slots);
}

/* ---- messages and receives that are given up at any moment, from anybody */

enum { STOP = 1000 };

static size_t troubled_size(const world *w, uint64_t number) {
    size_t marks[] = {HEAD, AH_INLINE + 8, w->limits.eager_max + 64, 100000, 700000};
    return marks[number % 5];
}

/* Rank 0 receives from anybody; the size of a message is that of its tag. */
static void troubled_traffic(rank_state *me, int thread) {
    const world *w = me->world;
    uint64_t state = me->own * 77 + (uint64_t)thread;
    slot one = {0};
    give(me, &one, 700000, true);
    if (me->rank) {
        for (int number = 1; number <= w->rounds; number++) {
            int tag = (int)(draw(&state) % 5);
            size_t nbytes = troubled_size(w, (uint64_t)tag);
            fill(one.buffer, nbytes, seed_of(me->rank, tag, number));
            begin(me, &one, false, 0, tag, nbytes, false,
                  draw(&state) % 3 ? (int64_t)(draw(&state) % 300000) : LONG_TIME / 600);
            bool cancelled = draw(&state) % 4 == 0;
            if (cancelled) ah_p2p_end(me->p2p, &one.message, AH_CANCELLED);
            ah_p2p_wait(me->p2p, &one.message, INT64_MAX, NULL);
            int outcome = ah_message_outcome(&one.message);
            CHECK(me, outcome == AH_DELIVERED || outcome == AH_TIMED_OUT ||
                          (cancelled && outcome == AH_CANCELLED));
            fill(one.buffer, nbytes, ~UINT64_C(0)); /* at once: whoever reads on must notice */
        }
        begin(me, &one, false, 0, STOP, HEAD, false, LONG_TIME);
        ah_p2p_wait(me->p2p, &one.message, INT64_MAX, NULL);
        CHECK(me, ah_message_outcome(&one.message) == AH_DELIVERED);
        let_go(&one);
        return;
    }
    uint64_t last[MOST][5] = {0};
    slot stop = {0};
    give(me, &stop, HEAD, false);
    int left = w->size - 1;
    begin(me, &stop, true, -1, STOP, HEAD, false, LONG_TIME);
    while (left) {
        if (ah_p2p_wait(me->p2p, &stop.message, 0, NULL) == AH_OK) {
            CHECK(me, ah_message_outcome(&stop.message) == AH_DELIVERED);
            if (--left) begin(me, &stop, true, -1, STOP, HEAD, false, LONG_TIME);
        }
        int tag = (int)(draw(&state) % 5);
        int peer = draw(&state) % 2 ? -1 : 1 + (int)(draw(&state) % (uint64_t)(w->size - 1));
        size_t nbytes = troubled_size(w, (uint64_t)tag);
        memset(one.buffer, 0xee, nbytes);
        begin(me, &one, true, peer, tag, nbytes, false, (int64_t)(draw(&state) % 200000));
        if (draw(&state) % 8 == 0) ah_p2p_end(me->p2p, &one.message, AH_CANCELLED);
        ah_p2p_wait(me->p2p, &one.message, INT64_MAX, NULL);
        int outcome = ah_message_outcome(&one.message);
        if (outcome != AH_DELIVERED) {
            CHECK(me, outcome == AH_TIMED_OUT || outcome == AH_CANCELLED);
            continue;
        }
        uint64_t seed;
        memcpy(&seed, one.buffer, sizeof seed);
        int source = one.message.source;
        if (!is(one.buffer, nbytes, seed)) fail(me, "torn: %zu bytes from %d", nbytes, source);
        CHECK(me, seed >> 48 == (uint64_t)source && (seed >> 32 & 0xffff) == (uint64_t)tag);
        CHECK(me, peer < 0 || peer == source);
        CHECK(me, (uint32_t)seed > last[source][tag]); /* never twice, never out of order */
        last[source][tag] = (uint32_t)seed;
    }
    let_go(&one);
    let_go(&stop);
}

/* ---- single stories */

static ah_outcome finish(rank_state *me, slot *one) {
    CHECK(me, ah_p2p_wait(me->p2p, &one->message, INT64_MAX, NULL) == AH_OK);
    return ah_message_outcome(&one->message);
}

static void unlike(rank_state *me, int thread) {
    (void)thread;
    slot one = {0};
    give(me, &one, 200000, true);
    static const size_t sizes[][2] = {{8, 16}, {16, 8}, {8, 200000}, {200000, 8}, {150000, 200000}};
    for (int i = 0; i < 5; i++) {
        size_t nbytes = sizes[i][me->rank];
        fill(one.buffer, nbytes, 5);
        begin(me, &one, me->rank == 1, 1 - me->rank, i, nbytes, false, LONG_TIME);
        ah_outcome outcome = finish(me, &one);
        bool offered = sizes[i][0] > me->world->limits.eager_max;
        if (me->rank == 0) {
            CHECK(me, outcome == (offered ? AH_MISMATCHED : AH_DELIVERED));
            if (offered)
                CHECK(me, one.message.expected_text &&
                              strstr(one.message.expected_text, "message(octets["));
            free(one.message.expected_text);
        } else {
            CHECK(me, outcome == AH_MISMATCHED && one.message.sent_nbytes == sizes[i][0]);
            CHECK(me, is(one.buffer, nbytes, 5));
        }
        fill(one.buffer, 100000, me->rank == 0 ? 9 : 0);
        begin(me, &one, me->rank == 1, 1 - me->rank, i, 100000, false, LONG_TIME);
        CHECK(me, finish(me, &one) == AH_DELIVERED);
        CHECK(me, is(one.buffer, 100000, 9));
    }
    let_go(&one);
}

/* What a receive that is given up had found is the next one's, before all that was sent later. */
static void put_back(rank_state *me, int thread) {
    enum { LENGTH = 90000 };
    (void)thread;
    slot slots[3] = {0};
    for (int i = 0; i < 3; i++) give(me, &slots[i], LENGTH, true);
    if (me->rank == 0) {
        for (int i = 0; i < 3; i++) {
            fill(slots[i].buffer, LENGTH, seed_of(0, 1, i));
            begin(me, &slots[i], false, 1, i == 2, i == 2 ? 8 : LENGTH, false, LONG_TIME);
        }
    } else {
        begin(me, &slots[2], true, 0, 1, 8, false, LONG_TIME);
        CHECK(me, finish(me, &slots[2]) == AH_DELIVERED); /* so the other two are here */
        for (int i = 0; i < 3; i++) {
            begin(me, &slots[2], true, i ? -1 : 0, 0, LENGTH, false, LONG_TIME);
            ah_p2p_end(me->p2p, &slots[2].message, AH_CANCELLED);
            CHECK(me, finish(me, &slots[2]) == AH_CANCELLED);
        }
        for (int i = 0; i < 2; i++) begin(me, &slots[i], true, 0, 0, LENGTH, false, LONG_TIME);
    }
    for (int i = 0; i < 2 + !me->rank; i++) CHECK(me, finish(me, &slots[i]) == AH_DELIVERED);
    for (int i = 0; i < 2; i++) CHECK(me, is(slots[i].buffer, LENGTH, seed_of(0, 1, i)));
    for (int i = 0; i < 3; i++) let_go(&slots[i]);
}

/* A message that is given up with half of it there leaves its receive to the next one. */
static void half_way(rank_state *me, int thread) {
    enum { LENGTH = 4 << 20 };
    (void)thread;
    slot one = {0};
    give(me, &one, LENGTH, false);
    if (me->rank == 0) {
        fill(one.buffer, LENGTH, 1);
        begin(me, &one, false, 1, 0, LENGTH, false, LONG_TIME);
        while (!one.message.transferred) ah_p2p_wait(me->p2p, &one.message, 0, NULL);
        ah_p2p_end(me->p2p, &one.message, AH_CANCELLED);
        CHECK(me, ah_message_outcome(&one.message) == AH_CANCELLED);
        fill(one.buffer, LENGTH, 2);
        tell(me, 100);
        begin(me, &one, false, 1, 0, LENGTH, false, LONG_TIME);
        CHECK(me, finish(me, &one) == AH_DELIVERED);
    } else {
        begin(me, &one, true, 0, 0, LENGTH, false, LONG_TIME);
        while (one.message.way != AH_WAY_PIECES) ah_p2p_wait(me->p2p, &one.message, 0, NULL);
        hear(me, 100); /* no more than fits on the way has come until then */
        CHECK(me, finish(me, &one) == AH_DELIVERED);
        CHECK(me, is(one.buffer, LENGTH, 2));
    }
    let_go(&one);
}

static void pass(int64_t nanoseconds) {
    for (int64_t until = now() + nanoseconds; now() < until;) sched_yield();
}

/* Threads that sleep until their message comes: one has the bell, the others hear of it from each
 * other. After a time in which they should have fallen asleep, one is called, then the next. */
static void sleepers(rank_state *me, int thread) {
    slot one = {0};
    give(me, &one, 8, false);
    for (int turn = 0; turn < 30; turn++) {
        if (me->rank == 0) pass((1 + (turn + thread) % 4) * 500000);
        fill(one.buffer, 8, 0);
        begin(me, &one, me->rank == 1, 1 - me->rank, thread, 8, false, LONG_TIME);
        CHECK(me, finish(me, &one) == AH_DELIVERED);
        begin(me, &one, me->rank == 0, 1 - me->rank, thread, 8, false, LONG_TIME);
        CHECK(me, finish(me, &one) == AH_DELIVERED);
    }
    let_go(&one);
}

/* When who waited has what it waited for, the serving thread is to be woken for the rest. */
static void unattended(rank_state *me, int thread) {
    slot two[2] = {0};
    (void)thread;
    for (int i = 0; i < 2; i++) give(me, &two[i], 8, false);
    for (int turn = 0; turn < 30; turn++) {
        for (int i = 0; i < 2; i++) fill(two[i].buffer, 8, 0);
        if (me->rank == 1) {
            begin(me, &two[0], true, 0, 1, 8, true, LONG_TIME);
            begin(me, &two[1], true, 0, 2, 8, false, LONG_TIME);
            CHECK(me, finish(me, &two[1]) == AH_DELIVERED);
            tell(me, 200 + turn);
            while (!atomic_load(&two[0].served)) sched_yield();
            CHECK(me, ah_message_outcome(&two[0].message) == AH_DELIVERED);
            continue;
        }
        pass(turn % 3 * 500000);
        for (int i = 1; i >= 0; i--) {
            if (i == 0) hear(me, 200 + turn);
            if (i == 0) pass(turn % 2 * 300000);
            begin(me, &two[i], false, 1, i + 1, 8, false, LONG_TIME);
            CHECK(me, finish(me, &two[i]) == AH_DELIVERED);
        }
    }
    for (int i = 0; i < 2; i++) let_go(&two[i]);
}

/* More than may be on the way, to a rank that does not look; then all of it, and from behind.
 * Return how many needed no receive to go. */
static int pour(rank_state *me, int turn) {
    enum { COUNT = 571 * 7 };
    int eager = 0;
    slot *slots = calloc(COUNT, sizeof *slots);
    for (int i = 0; i < COUNT; i++) {
        give(me, &slots[i], 3000, false);
        slots[i].number = i;
        int tag = i % 7;
        if (me->rank == 1 && i == 0) hear(me, 100 + turn);
        if (me->rank == 0) fill(slots[i].buffer, 3000, seed_of(0, 0, i));
        /* The receiver takes tags from behind, so nearly all is kept somewhere for a while. */
        begin(me, &slots[i], me->rank == 1, 1 - me->rank, me->rank == 0 ? tag : 6 - tag, 3000,
              me->world->serves, LONG_TIME);
    }
    if (me->rank == 0) {
        CHECK(me, slots[COUNT - 1].message.way != AH_WAY_EAGER); /* there is a limit to that */
        /* Who has a thread for it takes in more than fits on the way, whatever else it does. */
        if (me->world->serves && slots[600].message.way == AH_WAY_EAGER)
            CHECK(me, finish(me, &slots[600]) == AH_DELIVERED);
        tell(me, 100 + turn);
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(me, finish(me, &slots[i]) == AH_DELIVERED);
        while (slots[i].message.is_queued && !atomic_load(&slots[i].served)) sched_yield();
        eager += slots[i].message.way == AH_WAY_EAGER;
        int sent = me->rank == 0 ? i : i / 7 * 7 + 6 - i % 7;
        CHECK(me, is(slots[i].buffer, 3000, seed_of(0, 0, sent)));
        let_go(&slots[i]);
    }
    free(slots);
    return eager;
}

/* Once all is received as much may be on the way as before. */
static void flood(rank_state *me, int thread) {
    (void)thread;
    int first = pour(me, 0);
    line_up_some(me, 102, 2);
    int second = pour(me, 1);
    if (me->rank == 0) CHECK(me, first == second);
}

/* Who has left: what it sent is received, all else with it ends. */
static void leaving(rank_state *me, int thread) {
    (void)thread;
    slot one = {0}, two = {0};
    give(me, &one, 300000, true);
    give(me, &two, 300000, true);
    if (me->rank == 0) {
        fill(one.buffer, 100, 1);
        begin(me, &one, false, 1, 1, 100, false, LONG_TIME);
        CHECK(me, finish(me, &one) == AH_DELIVERED);
        begin(me, &one, false, 1, 1, 300000, false, LONG_TIME);
        ah_p2p_fail(me->p2p);
        CHECK(me, finish(me, &one) == AH_FAILED);
        tell(me, 100);
    }
    if (me->rank != 1) {
        let_go(&one);
        let_go(&two);
        return;
    }
    begin(me, &two, true, 0, 2, 100, false, LONG_TIME);
    hear(me, 100);
    ah_p2p_remove_peer(me->p2p, 0);
    CHECK(me, finish(me, &two) == AH_PEER_LEFT);
    begin(me, &one, true, 0, 1, 100, false, LONG_TIME);
    CHECK(me, finish(me, &one) == AH_DELIVERED && is(one.buffer, 100, 1));
    begin(me, &one, true, 0, 1, 300000, false, LONG_TIME);
    CHECK(me, finish(me, &one) == AH_PEER_LEFT);
    begin(me, &one, false, 0, 1, 8, false, LONG_TIME);
    CHECK(me, finish(me, &one) == AH_PEER_LEFT);
    begin(me, &one, true, -1, 1, 8, false, LONG_TIME); /* rank 2 may send yet */
    CHECK(me, ah_p2p_wait(me->p2p, &one.message, 0, NULL) == AH_TIMEOUT);
    ah_p2p_remove_peer(me->p2p, 2);
    CHECK(me, finish(me, &one) == AH_PEER_LEFT);
    let_go(&one);
    let_go(&two);
}

/* A peer is killed in the middle of anything. */
static void killed(rank_state *me, int thread) {
    const world *w = me->world;
    uint64_t state = me->own + (uint64_t)thread;
    int victim = w->size - 1;
    slot slots[8] = {0};
    atomic_store(&w->board[KILLED], 1);
    for (int i = 0; i < 8; i++) give(me, &slots[i], 900000, i % 2);
    for (int turn = 0;; turn++) {
        int64_t limit = me->rank == 0 ? 2 * MILLISECONDS : LONG_TIME;
        for (int i = 0; i < 8; i++) {
            int peer = (me->rank + 1 + (int)(draw(&state) % (uint64_t)(w->size - 1))) % w->size;
            size_t nbytes = (size_t[]){8, 9000, 70000, 900000}[draw(&state) % 4];
            begin(me, &slots[i], draw(&state) % 2, peer, 0, nbytes, false, limit);
        }
        if (me->rank == 0 && turn == 3) {
            kill(atomic_load(&w->pids[victim]), SIGKILL);
            while (kill(atomic_load(&w->pids[victim]), 0) == 0 && turn++ < 2000) sched_yield();
            tell(me, 101);
        }
        if (me->rank && me->rank != victim) {
            hear(me, 101);
            ah_p2p_fail(me->p2p);
        }
        for (int i = 0; i < 8; i++) {
            finish(me, &slots[i]);
            free(slots[i].message.expected_text);
        }
        if (turn >= 3 && me->rank == 0) ah_p2p_fail(me->p2p);
        if (me->rank != victim && (me->rank || turn >= 3)) break;
    }
    for (int i = 0; i < 8; i++) let_go(&slots[i]);
}

static void run_traffic(const ah_p2p_limits *limits, int size, bool forks, int rounds,
                        uint64_t seed) {
    world w = {.size = size,
               .forks = forks,
               .threads = 1,
               .limits = *limits,
               .seed = seed * 100 + (uint64_t)size,
               .rounds = rounds};
    run_world("one thread", &w, random_traffic);
    w.heaps = true;
    w.serves = true;
    run_world("served, heaps", &w, random_traffic);
    w.threads = 3;
    w.rounds = (rounds + 2) / 3;
    run_world("threads", &w, random_traffic);
    w.threads = 1;
    w.rounds = 20 * rounds;
    w.heaps = forks; /* who reads what is written meanwhile does so on purpose */
    if (!forks) w.limits.attach_min = SIZE_MAX;
    run_world("troubled", &w, troubled_traffic);
    w.heaps = true;
    w.limits = *limits;
    for (int k = 0; forks && size > 2 && k < 5; k++) {
        w.seed += 17;
        run_world("killed", &w, killed);
    }
}

static void run_scenarios(const ah_p2p_limits *limits, bool forks, bool more, uint64_t seed) {
    world two = {.size = 2, .threads = 1, .forks = forks, .limits = *limits, .seed = seed};
    two.heaps = two.serves = more;
    world three = two;
    three.size = 3;
    run_world("unlike", &two, unlike);
    run_world("flood", &two, flood);
    two.limits.attach_min = 700; /* what is asked for in pieces is on its way, and lost */
    two.serves = false;          /* it would receive what is to be cancelled, if it were faster */
    run_world("put back", &two, put_back);
    two.limits.attach_min = two.limits.direct_min = SIZE_MAX;
    run_world("half way", &two, half_way);
    two.serves = more;
    two.limits = *limits;
    two.threads = 4;
    run_world("sleepers", &two, sleepers);
    two.threads = 1;
    two.serves = true;
    run_world("unattended", &two, unattended);
    run_world("leaving", &three, leaving);
}

int main(int argc, char **argv) {
    const arguments given = read_arguments(argc, argv, 30);
    /* Who is not woken when it should be sleeps past its deadline. */
    const ah_p2p_limits pieces = {2000, SIZE_MAX, SIZE_MAX, LONG_TIME};
    const ah_p2p_limits tight = {100, 300, 700, LONG_TIME};
    ah_p2p_limits usual = ah_default_p2p_limits();
    usual.poll_interval = LONG_TIME;
    const ah_p2p_limits every[] = {usual, pieces, tight};
    for (int which = 0; which < 3; which++) {
        for (int size = 2; size <= 4; size++)
            run_traffic(&every[which], size, given.forks, given.rounds, given.seed);
        for (int more = 0; more < 2; more++)
            run_scenarios(&every[which], given.forks, more, given.seed);
    }
    printf("test_p2p: %s: all right\n", argv[1]);
    return 0;
}
