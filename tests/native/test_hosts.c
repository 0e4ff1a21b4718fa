/* Calls of the ranks of one host on their board, which are threads here: what all bring is added up
 * by a head, calls are left and gone on with at any time, given up by some, and unlike now and
 * then.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosts/host_call.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "test_hosts:%d: not so: %s\n", __LINE__, #what);                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { RANKS = 3, MOST = 500, CALLS = 4000, CAPACITY = MOST * sizeof(int64_t) };

static void *areas[RANKS];

/* What all ranks draw alike for a call. */
typedef struct {
    int head, absent; /* -1: nobody */
    bool brings, folds, gives;
    size_t count;
} kind;

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static kind draw_kind(uint64_t number) {
    uint64_t state = number * UINT64_C(0x9E3779B97F4A7C15) | 1;
    kind drawn = {.head = (int)(draw(&state) % RANKS), .absent = -1};
    drawn.brings = draw(&state) % 4 > 0;
    drawn.folds = draw(&state) % 2;
    drawn.gives = !drawn.brings || draw(&state) % 4 > 0;
    drawn.count = draw(&state) % 3 ? draw(&state) % 8 : draw(&state) % (MOST / RANKS);
    if (draw(&state) % 16 == 0) drawn.absent = (int)(draw(&state) % RANKS);
    return drawn;
}

static int64_t value(uint64_t number, int rank, size_t at) {
    return (int64_t)(number * 1000 + (uint64_t)rank * 100 + at % 100);
}

static ah_host_steps make_steps(ah_board *board, const kind *of, int rank) {
    size_t nbytes = of->count * sizeof(int64_t), all = of->folds ? nbytes : RANKS * nbytes;
    if (!of->brings) all = nbytes;
    ah_host_steps steps = {.board = board,
                           .head = of->head,
                           .brings = of->brings,
                           .folds = of->folds,
                           .gives = of->gives,
                           .nbytes = of->gives ? all : 0};
    if (of->brings || rank == of->head) steps.own = (ah_span){AH_AREA_INPUT, 0, nbytes};
    if (rank == of->head) {
        steps.into = (ah_span){AH_AREA_OUTPUT, 0, all};
        if (of->gives) steps.given = steps.into;
    } else if (of->gives) {
        steps.taken = (ah_span){AH_AREA_OUTPUT, 0, all};
    }
    return steps;
}

static void check(const kind *of, uint64_t number, int rank, const int64_t *found) {
    if (rank != of->head && !of->gives) return;
    for (size_t at = 0; at < of->count; at++) {
        int64_t sum = 0;
        for (int peer = 0; peer < RANKS; peer++) {
            sum += value(number, peer, at);
            if (of->brings && !of->folds)
                CHECK(found[(size_t)peer * of->count + at] == value(number, peer, at));
        }
        if (!of->brings) CHECK(found[at] == value(number, of->head, at));
        if (of->brings && of->folds) CHECK(found[at] == sum);
    }
}

/* Whether a rank needs nothing of the absent one. */
static bool can_end(const kind *of, int rank) {
    if (rank == of->head) return !of->brings;
    return !of->gives || (!of->brings && of->absent != of->head);
}

static void *live(void *given) {
    int rank = *(const int *)given;
    uint64_t own = (uint64_t)rank + 1;
    static _Thread_local int64_t in[MOST], out[MOST];
    ah_board board;
    ah_board_init(&board, rank, RANKS, areas, CAPACITY);
    for (uint64_t number = 1; number <= CALLS; number++) {
        kind of = draw_kind(number);
        if (of.absent == rank) continue;
        for (size_t at = 0; at < of.count; at++) in[at] = value(number, rank, at);
        memset(out, 0, sizeof out);
        ah_piece pieces[] = {{(uint8_t *)in, sizeof in}, {(uint8_t *)out, sizeof out}};
        ah_memory memory[AH_AREAS] = {{&pieces[0], 1}, {&pieces[1], 1}, {NULL, 0}};
        ah_call call = {.signature = number * 3, .op = AH_SUM, .type = AH_INT64, .divisor = 1};
        ah_host_steps steps = make_steps(&board, &of, rank);
        ah_call_begin(&call, number, memory);
        ah_host_call_begin(&steps, &call);
        int64_t patience = ah_link_now() + (of.absent >= 0 ? 200000 : INT64_C(60000000000));
        ah_call_status status;
        do {
            int64_t now = ah_link_now();
            int64_t span = draw(&own) % 4 ? 100000 : 0, spin = draw(&own) % 2 ? 20000 : 0;
            status = ah_host_call_run(&steps, &call, now + span, spin);
        } while (status == AH_CALL_LATE && ah_link_now() < patience);
        CHECK(status == AH_CALL_DONE ? of.absent < 0 || can_end(&of, rank) : of.absent >= 0);
        if (status == AH_CALL_DONE) check(&of, number, rank, out);
        ah_board_over(&board, number);
    }
    ah_board_over(&board, CALLS);
    return NULL;
}

