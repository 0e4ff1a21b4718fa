/* Stress of the lanes: ranks as threads (for ThreadSanitizer) or as forked processes.
 *
 *     test_collectives threads|forks [rounds [seed]]
 *
 * What all ranks must agree on (operation, sizes) comes from one seeded generator, what differs
 * (delays, data) from one per rank; every rank works out every result from all ranks' inputs.
 * Ends with status 0 and one line, or says what was wrong where and aborts.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collectives/collectives.h"
#include "comm/call.h"

#define LONG_TIME (60000 * MILLISECONDS)

/* ---- a world of ranks */

typedef struct {
    int size;
    bool forks;
    bool heaps;  /* arrays may lie in them */
    bool attach; /* ranks may try */
    bool gaps;   /* numbers are skipped between calls */
    bool staged; /* most calls reduce, or move, more than a slot takes */
    ah_limits limits;
    uint64_t seed;
    int rounds;
    void *memory[AH_MAX_RANKS], *heap[AH_MAX_RANKS];
    _Atomic int *board; /* shared: for what the scenarios tell each other */
    _Atomic int *pids;
} world;

typedef struct {
    const world *world;
    int rank;
    ah_comm *comm;
    uint64_t sequence, own; /* own: state of the rank's generator */
    int paused, resumed, ticks;
    int tick_end; /* the tick hook ends the call at this count; 0: never */
    uint64_t tick_waiting;
    size_t heap_used;
} rank_state;

typedef void (*program)(rank_state *);

#define PROGRAM "test_collectives"
#include "ranks.h"

static void print_call(const rank_state *me) {
    fprintf(stderr, ", call %llu", (unsigned long long)me->sequence);
}

static size_t memory_bytes(const world *w) { return ah_area_bytes(w->size, &w->limits); }

static void live(const start *begin) {
    const world *w = begin->world;
    rank_state me = {.world = w, .rank = begin->rank};
    pid_t pids[AH_MAX_RANKS];
    me.own = w->seed * 1000 + (uint64_t)begin->rank;
    learn_pids(w, me.rank, pids);
    me.comm = ah_comm_new(me.rank, w->size, w->memory, pids, w->heaps ? w->heap : NULL,
                          w->heaps ? HEAP_BYTES : 0, &w->limits);
    CHECK(&me, me.comm);
    line_up(&me, 0);
    if (w->attach) CHECK(&me, ah_comm_probe_attach(me.comm));
    line_up(&me, 1);
    begin->run(&me);
    line_up(&me, 2); /* a lane that still sleeps may be rung */
    ah_comm_free(me.comm);
}

/* ---- calls */

static void on_pause(void *owner) { ((rank_state *)owner)->paused++; }
static void on_resume(void *owner) { ((rank_state *)owner)->resumed++; }

static bool on_tick(void *owner, uint64_t waiting) {
    rank_state *me = owner;
    me->tick_waiting = waiting;
    CHECK(me, me->paused == 1); /* only after it */
    return ++me->ticks == me->tick_end;
}

static ah_call next_call(rank_state *me, int64_t timeout) {
    me->paused = me->resumed = me->ticks = 0;
    return (ah_call){.sequence = ++me->sequence,
                     .signature = 42,
                     .deadline = now() + timeout,
                     .pause = on_pause,
                     .resume = on_resume,
                     .tick = on_tick,
                     .tick_ns = MILLISECONDS,
                     .owner = me,
                     .offenders = 99};
}

static void check_hooks(const rank_state *me) {
    CHECK(me, me->paused <= 1 && me->resumed == me->paused);
}

/* ---- data */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Values that every operation takes without overflow to speak of. */
static void fill(void *at, ah_type type, size_t nbytes, uint64_t seed) {
    unsigned char *bytes = at;
    size_t each = ah_type_size(type);
    for (size_t i = 0; i + each <= nbytes; i += each) {
        uint64_t bits = draw(&seed);
        float real = (float)((int)(bits % 2001) - 1000) / 64;
        double wide[2] = {real, real / 3};
        float narrow[2] = {real, real / 3};
        uint32_t word = bits_of(real);
        uint16_t half = (uint16_t)((bits & 0x83ff) | (8 + bits % 13) << 10);
        uint16_t brain = (uint16_t)(word >> 16);
        unsigned char e4m3fn = (unsigned char)((bits & 0x87) | (4 + bits % 5) << 3);
        unsigned char e5m2 = (unsigned char)((bits & 0x83) | (12 + bits % 5) << 2);
        unsigned char truth = bits & 1;
        const void *from = &bits;
        switch (type) {
        case AH_BOOL: from = &truth; break;
        case AH_FLOAT16: from = &half; break;
        case AH_FLOAT8_E4M3FN: from = &e4m3fn; break;
        case AH_FLOAT8_E5M2: from = &e5m2; break;
        case AH_BFLOAT16: from = &brain; break;
        case AH_FLOAT32:
        case AH_COMPLEX64: from = narrow; break;
        case AH_FLOAT64:
        case AH_COMPLEX128: from = wide; break;
        default: break;
        }
        memcpy(bytes + i, from, each);
    }
}

/* A buffer between two guards, in the rank's heap or not; all freed by release_all. */
enum { GUARD = 64, BUFFERS = 200 };
typedef struct {
    char *at;
    size_t nbytes;
    void *block; /* to free */
} buffer;

typedef struct {
    buffer list[BUFFERS];
    int count;
} buffers;

static void *obtain(rank_state *me, buffers *all, size_t nbytes, size_t shift, bool in_heap) {
    size_t room = nbytes + shift + 2 * GUARD;
    buffer *one = &all->list[all->count++];
    char *block;
    CHECK(me, all->count <= BUFFERS);
    if (in_heap && me->world->heaps && me->heap_used + room <= HEAP_BYTES) {
        block = (char *)me->world->heap[me->rank] + me->heap_used;
        me->heap_used += (room + 63) / 64 * 64;
        one->block = NULL;
    } else {
        block = one->block = aligned_alloc(64, (room + 63) / 64 * 64);
        CHECK(me, block);
    }
    one->at = block + GUARD + shift;
    one->nbytes = nbytes;
    memset(one->at - GUARD, 0xa5, GUARD);
    memset(one->at + nbytes, 0xa5, GUARD);
    return one->at;
}

static void release_all(rank_state *me, buffers *all) {
    for (int i = 0; i < all->count; i++) {
        buffer *one = &all->list[i];
        for (int k = 0; k < GUARD; k++)
            if ((unsigned char)one->at[k - GUARD] != 0xa5 ||
                (unsigned char)one->at[one->nbytes + (size_t)k] != 0xa5)
                fail(me, "wrote outside of buffer %d", i);
        free(one->block);
    }
    all->count = 0;
    me->heap_used = 0;
}

/* ---- one random call, the same on all ranks, checked */

enum {
    BARRIER,
    ALL_REDUCE,
    REDUCE,
    SCAN,
    EXSCAN,
    REDUCE_SCATTER_V,
    REDUCE_SCATTER, /* the last on numbers */
    BROADCAST,
    GATHER,
    SCATTER,
    ALL_GATHER,
    ALL_TO_ALL,
    EXCHANGE,
    OPERATIONS
};

typedef struct {
    int operation, root;
    ah_op op;
    ah_type type;
    size_t nbytes; /* of the unit of this operation */
    bool in_place;
    uint64_t heap; /* which ranks have their arrays there */
    uint64_t data; /* seed of all inputs */
    size_t shift[AH_MAX_RANKS];
    size_t pairs[AH_MAX_RANKS]
                [AH_MAX_RANKS]; /* all_to_all, exchange; reduce_scatter_v: the first */
    bool same[AH_MAX_RANKS];    /* exchange: all get what rank 0 gets */
    bool is_rooted;             /* exchange: the root alone sends */
    bool to_root;               /* exchange: or alone receives */
} plan;

static size_t some_size(uint64_t *common, const ah_limits *limits, int size) {
    size_t marks[] = {0,
                      8,
                      40,
                      48,
                      64,
                      limits->slot_max / (size_t)size,
                      limits->slot_max,
                      limits->chunk / (size_t)size,
                      limits->chunk,
                      2 * limits->chunk,
                      3 * limits->chunk,
                      limits->attach_min == SIZE_MAX ? 0 : limits->attach_min};
    size_t mark = marks[draw(common) % (sizeof marks / sizeof *marks)];
    size_t change = draw(common) % 4 ? draw(common) % 40 : draw(common) % (limits->chunk + 1);
    return draw(common) % 2 || change > mark ? mark + change : mark - change;
}

