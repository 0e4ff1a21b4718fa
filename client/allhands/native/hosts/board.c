#define _GNU_SOURCE
#include "hosts/board.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/host.h"

#define SPINS 64
/* A sleeper looks by itself as often: who posts may be killed before it rings. */
#define POLL_INTERVAL (50 * INT64_C(1000000))

static size_t stride_of(size_t capacity) {
    return (sizeof(ah_board_entry) + capacity + 127) / 128 * 128;
}

size_t ah_board_bytes(size_t capacity) {
    return sizeof(ah_board_area) + AH_POSTS * stride_of(capacity);
}

void ah_board_init(ah_board *board, int rank, int size, void *const areas[], size_t capacity) {
    board->rank = rank;
    board->size = size;
    board->capacity = capacity;
    board->stride = stride_of(capacity);
    for (int at = 0; at < size; at++) board->areas[at] = areas[at];
    atomic_store(&board->is_interrupted, false);
}

static ah_board_entry *find(const ah_board *board, int rank, uint64_t number) {
    return (ah_board_entry *)(board->areas[rank]->posts + number % AH_POSTS * board->stride);
}

/* ---------------------------------------------------------------- bells */

static void ring(ah_board_area *area) {
    atomic_fetch_add(&area->bell, 1);
    syscall(SYS_futex, &area->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Ring for the ranks that sleep until this one has said more. */
static void ring_others(const ah_board *board) {
    for (int at = 0; at < board->size; at++)
        if (atomic_load(&board->areas[at]->sleeps_for) == (uint32_t)board->rank + 1)
            ring(board->areas[at]);
}

void ah_board_wake(ah_board *board) {
    atomic_store(&board->is_interrupted, true);
    ring(board->areas[board->rank]);
}

/* ---------------------------------------------------------------- posts */

void ah_board_over(ah_board *board, uint64_t number) {
    _Atomic uint64_t *over = &board->areas[board->rank]->over;
    if (atomic_load_explicit(over, memory_order_relaxed) >= number) return;
    atomic_store(over, number);
    ring_others(board);
}

void ah_board_give_up(ah_board *board, uint64_t number) {
    _Atomic uint64_t *given_up = &board->areas[board->rank]->given_up;
    if (atomic_load_explicit(given_up, memory_order_relaxed) >= number) return;
    atomic_store(given_up, number);
    ring_others(board);
}

static bool has_given_up(const ah_board *board, int rank, uint64_t number) {
    return atomic_load(&board->areas[rank]->given_up) >= number;
}

/* Whether a rank is over with the call whose place another one takes. */
static bool leaves_room(const ah_board *board, int rank, uint64_t number) {
    return number <= AH_POSTS || atomic_load(&board->areas[rank]->over) >= number - AH_POSTS;
}

int ah_board_full(const ah_board *board, uint64_t number) {
    for (int at = 0; at < board->size; at++)
        if (at != board->rank && !leaves_room(board, at, number)) return at;
    return -1;
}

char *ah_board_room(const ah_board *board, uint64_t number) {
    return find(board, board->rank, number)->data;
}

void ah_board_post(ah_board *board, uint64_t number, uint64_t signature, size_t nbytes) {
    ah_board_entry *post = find(board, board->rank, number);
    post->signature = signature;
    post->nbytes = nbytes;
    atomic_store(&post->number, number);
    ring_others(board);
}

ah_found ah_board_look(const ah_board *board, int rank, uint64_t number, uint64_t signature,
                       size_t nbytes) {
    const ah_board_entry *post = find(board, rank, number);
    bool never = has_given_up(board, rank, number); /* looked at first: it may have posted before */
    if (atomic_load(&post->number) != number) return never ? AH_GIVEN_UP : AH_ABSENT;
    return post->signature == signature && post->nbytes == nbytes ? AH_THERE : AH_UNLIKE;
}

const char *ah_board_data(const ah_board *board, int rank, uint64_t number) {
    return find(board, rank, number)->data;
}

/* ---------------------------------------------------------------- waiting */

static bool has_come(const ah_board *board, int rank, uint64_t number, bool room) {
    if (room) return leaves_room(board, rank, number);
    return atomic_load(&find(board, rank, number)->number) == number ||
           has_given_up(board, rank, number);
}

static void sleep_until(ah_board *board, int rank, uint64_t number, bool room, int64_t span) {
    ah_board_area *own = board->areas[board->rank];
    atomic_store(&own->sleeps_for, (uint32_t)rank + 1);
    uint32_t bell = atomic_load(&own->bell);
    if (!has_come(board, rank, number, room) && !atomic_load(&board->is_interrupted)) {
        if (span > POLL_INTERVAL) span = POLL_INTERVAL;
        struct timespec timeout = {span / 1000000000, span % 1000000000};
        /* Not FUTEX_PRIVATE_FLAG: other processes ring. Any return is taken as a wake-up. */
        syscall(SYS_futex, &own->bell, FUTEX_WAIT, bell, &timeout, NULL, 0);
    }
    atomic_store(&own->sleeps_for, 0);
}

bool ah_board_wait(ah_board *board, int rank, uint64_t number, bool room, int64_t until,
                   int64_t spin) {
    for (int turn = 0; turn < SPINS; turn++) {
        if (has_come(board, rank, number, room)) return true;
        ah_cpu_relax();
    }
    int64_t began = ah_now(), now = began;
    for (;;) {
        if (has_come(board, rank, number, room)) return true;
        if (now >= until || atomic_exchange(&board->is_interrupted, false)) return false;
        if (now - began < spin)
            sched_yield();
        else
            sleep_until(board, rank, number, room, until - now);
        now = ah_now();
    }
}