static void make_areas(void) {
    size_t nbytes = (ah_board_bytes(CAPACITY) + 127) / 128 * 128;
    for (int rank = 0; rank < RANKS; rank++) {
        areas[rank] = aligned_alloc(128, nbytes);
        CHECK(areas[rank] != NULL);
        memset(areas[rank], 0, nbytes);
    }
}

static void free_areas(void) {
    for (int rank = 0; rank < RANKS; rank++) free(areas[rank]);
}

static void test_ranks_get_what_they_are_to_get(void) {
    pthread_t threads[RANKS];
    int ranks[RANKS];
    make_areas();
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = rank;
        CHECK(pthread_create(&threads[rank], NULL, live, &ranks[rank]) == 0);
    }
    for (int rank = 0; rank < RANKS; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
    free_areas();
}

static void test_an_unlike_post_is_not_used(void) {
    make_areas();
    ah_board boards[2];
    for (int rank = 0; rank < 2; rank++) ah_board_init(&boards[rank], rank, 2, areas, CAPACITY);
    memcpy(ah_board_room(&boards[1], 1), "brought!", 8);
    ah_board_post(&boards[1], 1, 5, 8);
    CHECK(ah_board_look(&boards[0], 1, 1, 5, 8) == AH_THERE);
    CHECK(ah_board_look(&boards[0], 1, 1, 6, 8) == AH_UNLIKE);
    CHECK(ah_board_look(&boards[0], 1, 1, 5, 16) == AH_UNLIKE);
    CHECK(ah_board_look(&boards[0], 1, 2, 5, 8) == AH_ABSENT);
    int64_t in[1] = {1}, out[1] = {2};
    ah_piece pieces[] = {{(uint8_t *)in, 8}, {(uint8_t *)out, 8}};
    ah_memory memory[AH_AREAS] = {{&pieces[0], 1}, {&pieces[1], 1}, {NULL, 0}};
    ah_call call = {.signature = 6, .op = AH_SUM, .type = AH_INT64, .divisor = 1};
    kind of = {.head = 0, .absent = -1, .brings = true, .folds = true, .gives = true, .count = 1};
    ah_host_steps steps = make_steps(&boards[0], &of, 0);
    ah_call_begin(&call, 1, memory);
    ah_host_call_begin(&steps, &call);
    CHECK(ah_host_call_run(&steps, &call, ah_link_now() + 1000000, 0) == AH_CALL_STUCK);
    CHECK(out[0] == 2);
    free_areas();
}

static void test_a_place_is_used_again_when_all_are_over_with_its_call(void) {
    make_areas();
    ah_board boards[2];
    for (int rank = 0; rank < 2; rank++) ah_board_init(&boards[rank], rank, 2, areas, CAPACITY);
    for (uint64_t number = 1; number <= AH_POSTS; number++) {
        CHECK(ah_board_full(&boards[0], number) == -1);
        ah_board_post(&boards[0], number, 1, 0);
    }
    CHECK(ah_board_full(&boards[0], AH_POSTS + 1) == 1);
    CHECK(!ah_board_wait(&boards[0], 1, AH_POSTS + 1, true, ah_link_now() + 1000, 0));
    ah_board_over(&boards[1], 1);
    CHECK(ah_board_full(&boards[0], AH_POSTS + 1) == -1);
    CHECK(ah_board_full(&boards[0], AH_POSTS + 2) == 1);
    ah_board_wake(&boards[0]);
    CHECK(
        !ah_board_wait(&boards[0], 1, AH_POSTS + 2, true, ah_link_now() + INT64_C(60000000000), 0));
    free_areas();
}

int main(void) {
    test_an_unlike_post_is_not_used();
    test_a_place_is_used_again_when_all_are_over_with_its_call();
    test_ranks_get_what_they_are_to_get();
    return 0;
}