static void make_plan(plan *p, const rank_state *me, uint64_t *common) {
    const world *w = me->world;
    bool alike = draw(common) % 2; /* to the call before: ranks run ahead in a row of such calls */
    int operation = (int)(draw(common) % OPERATIONS);
    int root = (int)(draw(common) % (uint64_t)w->size);
    if (w->staged && draw(common) % 2) operation = ALL_REDUCE;
    p->operation = alike ? p->operation : operation;
    p->root = alike ? p->root : root;
    do {
        p->op = (ah_op)(draw(common) % AH_OPS);
        p->type = (ah_type)(draw(common) % AH_TYPES);
    } while (!ah_supports(p->op, p->type));
    size_t each = p->operation <= REDUCE_SCATTER ? ah_type_size(p->type) : 1;
    p->nbytes = some_size(common, &w->limits, w->size) / each * each;
    if (w->staged)
        p->nbytes = (w->limits.slot_max + 1 + draw(common) % (3 * w->limits.chunk)) / each * each;
    p->in_place = draw(common) % 2;
    p->heap = draw(common) % 2 ? UINT64_MAX : draw(common) & draw(common);
    p->data = draw(common);
    bool even = draw(common) % 2;
    for (int a = 0; a < w->size; a++) {
        p->shift[a] = draw(common) % 2 ? 0 : draw(common) % 8 * each;
        p->same[a] = draw(common) % 2;
        for (int b = 0; b < w->size; b++)
            p->pairs[a][b] = even ? p->nbytes
                             : draw(common) % 3
                                 ? draw(common) % 50 / each * each
                                 : some_size(common, &w->limits, w->size) / each * each;
    }
    p->is_rooted = p->operation == EXCHANGE && draw(common) % 2;
    p->to_root = p->is_rooted && draw(common) % 2;
    for (int a = 0; a < w->size && p->is_rooted; a++) {
        if (p->to_root) {
            size_t nbytes = a == p->root ? 0 : p->pairs[a][p->root];
            p->same[a] = false;
            memset(p->pairs[a], 0, sizeof p->pairs[a]);
            p->pairs[a][p->root] = nbytes;
        } else if (a != p->root) {
            p->same[a] = true;
            memset(p->pairs[a], 0, sizeof p->pairs[a]);
        }
    }
}

static uint64_t seed_of(const plan *p, int rank, int piece) {
    return p->data + (uint64_t)rank * 1000003 + (uint64_t)piece * 7919;
}

static void *input(rank_state *me, buffers *all, const plan *p, int rank, int piece, size_t nbytes,
                   bool in_heap) {
    void *at = obtain(me, all, nbytes, p->shift[me->rank], in_heap);
    fill(at, p->operation <= REDUCE_SCATTER ? p->type : AH_UINT8, nbytes, seed_of(p, rank, piece));
    return at;
}

static void expect(rank_state *me, const plan *p, const void *got, const void *wanted,
                   size_t nbytes, const char *what) {
    if (!nbytes || memcmp(got, wanted, nbytes) == 0) return;
    size_t at = 0;
    while (((const char *)got)[at] == ((const char *)wanted)[at]) at++;
    fail(me, "%s of operation %d op %d type %d, %zu bytes, root %d: wrong from byte %zu", what,
         p->operation, p->op, p->type, nbytes, p->root, at);
}

/* What the fold of all ranks' piece of so many bytes must be. */
static void *folded_piece(rank_state *me, buffers *all, const plan *p, int piece, size_t nbytes) {
    const void *in[AH_MAX_RANKS];
    void *out = obtain(me, all, nbytes, 0, false);
    for (int r = 0; r < me->world->size; r++) in[r] = input(me, all, p, r, piece, nbytes, false);
    ah_fold(p->op, p->type, out, in, me->world->size, nbytes / ah_type_size(p->type),
            (size_t)me->world->size);
    return out;
}

static void *folded(rank_state *me, buffers *all, const plan *p, int piece) {
    return folded_piece(me, all, p, piece, p->nbytes);
}

static uint64_t digest(const buffers *all, int count) {
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < all->list[i].nbytes; at++)
            sum = sum * 31 + (unsigned char)all->list[i].at[at];
    return sum;
}

/* A call of one rank: what it brings, and what all of it was before. */
typedef struct {
    rank_state *me;
    const plan *p;
    ah_call *call;
    buffers *all;
    int given;
    uint64_t before;
} attempt;

static bool in_heap(const attempt *a) { return a->p->heap & (UINT64_C(1) << a->me->rank); }

static void *own(attempt *a, int piece, size_t nbytes) {
    return input(a->me, a->all, a->p, a->me->rank, piece, nbytes, in_heap(a));
}

static void *space(attempt *a, int of, size_t nbytes) {
    return obtain(a->me, a->all, nbytes, a->p->shift[of], in_heap(a));
}

static void *brought(attempt *a, int rank, int piece, size_t nbytes) {
    return input(a->me, a->all, a->p, rank, piece, nbytes, false);
}

static void own_pieces(attempt *a, void **ins) {
    for (int r = 0; r < a->me->world->size; r++) ins[r] = own(a, r, a->p->nbytes);
}

/* Note what is there before the call: none of it may be another if the call fails early. */
static void remember(attempt *a) {
    a->given = a->all->count;
    a->before = digest(a->all, a->given);
}

static size_t elements(const plan *p) { return p->nbytes / ah_type_size(p->type); }

/* A call that only tries is made again until it has ended, and waits in the end, or at any time. */
static bool goes_on(attempt *a, ah_status status) {
    if (status != AH_PENDING) return false;
    CHECK(a->me, a->call->only_tries && a->me->resumed == a->me->paused);
    a->me->paused = a->me->resumed = 0;
    a->call->only_tries = draw(&a->me->own) % 8 != 0;
    if (a->call->only_tries && draw(&a->me->own) % 2) sched_yield();
    return true;
}

static ah_status try_barrier(attempt *a) {
    ah_status status;
    do status = ah_barrier(a->me->comm, a->call);
    while (goes_on(a, status));
    return status;
}

static ah_status try_all_reduce(attempt *a) {
    const plan *p = a->p;
    void *in = own(a, 0, p->nbytes);
    remember(a);
    ah_status status;
    do status = ah_all_reduce(a->me->comm, a->call, p->op, p->type, in, elements(p));
    while (goes_on(a, status));
    if (status == AH_OK) expect(a->me, p, in, folded(a->me, a->all, p, 0), p->nbytes, "all_reduce");
    return status;
}

static ah_status try_reduce(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank;
    void *in = own(a, 0, p->nbytes);
    void *out = rank != p->root ? NULL : p->in_place ? in : space(a, rank, p->nbytes);
    remember(a);
    ah_status status;
    do status = ah_reduce(a->me->comm, a->call, p->op, p->type, in, out, elements(p), p->root);
    while (goes_on(a, status));
    if (status == AH_OK && rank == p->root)
        expect(a->me, p, out, folded(a->me, a->all, p, 0), p->nbytes, "reduce");
    if (in != out) expect(a->me, p, in, brought(a, rank, 0, p->nbytes), p->nbytes, "input");
    return status;
}

static ah_status try_scan(attempt *a) {
    const plan *p = a->p;
    const int folded_ranks = a->me->rank + (p->operation == SCAN);
    void *x = own(a, 0, p->nbytes);
    remember(a);
    ah_status status;
    do
        status = (p->operation == SCAN ? ah_scan : ah_exscan)(a->me->comm, a->call, p->op, p->type,
                                                              x, elements(p));
    while (goes_on(a, status));
    if (status != AH_OK) return status;
    const void *in[AH_MAX_RANKS];
    void *wanted = brought(a, a->me->rank, 0, p->nbytes);
    for (int r = 0; r < folded_ranks; r++) in[r] = brought(a, r, 0, p->nbytes);
    if (folded_ranks)
        ah_fold(p->op, p->type, wanted, in, folded_ranks, elements(p), (size_t)a->me->world->size);
    expect(a->me, p, x, wanted, p->nbytes, "scan");
    return status;
}

static ah_status try_reduce_scatter(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank;
    void *ins[AH_MAX_RANKS];
    own_pieces(a, ins);
    void *out = p->in_place ? ins[rank] : space(a, rank, p->nbytes);
    remember(a);
    ah_status status;
    do
        status = ah_reduce_scatter(a->me->comm, a->call, p->op, p->type, (const void *const *)ins,
                                   out, elements(p));
    while (goes_on(a, status));
    if (status == AH_OK)
        expect(a->me, p, out, folded(a->me, a->all, p, rank), p->nbytes, "reduce_scatter");
    for (int r = 0; r < a->me->world->size; r++)
        if (ins[r] != out)
            expect(a->me, p, ins[r], brought(a, rank, r, p->nbytes), p->nbytes, "input");
    return status;
}

static ah_status try_reduce_scatter_v(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank, size = a->me->world->size;
    const size_t *nbytes = p->pairs[0];
    void *ins[AH_MAX_RANKS];
    for (int r = 0; r < size; r++) ins[r] = own(a, r, nbytes[r]);
    void *out = p->in_place ? ins[rank] : space(a, rank, nbytes[rank]);
    remember(a);
    ah_status status;
    do
        status = ah_reduce_scatter_v(a->me->comm, a->call, p->op, p->type, (const void *const *)ins,
                                     nbytes, out);
    while (goes_on(a, status));
    if (status == AH_OK)
        expect(a->me, p, out, folded_piece(a->me, a->all, p, rank, nbytes[rank]), nbytes[rank],
               "reduce_scatter_v");
    for (int r = 0; r < size; r++)
        if (ins[r] != out)
            expect(a->me, p, ins[r], brought(a, rank, r, nbytes[r]), nbytes[r], "input");
    return status;
}

static ah_status try_broadcast(attempt *a) {
    const plan *p = a->p;
    void *in = own(a, 0, p->nbytes);
    remember(a);
    ah_status status;
    do status = ah_broadcast(a->me->comm, a->call, in, p->nbytes, p->root);
    while (goes_on(a, status));
    if (status == AH_OK || a->me->rank == p->root)
        expect(a->me, p, in, brought(a, p->root, 0, p->nbytes), p->nbytes, "broadcast");
    return status;
}

static ah_status try_gather(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank, size = a->me->world->size;
    void *outs[AH_MAX_RANKS];
    void *in = own(a, 0, p->nbytes);
    for (int r = 0; r < size; r++) outs[r] = r == rank && p->in_place ? in : space(a, r, p->nbytes);
    remember(a);
    const bool gets = p->operation == ALL_GATHER || rank == p->root;
    ah_status status;
    do
        status = p->operation == GATHER
                     ? ah_gather(a->me->comm, a->call, in, gets ? outs : NULL, p->nbytes, p->root)
                     : ah_all_gather(a->me->comm, a->call, in, outs, p->nbytes);
    while (goes_on(a, status));
    if (status == AH_OK && gets)
        for (int r = 0; r < size; r++)
            expect(a->me, p, outs[r], brought(a, r, 0, p->nbytes), p->nbytes, "gather");
    return status;
}

static ah_status try_scatter(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank;
    void *ins[AH_MAX_RANKS];
    own_pieces(a, ins);
    void *out = p->in_place ? ins[rank] : space(a, rank, p->nbytes);
    remember(a);
    const void *const *given = rank == p->root ? (const void *const *)ins : NULL;
    ah_status status;
    do status = ah_scatter(a->me->comm, a->call, given, out, p->nbytes, p->root);
    while (goes_on(a, status));
    if (status == AH_OK)
        expect(a->me, p, out, brought(a, p->root, rank, p->nbytes), p->nbytes, "scatter");
    return status;
}

static ah_status try_all_to_all(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank, size = a->me->world->size;
    void *ins[AH_MAX_RANKS], *outs[AH_MAX_RANKS];
    size_t send[AH_MAX_RANKS], recv[AH_MAX_RANKS];
    for (int r = 0; r < size; r++) {
        send[r] = p->pairs[rank][r];
        recv[r] = p->pairs[r][rank];
        ins[r] = own(a, r, send[r]);
        outs[r] = space(a, r, recv[r]);
    }
    remember(a);
    ah_status status;
    do status = ah_all_to_all(a->me->comm, a->call, (const void *const *)ins, send, outs, recv);
    while (goes_on(a, status));
    if (status == AH_OK)
        for (int r = 0; r < size; r++)
            expect(a->me, p, outs[r], brought(a, r, rank, recv[r]), recv[r], "all_to_all");
    return status;
}

/* Bytes that rank `from` sends to `to`. */
static size_t message_bytes(const plan *p, int from, int to) {
    return p->pairs[from][p->same[from] ? 0 : to];
}

static _Thread_local attempt *exchanging;
static _Thread_local char *exchanged[AH_MAX_RANKS];

static bool allocate(void *owner, const size_t nbytes[], char *out[]) {
    attempt *a = exchanging;
    CHECK(a->me, owner == a->me);
    for (int r = 0; r < a->me->world->size; r++) {
        size_t wanted = r == a->me->rank ? 0 : message_bytes(a->p, r, a->me->rank);
        CHECK(a->me, nbytes[r] == wanted);
        out[r] = exchanged[r] = space(a, r, nbytes[r]);
    }
    return true;
}

/* Each message is three buffers, cut anywhere. */
static ah_message cut(attempt *a, int piece, size_t nbytes, ah_buffer buffers[3]) {
    const char *at = own(a, piece, nbytes);
    size_t first = nbytes ? draw(&a->me->own) % (nbytes + 1) : 0;
    size_t second = first + draw(&a->me->own) % (nbytes - first + 1);
    buffers[0] = (ah_buffer){at, first};
    buffers[1] = (ah_buffer){at + first, second - first};
    buffers[2] = (ah_buffer){at + second, nbytes - second};
    return (ah_message){buffers, 3, nbytes};
}

static ah_status try_exchange(attempt *a) {
    const plan *p = a->p;
    const int rank = a->me->rank, size = a->me->world->size;
    ah_message to[AH_MAX_RANKS];
    ah_buffer parts[AH_MAX_RANKS][3];
    for (int r = 0; r < (p->same[rank] ? 1 : size); r++)
        to[r] = cut(a, r, message_bytes(p, rank, r), parts[r]);
    ah_messages messages = {to, p->same[rank], p->is_rooted ? p->root : -1, p->to_root, allocate};
    exchanging = a;
    remember(a);
    ah_status status = ah_exchange(a->me->comm, a->call, &messages);
    for (int r = 0; r < size && status == AH_OK; r++) {
        size_t nbytes = message_bytes(p, r, rank);
        if (r != rank)
            expect(a->me, p, exchanged[r], brought(a, r, p->same[r] ? 0 : rank, nbytes), nbytes,
                   "exchange");
    }
    return status;
}

static ah_status try_operation(attempt *a) {
    switch (a->p->operation) {
    case BARRIER: return try_barrier(a);
    case ALL_REDUCE: return try_all_reduce(a);
    case REDUCE: return try_reduce(a);
    case REDUCE_SCATTER: return try_reduce_scatter(a);
    case REDUCE_SCATTER_V: return try_reduce_scatter_v(a);
    case BROADCAST: return try_broadcast(a);
    case GATHER:
    case ALL_GATHER: return try_gather(a);
    case SCATTER: return try_scatter(a);
    case ALL_TO_ALL: return try_all_to_all(a);
    case SCAN:
    case EXSCAN: return try_scan(a);
    case EXCHANGE: return try_exchange(a);
    default: abort();
    }
}

static ah_status perform(rank_state *me, const plan *p, ah_call *call) {
    static _Thread_local buffers all;
    attempt a = {.me = me, .p = p, .call = call, .all = &all};
    call->only_tries =
        p->operation != EXCHANGE && draw(&me->own) % 2 && ah_slot_is_free(me->comm, call->sequence);
    ah_status status = try_operation(&a);
    if (status != AH_OK && !call->touches_output) CHECK(me, a.before == digest(&all, a.given));
    release_all(me, &all);
    check_hooks(me);
    return status;
}

static void dawdle(rank_state *me, int odds, int64_t longest) {
    if (draw(&me->own) % (uint64_t)odds) return;
    int64_t until = now() + (int64_t)(draw(&me->own) % (uint64_t)longest);
    while (now() < until) sched_yield();
}

static void skip_some(rank_state *me, uint64_t *common) {
    if (!me->world->gaps || draw(common) % 3 == 0) return;
    me->sequence += 1 + draw(common) % 9;
    ah_comm_skip(me->comm, me->sequence);
}

/* That nothing which this world is for was left out. */
static void check_variants(rank_state *me) {
    const world *w = me->world;
    const bool expected[] = {[AH_SLOTS] = true,      [AH_STAGED] = !w->attach && !w->heaps,
                             [AH_SWAP] = !w->heaps,  [AH_MAILBOXES] = w->size > 2 && !w->heaps,
                             [AH_DIRECT] = w->heaps, [AH_ATTACH] = w->attach};
    for (int v = 0; v <= AH_ATTACH && w->size > 1 && w->rounds >= 200; v++)
        if (!(w->staged && (v == AH_SLOTS)) && v < (int)(sizeof expected / sizeof *expected) &&
            expected[v] && !atomic_load(&w->board[800 + v]))
            fail(me, "variant %d never occurred", v);
}

static void random_calls(rank_state *me) {
    uint64_t common = me->world->seed;
    plan *p = calloc(1, sizeof *p);
    for (int i = 0; i < me->world->rounds; i++) {
        make_plan(p, me, &common);
        skip_some(me, &common);
        dawdle(me, 8, MILLISECONDS / 2);
        ah_call call = next_call(me, LONG_TIME);
        ah_status status = perform(me, p, &call);
        if (status != AH_OK)
            fail(me, "operation %d: status %d, waiting %llx, offenders %llx", p->operation, status,
                 (unsigned long long)call.waiting, (unsigned long long)call.offenders);
        CHECK(me, call.offenders == 0 && call.waiting == 0);
        atomic_store(&me->world->board[800 + call.variant], 1);
    }
    free(p);
    line_up(me, 3);
    check_variants(me);
}

/* ---- calls that are given up: what ends in AH_OK is right, and afterwards all is well */

typedef struct {
    ah_comm *comm;     /* to interrupt; NULL: to kill the process */
    uint64_t sequence; /* up to which */
    struct timespec delay;
    pid_t process;
} attack;

static void *attacker(void *given) {
    const attack *what = given;
    nanosleep(&what->delay, NULL); /* any moment is fine: that is what is tried */
    if (what->comm)
        ah_comm_interrupt(what->comm, what->sequence);
    else
        kill(getpid(), SIGKILL);
    return NULL;
}

static void troubled_calls(rank_state *me) {
    uint64_t common = me->world->seed;
    plan *p = calloc(1, sizeof *p);
    for (int i = 0; i < me->world->rounds; i++) {
        make_plan(p, me, &common);
        skip_some(me, &common);
        bool calm = i % 8 == 7; /* the call after trouble must do, whatever happened */
        pthread_t thread;
        bool attacked = !calm && draw(&me->own) % 6 == 0;
        attack what = {me->comm, me->sequence + 1, {0, (long)(draw(&me->own) % 300000)}, 0};
        if (attacked && pthread_create(&thread, NULL, attacker, &what)) abort();
        if (!calm) dawdle(me, 3, 2 * MILLISECONDS);
        ah_call call = next_call(me, calm ? LONG_TIME : (int64_t)(draw(&me->own) % 1000000));
        ah_status status = perform(me, p, &call);
        if (attacked) pthread_join(thread, NULL);
        if (calm && status != AH_OK)
            fail(me, "operation %d after trouble: status %d, waiting %llx, offenders %llx",
                 p->operation, status, (unsigned long long)call.waiting,
                 (unsigned long long)call.offenders);
        if (status == AH_MISMATCH || (status == AH_INTERRUPTED && !attacked) ||
            (status == AH_TIMEOUT && !call.waiting) || (status == AH_ABANDONED && !call.offenders))
            fail(me, "operation %d in trouble: status %d, waiting %llx, offenders %llx",
                 p->operation, status, (unsigned long long)call.waiting,
                 (unsigned long long)call.offenders);
    }
    free(p);
}

/* ---- scenarios of two or three ranks */

enum { MANY = 5000 }; /* floats: beyond every small limit of tight_limits */

static void fill_floats(float *x, float value) {
    for (int i = 0; i < MANY; i++) x[i] = value;
}

static bool all_are(const float *x, int count, float value) {
    for (int i = 0; i < count; i++)
        if (x[i] != value) return false;
    return true;
}

static void next_is_right(rank_state *me, float *x, int count) {
    fill_floats(x, 1);
    ah_call call = next_call(me, LONG_TIME);
    CHECK(me, ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, (size_t)count) == AH_OK);
    CHECK(me, all_are(x, count, (float)me->world->size));
    check_hooks(me);
}

/* Rank 0 gives up before rank 1 comes: small data is there all the same, large is not. */
static void late_rank(rank_state *me) {
    static _Thread_local float x[MANY];
    for (int large = 0; large < 2; large++) {
        int count = large ? MANY : 3;
        fill_floats(x, 2);
        if (me->rank == 1) hear(me, 10 + large);
        ah_call call = next_call(me, me->rank == 0 ? MILLISECONDS : LONG_TIME);
        ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, (size_t)count);
        if (me->rank == 0) {
            CHECK(me, status == AH_TIMEOUT && call.waiting == 2);
            fill_floats(x, 77); /* ours again */
            tell(me, 10 + large);
        } else if (large) {
            CHECK(me, status == AH_ABANDONED && call.offenders == 1);
        } else {
            CHECK(me, status == AH_OK && all_are(x, count, 4));
        }
        check_hooks(me);
        next_is_right(me, x, large ? MANY : 3);
    }
}

/* The sooner rank goes on far ahead, giving up each call that needs the other. */
static void far_ahead(rank_state *me) {
    static _Thread_local float x[MANY];
    if (me->rank == 1) hear(me, 20);
    for (int i = 0; i < 5 * AH_SLOTS_PER_RANK; i++) {
        fill_floats(x, (float)i);
        ah_call call = next_call(me, me->rank == 0 ? 100000 : LONG_TIME);
        ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, 20);
        if (me->rank == 0) CHECK(me, status == AH_TIMEOUT);
        if (me->rank == 1 && i < AH_SLOTS_PER_RANK) /* its slots are still there */
            CHECK(me, status == AH_OK && all_are(x, 20, 2 * (float)i));
        if (me->rank == 1 && i >= AH_SLOTS_PER_RANK)
            CHECK(me, status == AH_ABANDONED && call.offenders == 1);
    }
    if (me->rank == 0) tell(me, 20);
    next_is_right(me, x, 20);
    next_is_right(me, x, MANY);
}

/* Who gave a call up takes no box for free in the next: late ranks still write there. */
static void given_up_staging(rank_state *me) {
    static _Thread_local float x[MANY], all[3 * MANY];
    void *out[3] = {all, all + MANY, all + 2 * MANY};
    for (int i = 0; i < 5; i++) {
        next_is_right(me, x, MANY);
        if (me->rank == 2) { /* until the first has begun the call after the one that it gave up */
            hear(me, 40 + i);
            int64_t until = now() + 5 * MILLISECONDS;
            while (now() < until) sched_yield();
        }
        fill_floats(x, -1);
        ah_call call = next_call(me, me->rank == 0 ? MILLISECONDS : LONG_TIME);
        ah_status status = ah_all_gather(me->comm, &call, x, out, sizeof x);
        CHECK(me, status == (me->rank == 0 ? AH_TIMEOUT : AH_ABANDONED));
        if (me->rank == 0) tell(me, 40 + i);
        next_is_right(me, x, MANY);
    }
}

enum { AHEAD_CALLS = 1000 };

/* Numbers of a call in the test below: now and then more than a slot holds. */
static int ahead_count(const rank_state *me, int at) {
    uint64_t hash = (me->world->seed + (uint64_t)at) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    return hash % 16 == 0 ? MANY : hash % 16 < 4 ? 500 : (int)(hash % 16);
}

static bool is_small(const rank_state *me, int at) {
    return ah_all_reduce_splits(me->comm, AH_FLOAT32, (size_t)ahead_count(me, at));
}

static void fill_ahead(const rank_state *me, float *x, int at) {
    fill_floats(x, (float)(at % 100 + me->rank));
}

/* Ranks post small calls before their turn, as far as each of them likes; others come late. */
static void posted_ahead(rank_state *me) {
    static _Thread_local float x[MANY];
    uint64_t first = me->sequence + 1;
    int posted = 0; /* those before it are, in their turn or before */
    for (int at = 0; at < AHEAD_CALLS; at++) {
        int wanted = at + 1 + (int)(draw(&me->own) % (AH_AHEAD + 1));
        bool is_ahead = posted > at;
        if (!is_ahead) posted = at + 1;
        while (is_small(me, at) && posted < wanted && posted < AHEAD_CALLS &&
               is_small(me, posted)) {
            ah_call later = {.sequence = first + (uint64_t)posted, .signature = 42};
            fill_ahead(me, x, posted);
            if (!ah_all_reduce_post(me->comm, &later, AH_SUM, AH_FLOAT32, x,
                                    (size_t)ahead_count(me, posted)))
                break;
            fill_floats(x, -1); /* the caller's again */
            posted++;
        }
        if (draw(&me->own) % 32 == 0) sched_yield();
        fill_ahead(me, x, at);
        ah_call call = next_call(me, LONG_TIME);
        call.is_posted = is_ahead;
        int count = ahead_count(me, at), size = me->world->size;
        ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, (size_t)count);
        float sum = (float)(at % 100 * size + size * (size - 1) / 2);
        CHECK(me, status == AH_OK && all_are(x, count, sum));
    }
}

static void reduce_numbered(rank_state *me, int at, ah_call *call) {
    float x = (float)(at + me->rank);
    CHECK(me, ah_all_reduce(me->comm, call, AH_SUM, AH_FLOAT32, &x, 1) == AH_OK);
    CHECK(me, x == (float)(2 * at + 1));
}

/* Who has posted calls ahead is still in the one before them: no root overwrites that. */
static void root_beyond_posted(rank_state *me) {
    float x = 0;
    ah_call first = next_call(me, LONG_TIME);
    CHECK(me, ah_broadcast(me->comm, &first, &x, sizeof x, 0) == AH_OK);
    if (me->rank == 1) {
        ah_call call = next_call(me, LONG_TIME);
        call.only_tries = true;
        x = 1;
        CHECK(me, ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, &x, 1) == AH_PENDING);
        for (int at = 1; at <= AH_AHEAD; at++) {
            ah_call later = {.sequence = me->sequence + (uint64_t)at, .signature = 42};
            x = (float)(at + 1);
            CHECK(me, ah_all_reduce_post(me->comm, &later, AH_SUM, AH_FLOAT32, &x, 1));
        }
        tell(me, 50);
        hear(me, 51);
        call.only_tries = false;
        reduce_numbered(me, 0, &call);
    } else {
        hear(me, 50);
        ah_call call = next_call(me, LONG_TIME);
        reduce_numbered(me, 0, &call);
    }
    for (int at = 1; at <= AH_AHEAD; at++) {
        ah_call call = next_call(me, LONG_TIME);
        call.is_posted = me->rank == 1;
        reduce_numbered(me, at, &call);
    }
    ah_status status = AH_OK;
    for (int at = 0; status == AH_OK; at++) {
        ah_call call = next_call(me, me->rank == 0 ? 2 * MILLISECONDS : LONG_TIME);
        x = me->rank == 0 ? (float)at : -1;
        status = ah_broadcast(me->comm, &call, &x, sizeof x, 0);
        CHECK(me, status != AH_OK || x == (float)at);
    }
    CHECK(me, status == (me->rank == 0 ? AH_TIMEOUT : AH_ABANDONED));
    if (me->rank == 0) tell(me, 51);
}

/* A root runs ahead of its readers, but not over data that they have not read. */
static void one_way_ahead(rank_state *me) {
    float x = 0;
    ah_call first = next_call(me, LONG_TIME); /* which waits: nobody knows yet who makes it */
    CHECK(me, ah_broadcast(me->comm, &first, &x, sizeof x, 0) == AH_OK);
    if (me->rank == 0) {
        int ahead = 0;
        ah_status status;
        ah_call call;
        do {
            x = (float)ahead++;
            call = next_call(me, 2 * MILLISECONDS);
            status = ah_broadcast(me->comm, &call, &x, sizeof x, 0);
        } while (status == AH_OK);
        CHECK(me, status == AH_TIMEOUT && call.waiting == 2);
        CHECK(me, ahead == AH_SLOTS_PER_RANK); /* the last failed */
        atomic_store(&me->world->board[31], ahead);
        tell(me, 30);
    } else {
        hear(me, 30);
        int ahead = atomic_load(&me->world->board[31]);
        for (int i = 0; i < ahead; i++) {
            ah_call call = next_call(me, LONG_TIME);
            x = -1;
            ah_status status = ah_broadcast(me->comm, &call, &x, sizeof x, 0);
            if (i < ahead - 1) CHECK(me, status == AH_OK && x == (float)i);
            if (i == ahead - 1) CHECK(me, status == AH_ABANDONED && call.offenders == 1 && x == -1);
        }
    }
}

enum { LENT = 250 }; /* floats: more than a slot of tight_limits holds, and less than a chunk */

/* Reduce to a root what tells calls, ranks and elements apart; what it gets must be right. */
static ah_status reduce_lent(rank_state *me, int at, int count, int root, int64_t timeout,
                             ah_call *call) {
    float x[LENT], out[LENT];
    for (int k = 0; k < count; k++) x[k] = (float)(at + k + 1000 * me->rank);
    *call = next_call(me, timeout);
    call->only_tries = at % 3 == 1 && ah_slot_is_free(me->comm, call->sequence);
    ah_status status;
    do {
        status = ah_reduce(me->comm, call, AH_SUM, AH_FLOAT32, x, out, (size_t)count, root);
        me->paused = me->resumed = 0;
        call->only_tries = false;
    } while (status == AH_PENDING);
    for (int k = 0; k < count && status == AH_OK && me->rank == root; k++)
        CHECK(me, out[k] == (float)(3 * (at + k) + 3000));
    return status;
}

/* Ranks put arrays for a root, which folds them, without waiting for anybody; but not over what the
 * root has not read, and not where other calls have used their staging since. */
static void lent_staging(rank_state *me) {
    static _Thread_local float x[MANY];
    ah_call call;
    for (int at = 0; at < 300; at++) {
        int root = at / 40 % 3, count = LENT - at % 100;
        dawdle(me, 3, MILLISECONDS / 5);
        CHECK(me, reduce_lent(me, at, count, root, LONG_TIME, &call) == AH_OK);
        if (at % 11 == 5) next_is_right(me, x, at % 2 ? MANY : 3);
    }
    for (int turn = 0; turn < 5; turn++) {
        int told = 50 + 10 * turn;
        CHECK(me, reduce_lent(me, 0, LENT, 0, LONG_TIME, &call) == AH_OK);
        next_is_right(me, x, 3); /* in slots: nobody is in that reduction any more */
        if (me->rank == 0) {
            hear(me, told + 1); /* they have ended three calls, of which one was in vain */
            hear(me, told + 2);
        }
        for (int ahead = 0; ahead < 2; ahead++) {
            CHECK(me, reduce_lent(me, 6 + ahead, LENT, 0, LONG_TIME, &call) == AH_OK);
            CHECK(me, call.variant == AH_STAGED);
        }
        ah_status status =
            reduce_lent(me, 9, LENT, 0, me->rank ? 2 * MILLISECONDS : LONG_TIME, &call);
        CHECK(me, status == (me->rank ? AH_TIMEOUT : AH_ABANDONED));
        CHECK(me, me->rank ? call.waiting & 1 : call.offenders & 6);
        if (me->rank) tell(me, told + me->rank);
        next_is_right(me, x, turn % 2 ? MANY : 3);
    }
}

/* Send one rank's array to another by one of the rooted calls; what comes must be right. */
static ah_status move_one_way(rank_state *me, int operation, float *x, int count, float value,
                              int64_t timeout, ah_call *call) {
    static _Thread_local float taken[MANY], other[MANY];
    const size_t nbytes = (size_t)count * sizeof *x;
    const int from = operation == GATHER ? 1 : 0; /* the root is rank 0 */
    const void *ins[] = {other, x};
    void *outs[] = {other, taken};
    ah_status status;
    fill_floats(x, me->rank == from ? value : -1);
    fill_floats(taken, -1);
    *call = next_call(me, timeout);
    if (operation == BROADCAST)
        status = ah_broadcast(me->comm, call, x, nbytes, 0);
    else if (operation == GATHER)
        status = ah_gather(me->comm, call, x, me->rank ? NULL : outs, nbytes, 0);
    else
        status = ah_scatter(me->comm, call, me->rank ? NULL : ins, taken, nbytes, 0);
    if (status == AH_OK && me->rank != from)
        CHECK(me, all_are(operation == BROADCAST ? x : taken, count, value));
    check_hooks(me);
    return status;
}

/* A source fills both of its buffers before its reader comes, but not over what that has not read;
 * and none before all have come to the call after one in which others wrote there. */
static void filled_ahead(rank_state *me) {
    static _Thread_local float x[MANY];
    const int operations[] = {BROADCAST, GATHER, SCATTER};
    ah_call call;
    for (int turn = 0; turn < 9; turn++) {
        const int operation = operations[turn % 3], told = 100 + 2 * turn;
        const bool source = me->rank == (operation == GATHER ? 1 : 0);
        if (turn % 2) next_is_right(me, x, MANY); /* a swap, which uses all staging */
        const int counts[] = {LENT - 7, LENT, MANY};
        for (int warm = 0; warm < 3; warm++)
            CHECK(me, move_one_way(me, operation, x, counts[warm], 1, LONG_TIME, &call) == AH_OK);
        next_is_right(me, x, 3); /* in slots: all that was filled is read */
        if (!source) hear(me, told);
        for (int ahead = 0; ahead < 2 && turn < 6; ahead++) {
            ah_status status = move_one_way(me, operation, x, counts[ahead], (float)(10 + ahead),
                                            LONG_TIME, &call);
            CHECK(me, status == AH_OK && call.variant == AH_STAGED);
        }
        int64_t timeout = source ? 2 * MILLISECONDS : LONG_TIME;
        ah_status status =
            move_one_way(me, operation, x, turn < 6 ? LENT : MANY, 12, timeout, &call);
        CHECK(me, status == (source ? AH_TIMEOUT : AH_ABANDONED));
        CHECK(me, (source ? call.waiting : call.offenders) == AH_BIT(1 - me->rank));
        if (source) tell(me, told);
        CHECK(me, move_one_way(me, operation, x, MANY, 13, LONG_TIME, &call) == AH_OK);
    }
}

/* A reader that gave a call up does not hold up the source, which has ended it. */
static void given_up_reading(rank_state *me) {
    static _Thread_local float x[MANY];
    ah_call call;
    for (int turn = 0; turn < 5; turn++) {
        for (int warm = 0; warm < 2; warm++)
            CHECK(me, move_one_way(me, BROADCAST, x, LENT, 1, LONG_TIME, &call) == AH_OK);
        next_is_right(me, x, 3);
        if (me->rank == 1) {
            ah_status status = move_one_way(me, BROADCAST, x, LENT, 2, MILLISECONDS, &call);
            CHECK(me, status == AH_TIMEOUT && call.waiting == 1);
            tell(me, 150 + turn);
        } else {
            hear(me, 150 + turn);
            CHECK(me, move_one_way(me, BROADCAST, x, LENT, 2, LONG_TIME, &call) == AH_OK);
        }
        const int counts[] = {MANY, LENT, LENT}; /* the first needs both buffers */
        for (int at = 0; at < 3; at++)
            CHECK(me, move_one_way(me, BROADCAST, x, counts[at], (float)(3 + at), LONG_TIME,
                                   &call) == AH_OK);
    }
}

static _Thread_local const float *watched;

enum { LAST_STEP = 1024 / sizeof(float) * 19 }; /* where the last of MANY begins, in a chunk */

/* Reading comes to its last step: stay there until told. */
static bool pause_before_last(void *owner, uint64_t waiting) {
    rank_state *me = owner;
    (void)waiting;
    if (me->ticks || watched[LAST_STEP - 1] < 0 || watched[LAST_STEP] >= 0) return false;
    me->ticks++;
    tell(me, 180);
    hear(me, 181);
    return false;
}

/* A source that has ended its call fills the one buffer of its reader's, and not the last. */
static void read_slowly(rank_state *me) {
    static _Thread_local float x[MANY];
    ah_call call;
    for (int warm = 0; warm < 2; warm++)
        CHECK(me, move_one_way(me, BROADCAST, x, warm ? MANY : LENT, 1, LONG_TIME, &call) == AH_OK);
    next_is_right(me, x, 3);
    fill_floats(x, me->rank ? -1 : 5);
    watched = x;
    call = next_call(me, LONG_TIME);
    if (me->rank == 1) {
        call.tick = pause_before_last;
        call.tick_ns = 0;
    }
    CHECK(me, ah_broadcast(me->comm, &call, x, sizeof x, 0) == AH_OK && all_are(x, MANY, 5));
    if (me->rank == 0) hear(me, 180);
    CHECK(me, move_one_way(me, BROADCAST, x, LENT, 6, LONG_TIME, &call) == AH_OK);
    int64_t timeout = me->rank ? LONG_TIME : 2 * MILLISECONDS;
    ah_status status = move_one_way(me, BROADCAST, x, LENT, 7, timeout, &call);
    CHECK(me, status == (me->rank ? AH_ABANDONED : AH_TIMEOUT));
    if (me->rank == 0) tell(me, 181);
    next_is_right(me, x, MANY);
}

/* A reader that has read some of an array says so, although not all ranks have come. */
static void read_in_part(rank_state *me) {
    static _Thread_local float x[MANY];
    for (int turn = 0; turn < 2; turn++) { /* the second time everybody knows the call */
        fill_floats(x, me->rank ? -1 : 5);
        if (turn == 1 && me->rank == 2) hear(me, 160);
        ah_call call = next_call(me, turn && me->rank == 1 ? 5 * MILLISECONDS : LONG_TIME);
        ah_status status = ah_broadcast(me->comm, &call, x, sizeof x, 0);
        if (!turn) CHECK(me, status == AH_OK && all_are(x, MANY, 5));
        if (turn) CHECK(me, status == (me->rank == 1 ? AH_TIMEOUT : AH_ABANDONED));
        if (turn && me->rank == 1) CHECK(me, x[0] == 5 && call.touches_output);
        if (turn && me->rank == 1) tell(me, 160);
        next_is_right(me, x, 3);
    }
}

static _Thread_local char *gathered[3];

static bool allocate_gathered(void *owner, const size_t nbytes[], char *out[]) {
    static _Thread_local float taken[3][MANY];
    (void)owner;
    for (int r = 0; r < 3; r++) {
        if (nbytes[r] > sizeof taken[r]) abort();
        out[r] = (char *)taken[r];
        if (nbytes[r]) gathered[r] = out[r];
    }
    return true;
}

/* Send `count` floats to rank 0 by an exchange, of sizes that it does not know. */
static void gather_unknown(rank_state *me, const float *x, int count) {
    ah_buffer buffer = {x, me->rank ? (size_t)count * sizeof *x : 0};
    ah_message to[3] = {{&buffer, 1, buffer.nbytes}};
    ah_messages messages = {to, false, 0, true, allocate_gathered};
    ah_call call = next_call(me, LONG_TIME);
    CHECK(me, ah_exchange(me->comm, &call, &messages) == AH_OK);
    check_hooks(me);
}

/* Who sends its message in a slot takes no box for free that another may have filled. */
static void slots_beside_staging(rank_state *me) {
    static _Thread_local float x[MANY], all[3 * MANY];
    void *out[3] = {all, all + MANY, all + 2 * MANY};
    const int count = me->rank == 2 ? LENT : 3;
    for (int turn = 0; turn < 4; turn++) {
        const int told = 170 + 2 * turn;
        ah_call swap = next_call(me, LONG_TIME); /* of other steps each time, an odd number */
        const size_t swapped = (size_t)(2 * turn + 3) * 512;
        CHECK(me, ah_all_gather(me->comm, &swap, x, out, swapped) == AH_OK);
        check_hooks(me);
        fill_floats(x, 7);
        gather_unknown(me, x, count);
        next_is_right(me, x, 3);
        if (me->rank == 0) hear(me, told + 1);
        if (me->rank == 1) hear(me, told);
        fill_floats(x, 8);
        if (me->rank != 1) gather_unknown(me, x, count);
        if (me->rank == 2) tell(me, told);
        if (me->rank == 1) gather_unknown(me, x, count);
        if (me->rank == 0) CHECK(me, all_are((float *)gathered[2], LENT, 8));
        fill_floats(x, (float)me->rank);
        ah_call call = next_call(me, LONG_TIME);
        call.only_tries = me->rank == 1;
        ah_status status = ah_all_gather(me->comm, &call, x, out, sizeof x);
        if (me->rank == 1) {
            CHECK(me, status == AH_PENDING);
            me->paused = me->resumed = 0;
            tell(me, told + 1);
            call.only_tries = false;
            status = ah_all_gather(me->comm, &call, x, out, sizeof x);
        }
        CHECK(me, status == AH_OK);
        for (int r = 0; r < 3; r++) CHECK(me, all_are(out[r], MANY, (float)r));
    }
}

/* One rank makes another call: all are told, and no output is touched. */
static void mismatches(rank_state *me) {
    static _Thread_local float x[MANY], y[2 * MANY];
    bool odd = me->rank == 1;
    uint64_t others = odd ? 5 : 2;
    for (int kind = 0; kind < 8; kind++) {
        fill_floats(x, 3);
        fill_floats(y, 3);
        ah_call call = next_call(me, LONG_TIME);
        ah_status status;
        switch (kind) {
        case 0: /* counts, all small */
            status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, odd ? 2 : 3);
            break;
        case 1: /* one small, the others large */
            status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, odd ? 3 : MANY);
            break;
        case 2:
            status = ah_all_reduce(me->comm, &call, odd ? AH_MAX : AH_SUM, AH_FLOAT32, x, MANY);
            break;
        case 3:
            status = odd ? ah_barrier(me->comm, &call)
                         : ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, MANY);
            break;
        case 4: /* what only the caller knows */
            call.signature += odd;
            status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, 3);
            break;
        case 5: status = ah_broadcast(me->comm, &call, x, sizeof x, odd ? 1 : 0); break;
        case 6: { /* as many bytes in all */
            const void *in[] = {x, x, x};
            size_t sizes[] = {odd ? 12 : 8, 8, odd ? 8 : 12};
            status = ah_reduce_scatter_v(me->comm, &call, AH_SUM, AH_FLOAT32, in, sizes, y);
            break;
        }
        default: { /* rank 1 expects less of rank 0 than that sends */
            const void *in[] = {x, x, x};
            void *out[] = {y, y, y};
            size_t send[] = {8, 8, 8}, recv[] = {odd ? 4 : 8, 8, 8};
            status = ah_all_to_all(me->comm, &call, in, send, out, recv);
            others = me->rank == 0 ? 2 : me->rank == 1 ? 1 : 3;
        }
        }
        /* One that is unlike is enough; the others need not have been looked at. */
        CHECK(me, status == AH_MISMATCH && call.offenders && !(call.offenders & ~others));
        CHECK(me, all_are(x, MANY, 3) && all_are(y, MANY, 3));
        check_hooks(me);
        next_is_right(me, x, kind % 2 ? MANY : 3);
    }
}

/* Two ranks that differ need not wait for the third, which is told too when it comes. */
static void mismatch_without_all(rank_state *me) {
    for (int large = 0; large < 2; large++) {
        static _Thread_local float x[MANY];
        fill_floats(x, 3);
        if (me->rank == 2) {
            hear(me, 60 + large);
            hear(me, 62 + large);
        }
        ah_call call = next_call(me, LONG_TIME);
        ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x,
                                         (large ? MANY : 4) - (me->rank == 1));
        const uint64_t others[] = {2, 1, 2}; /* or 5 of the one in the middle */
        CHECK(me,
              status == AH_MISMATCH && (call.offenders & others[me->rank]) && !call.touches_output);
        CHECK(me, all_are(x, MANY, 3));
        if (me->rank < 2) tell(me, 60 + large + 2 * me->rank);
        next_is_right(me, x, 3);
    }
}

/* Rooted calls and scans that the ranks have not all made before are refused by all, whoever is the
 * root, or the odd rank. */
static void rooted_mismatches(rank_state *me) {
    enum { KINDS = 5 };
    for (int i = 0; i < 40 * KINDS; i++) {
        int kind = i % KINDS, odd = i / KINDS % 3, root = i / KINDS / 3 % 3;
        if (me->rank == odd) root = (root + 1) % 3;
        float x = 3, y[3] = {3, 3, 3};
        const void *in[] = {&x, &x, &x};
        void *out[] = {&y[0], &y[1], &y[2]};
        dawdle(me, 3, 20000);
        ah_call call = next_call(me, LONG_TIME);
        call.signature += (uint64_t)i;
        ah_status status =
            kind == 0   ? ah_broadcast(me->comm, &call, &x, sizeof x, root)
            : kind == 1 ? ah_gather(me->comm, &call, &x, out, sizeof x, root)
            : kind == 2 ? ah_scatter(me->comm, &call, in, &y[0], sizeof x, root)
            : kind == 3
                ? ah_scan(me->comm, &call, me->rank == odd ? AH_MAX : AH_SUM, AH_FLOAT32, &x, 1)
                : ah_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, &x, &y[0], 1, root);
        CHECK(me, status == AH_MISMATCH && call.offenders && !call.touches_output);
        CHECK(me, x == 3 && all_are(y, 3, 3));
        next_is_right(me, &(float[MANY]){0}[0], 3);
    }
}

/* A scan that all have made before ends on a rank without those behind it. */
static void scans_ahead(rank_state *me) {
    for (int i = 0; i < 2; i++) {
        float x = (float)(me->rank + 1);
        if (i == 1 && me->rank > 0) hear(me, 80 + me->rank - 1);
        ah_call call = next_call(me, LONG_TIME);
        CHECK(me, ah_scan(me->comm, &call, AH_SUM, AH_FLOAT32, &x, 1) == AH_OK);
        CHECK(me, x == (float)((me->rank + 1) * (me->rank + 2) / 2));
        if (i == 1) tell(me, 80 + me->rank);
    }
    next_is_right(me, &(float[MANY]){0}[0], 3);
}

static bool wait_and_interrupt(void *owner, uint64_t waiting) {
    (void)waiting;
    tell(owner, 70);
    hear(owner, 71);
    return true;
}

static bool tell_when_written(void *owner, uint64_t waiting) {
    (void)waiting;
    if (watched[MANY / 2] != 1) tell(owner, 71);
    return false;
}

/* Who gives up before it sees that all have come says nevertheless that its array was written. */
static void written_unseen(rank_state *me) {
    static _Thread_local buffers all;
    float *x = obtain(me, &all, MANY * sizeof *x, 0, true);
    fill_floats(x, 1);
    watched = x;
    if (me->rank == 2) hear(me, 70);
    ah_call call = next_call(me, LONG_TIME);
    if (me->rank == 0) call.tick = wait_and_interrupt;
    if (me->rank == 1) call.tick = tell_when_written; /* its part is the middle of all arrays */
    ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, MANY);
    CHECK(me, status == (me->rank ? AH_ABANDONED : AH_INTERRUPTED) && call.touches_output);
    CHECK(me, x[MANY / 2] == 3);
    release_all(me, &all);
    static _Thread_local float next[MANY];
    next_is_right(me, next, MANY);
}

/* In one-way calls like ones made before at least one of two ranks that differ is told, whoever
 * comes first. */
static void one_way_mismatches(rank_state *me) {
    for (int root = 0; root < 2; root++) {
        float x = 3;
        ah_call call = next_call(me, LONG_TIME);
        CHECK(me, ah_broadcast(me->comm, &call, &x, sizeof x, root) == AH_OK);
    }
    for (int i = 0; i < 200; i++) {
        float x = 3;
        dawdle(me, 3, 20000);
        ah_call call = next_call(me, LONG_TIME);
        ah_status status = me->rank == 0 ? ah_broadcast(me->comm, &call, &x, sizeof x, 0)
                                         : ah_broadcast(me->comm, &call, &x, sizeof x, 1);
        const uint64_t other = me->rank ? 1 : 2;
        CHECK(me, status == AH_OK || (status == AH_MISMATCH && call.offenders == other));
        CHECK(me, x == 3);
        if (status == AH_MISMATCH) atomic_fetch_add(&me->world->board[40 + i], 1);
        next_is_right(me, &(float[MANY]){0}[0], 3);
        CHECK(me, atomic_load(&me->world->board[40 + i]) >= 1);
    }
}

typedef struct {
    rank_state *me;
    uint64_t sequence;
} telling;

static void *interrupt_when_told(void *given) {
    telling *what = given;
    hear(what->me, 50);
    nanosleep(&(struct timespec){0, 5000000}, NULL); /* most often it sleeps by now */
    ah_comm_interrupt(what->me->comm, what->sequence);
    return NULL;
}

static void pause_and_tell(void *owner) {
    on_pause(owner);
    tell(owner, 50);
}

/* Another thread ends a call that is fast asleep, and the next one; its peer is let go. */
static void interrupts(rank_state *me) {
    static _Thread_local float x[MANY];
    pthread_t thread;
    if (me->rank == 2) hear(me, 51);
    telling what = {me, me->sequence + 2};
    if (me->rank == 0 && pthread_create(&thread, NULL, interrupt_when_told, &what)) abort();
    fill_floats(x, 1);
    ah_call call = next_call(me, LONG_TIME);
    if (me->rank == 0) {
        call.tick = NULL; /* nothing else wakes it soon */
        call.pause = pause_and_tell;
    }
    int64_t begun = now();
    ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, MANY);
    CHECK(me, now() - begun < LONG_TIME / 2);
    if (me->rank == 0) {
        CHECK(me, status == AH_INTERRUPTED && (call.waiting & 4));
        pthread_join(thread, NULL);
        tell(me, 51);
    } else {
        CHECK(me, status == AH_ABANDONED && (call.offenders & 1));
    }
    check_hooks(me);
    call = next_call(me, LONG_TIME);
    status = ah_barrier(me->comm, &call);
    if (me->rank == 0) {
        CHECK(me, status == AH_INTERRUPTED);
    } else {
        CHECK(me, status == AH_ABANDONED && (call.offenders & 1));
    }
    next_is_right(me, x, MANY);
}

/* The tick hook hears for whom the call waits, and may end it. */
static void ticks(rank_state *me) {
    ah_call call = next_call(me, LONG_TIME);
    if (me->rank == 1) hear(me, 60);
    me->tick_end = me->rank == 0 ? 3 : 0;
    ah_status status = ah_barrier(me->comm, &call);
    if (me->rank == 0) {
        CHECK(me, status == AH_INTERRUPTED && me->ticks == 3 && me->tick_waiting == 2);
        CHECK(me, me->paused == 1 && me->resumed == 1);
        tell(me, 60);
    } else {
        CHECK(me, status == AH_OK); /* all that rank 0 had to say was there */
    }
    me->tick_end = 0;
    next_is_right(me, &(float[MANY]){0}[0], 3);
}

/* A rank is killed in the middle; the others are not kept, and are told that one is missing. */
static void killed_peer(rank_state *me) {
    uint64_t common = me->world->seed;
    plan *p = calloc(1, sizeof *p);
    pthread_t thread;
    attack what = {NULL, 0, {0, (long)(draw(&me->own) % 300000)}, 0};
    ah_status status = AH_OK;
    if (me->rank == 0) tell(me, 900);
    hear(me, 900);
    for (int i = 0; status == AH_OK; i++) {
        make_plan(p, me, &common);
        if (me->rank == 1 && i == 20 && pthread_create(&thread, NULL, attacker, &what)) abort();
        ah_call call = next_call(me, me->rank == 1 || i < 20 ? LONG_TIME : 50 * MILLISECONDS);
        status = perform(me, p, &call);
        if (status == AH_TIMEOUT)
            CHECK(me, call.waiting);
        else if (status != AH_OK)
            CHECK(me, status == AH_ABANDONED && call.offenders);
        CHECK(me, i >= 20 || status == AH_OK);
    }
    if (me->rank == 1) pthread_join(thread, NULL);
    free(p);
    exit(0);
}

static void *stopper(void *given) {
    const attack *what = given;
    nanosleep(&what->delay, NULL);
    kill(what->process, SIGSTOP);
    return NULL;
}

/* A rank is stopped while it may write to another's array; that one gives up, has its array back
 * for good, and nothing is written to it when the stopped one goes on. */
static void stopped_writer(rank_state *me) {
    const world *w = me->world;
    const size_t count = (size_t)4 << 20;
    float *x = w->heap[me->rank];
    bool unshared = false;
    for (int i = 0; i < 60; i++) {
        pthread_t thread;
        attack what = {NULL, 0, {0, (long)(draw(&me->own) % 3000000)}, atomic_load(&w->pids[1])};
        for (size_t k = 0; k < count; k++) x[k] = 1;
        line_up(me, 100 + 4 * i);
        if (me->rank == 0 && pthread_create(&thread, NULL, stopper, &what)) abort();
        ah_call call = next_call(me, me->rank == 0 ? 30 * MILLISECONDS : LONG_TIME);
        ah_status status = ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, count);
        if (me->rank == 0) {
            pthread_join(thread, NULL);
            CHECK(me, status == AH_OK || (status == AH_TIMEOUT && call.waiting == 2));
            CHECK(me, status != AH_OK || !call.unshared);
            if (status != AH_OK)
                for (size_t k = 0; k < count; k++) x[k] = 7;
            kill(what.process, SIGCONT);
        } else {
            CHECK(me, status == AH_OK || (status == AH_ABANDONED && call.offenders == 1));
        }
        line_up(me, 101 + 4 * i);
        for (size_t k = 0; k < count; k++)
            if (me->rank == 0) CHECK(me, x[k] == (status == AH_OK ? 2 : 7));
        unshared |= call.unshared != NULL;
        for (size_t k = 0; k < count; k++) x[k] = 1;
        line_up(me, 102 + 4 * i);
        call = next_call(me, LONG_TIME);
        CHECK(me, ah_all_reduce(me->comm, &call, AH_SUM, AH_FLOAT32, x, count) == AH_OK);
        for (size_t k = 0; k < count; k++) CHECK(me, x[k] == 2);
        if (me->rank == 0 && unshared) tell(me, 99);
        line_up(me, 103 + 4 * i);
        if (atomic_load(&w->board[99])) {
            CHECK(me, call.variant == AH_SWAP); /* the one has no array in its heap any more */
            return;
        }
    }
    fail(me, "was never stopped while it wrote");
}

/* The same while it reads: what it has read when it goes on is not believed. */
static void stopped_reader(rank_state *me) {
    const world *w = me->world;
    const size_t count = (size_t)4 << 20;
    float *x = w->heap[me->rank], *out = x + count;
    const void *in[] = {x, x};
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        attack what = {NULL, 0, {0, (long)(draw(&me->own) % 2000000)}, atomic_load(&w->pids[1])};
        for (size_t k = 0; k < count; k++) x[k] = 1;
        line_up(me, 100 + 2 * i);
        if (me->rank == 0 && pthread_create(&thread, NULL, stopper, &what)) abort();
        ah_call call = next_call(me, me->rank == 0 ? 30 * MILLISECONDS : LONG_TIME);
        ah_status status = ah_reduce_scatter(me->comm, &call, AH_SUM, AH_FLOAT32, in, out, count);
        if (me->rank == 0) {
            pthread_join(thread, NULL);
            CHECK(me, status == AH_OK || (status == AH_TIMEOUT && call.waiting == 2));
            if (status != AH_OK)
                for (size_t k = 0; k < count; k++) x[k] = 7;
            kill(what.process, SIGCONT);
            if (status != AH_OK) tell(me, 99);
        } else {
            CHECK(me, status == AH_OK || (status == AH_ABANDONED && call.offenders == 1));
            for (size_t k = 0; k < count && status == AH_OK; k++) CHECK(me, out[k] == 2);
        }
        line_up(me, 101 + 2 * i);
    }
    CHECK(me, atomic_load(&w->board[99])); /* else nothing was tried */
}

/* Who has said goodbye writes nothing more: the memory may be somebody else's by then. */
static void left_behind(rank_state *me) {
    if (me->rank != 0) return;
    const ah_limits *limits = &me->world->limits;
    size_t bytes = ah_area_bytes(2, limits);
    char *own = shared(bytes), *other = shared(bytes);
    void *areas[] = {own, other};
    pid_t pids[] = {getpid(), getpid()};
    ah_comm *comm = ah_comm_new(0, 2, areas, pids, NULL, 0, limits);
    ah_comm_leave(comm);
    memset(own, 0x5a, bytes);
    memset(other, 0x5a, bytes);
    ah_comm_leave(comm);
    ah_comm_free(comm);
    for (size_t i = 0; i < bytes; i++) CHECK(me, own[i] == 0x5a && other[i] == 0x5a);
    munmap(own, bytes);
    munmap(other, bytes);
}

/* Attach finds out that a process is not the one it should be, although it has memory there. */
static void wrong_process(rank_state *me) {
    const world *w = me->world;
    if (me->rank == 0) {
        pid_t wrong[] = {getpid(), getpid()}, right[] = {getpid(), atomic_load(&w->pids[1])};
        ah_comm *comm = ah_comm_new(0, 2, w->memory, wrong, NULL, 0, &w->limits);
        CHECK(me, !ah_comm_probe_attach(comm));
        ah_comm_free(comm);
        comm = ah_comm_new(0, 2, w->memory, right, NULL, 0, &w->limits);
        CHECK(me, ah_comm_probe_attach(comm));
        ah_comm_free(comm);
    }
}

/* Ranks that outnumber processors attach from smaller sizes on, if they all say so. */
static void crowded_calls(rank_state *me) {
    me->comm->attach_alone_min = 1500;
    me->comm->oversubscribed = true;
    random_calls(me);
}

static void unevenly_crowded_calls(rank_state *me) {
    me->comm->attach_alone_min = 1500;
    me->comm->oversubscribed = me->rank > 0;
    random_calls(me);
}

/* ---- all of it */

static const ah_limits tight_limits = {.slot_max = 256, .chunk = 1024, .attach_min = SIZE_MAX};

/* A run of random calls: how arrays lie and move, and what goes wrong. */
typedef struct {
    const char *name;
    program run;
    const ah_limits *limits;
    bool staged, attach, heaps, gaps;
    int fewer; /* rounds are divided by it */
    int least; /* rounds, so that what ranks have to agree on occurs */
} random_run;

static void run_random(const world *base, const random_run *runs, size_t count) {
    for (size_t i = 0; i < count; i++) {
        world w = *base;
        w.staged = runs[i].staged;
        w.attach = runs[i].attach;
        w.heaps = runs[i].heaps;
        w.gaps = runs[i].gaps;
        w.limits = *runs[i].limits;
        w.rounds = base->rounds / (runs[i].fewer ? runs[i].fewer : 1);
        if (w.rounds < runs[i].least) w.rounds = runs[i].least;
        run_world(runs[i].name, &w, runs[i].run);
    }
}

static void run_size(int size, bool forks, int rounds, uint64_t seed) {
    ah_limits attaching = tight_limits;
    attaching.attach_min = 700;
    const ah_limits *const tight = &tight_limits, *const attach = &attaching;
    const ah_limits odd = {.slot_max = 100, .chunk = 333, .attach_min = SIZE_MAX};
    const ah_limits real = {.slot_max = 8192, .chunk = 65536, .attach_min = 65536};
    const random_run well[] = {
        {"staged", random_calls, tight, .staged = false},
        {"staged, most of all", random_calls, tight, .staged = true},
        {"odd limits", random_calls, &odd, .staged = false},
        {"attached", random_calls, attach, .attach = true},
        {"attached, crowded", crowded_calls, attach, .attach = true, .least = 60},
        {"attached, unevenly crowded", unevenly_crowded_calls, attach, .attach = true, .least = 60},
        {"attached, heaps", random_calls, attach, .attach = true, .heaps = true},
        {"heaps", random_calls, tight, .heaps = true},
        {"heaps, most of all staged", random_calls, tight, .heaps = true, .staged = true},
        {"large", random_calls, &real, .heaps = true, .fewer = 10},
        {"large, attached", random_calls, &real, .heaps = true, .attach = true, .fewer = 10},
    };
    const random_run troubled[] = {
        {"gaps", random_calls, attach, .attach = true, .heaps = true, .gaps = true},
        {"gaps, troubled", troubled_calls, attach, .attach = true, .heaps = true, .gaps = true},
        {"troubled", troubled_calls, attach, .staged = false},
        {"troubled, most of all staged", troubled_calls, attach, .staged = true},
        {"troubled, attached", troubled_calls, attach, .attach = true},
        {"troubled, heaps", troubled_calls, attach, .attach = true, .heaps = true},
    };
    world w = {.size = size,
               .forks = forks,
               .limits = attaching,
               .attach = true,
               .heaps = true,
               .seed = seed * 100 + (uint64_t)size,
               .rounds = rounds};
    run_random(&w, well, sizeof well / sizeof *well);
    if (size < 2) return;
    run_random(&w, troubled, sizeof troubled / sizeof *troubled);
    for (int k = 0; forks && k < 5; k++) {
        w.seed += 17;
        run_world("killed", &w, killed_peer);
    }
}

static void run_scenarios(bool forks, bool heaps, uint64_t seed) {
    world two = {.size = 2, .forks = forks, .limits = tight_limits, .heaps = heaps, .seed = seed};
    world three = two;
    three.size = 3;
    run_world("late rank", &two, late_rank);
    run_world("far ahead", &two, far_ahead);
    run_world("one way ahead", &two, one_way_ahead);
    run_world("posted ahead", &two, posted_ahead);
    run_world("root beyond posted", &two, root_beyond_posted);
    run_world("posted ahead", &three, posted_ahead);
    run_world("given up staging", &three, given_up_staging);
    run_world("lent staging", &three, lent_staging);
    run_world("read in part", &three, read_in_part);
    run_world("slots beside staging", &three, slots_beside_staging);
    run_world("filled ahead", &two, filled_ahead);
    run_world("given up reading", &two, given_up_reading);
    run_world("read slowly", &two, read_slowly);
    run_world("mismatches", &three, mismatches);
    run_world("mismatch without all", &three, mismatch_without_all);
    run_world("rooted mismatches", &three, rooted_mismatches);
    run_world("scans ahead", &three, scans_ahead);
    if (heaps) run_world("written unseen", &three, written_unseen);
    run_world("one-way mismatches", &two, one_way_mismatches);
    run_world("interrupts", &three, interrupts);
    run_world("ticks", &two, ticks);
    run_world("left behind", &two, left_behind);
    if (forks) run_world("wrong process", &two, wrong_process);
    two.limits = ah_default_limits(2);
    if (forks && heaps) run_world("stopped writer", &two, stopped_writer);
    if (forks && heaps) run_world("stopped reader", &two, stopped_reader);
}

int main(int argc, char **argv) {
    const arguments given = read_arguments(argc, argv, 300);
    for (int size = 1; size <= 7; size++) run_size(size, given.forks, given.rounds, given.seed);
    for (int heaps = 0; heaps < 2; heaps++) run_scenarios(given.forks, heaps, given.seed);
    printf("test_collectives: %s: all right\n", argv[1]);
    return 0;
}
