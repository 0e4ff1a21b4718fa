/* Boards: memory of the ranks of one host, in which each leaves what it brings to a small call of a
 * group that spans hosts, where the others find it.
 *
 * A post is a message that waits to be read, like one over a link: it has the number and the
 * signature of its call, is of use only to the same call of another rank, and needs nobody's
 * answer. So a call can go on elsewhere at any time, and looks again.
 *
 * Each rank has an area, all zero at first, in which only that rank writes (but for the bell). A
 * rank posts at most once a call, in the place of the call's number: data first, the number last
 * (release). A place is used again, AH_POSTS calls later, when all ranks are over with its call, so
 * nobody reads what changes. A rank that has ended a call, however, and one that begins the next,
 * says that it is over with those before. One that gives a call up says so, too: who waits for its
 * post of that call waits in vain.
 *
 * Waiting is as in comm/wait.h: a rank about to sleep says for whom, looks once more, and sleeps
 * while its bell has not rung; who posts looks who sleeps for it. Stores and loads are seq_cst.
 */
#ifndef ALLHANDS_BOARD_H
#define ALLHANDS_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AH_BOARD_RANKS 64
#define AH_POSTS 4 /* calls that a rank may be ahead of another */

typedef struct {
    _Alignas(64) _Atomic uint64_t number;
    uint64_t signature, nbytes;
    _Alignas(16) char data[];
} ah_board_entry;

typedef struct {
    _Alignas(128) _Atomic uint32_t bell; /* a futex: changes where this rank was rung for */
    _Atomic uint32_t sleeps_for;         /* 1 + a rank; 0: awake */
    _Alignas(128) _Atomic uint64_t over; /* the last call that this rank is over with */
    _Atomic uint64_t given_up;           /* the last that it has given up; 0: none */
    _Alignas(128) char posts[];
} ah_board_area;

typedef struct {
    int rank, size;
    size_t capacity, stride;
    ah_board_area *areas[AH_BOARD_RANKS];
    _Atomic bool is_interrupted;
} ah_board;

typedef enum { AH_ABSENT, AH_THERE, AH_UNLIKE, AH_GIVEN_UP } ah_found;

/* Bytes of each rank's area for posts of up to `capacity`. */
size_t ah_board_bytes(size_t capacity);
void ah_board_init(ah_board *board, int rank, int size, void *const areas[], size_t capacity);

/* This rank is over with all calls up to that number. */
void ah_board_over(ah_board *board, uint64_t number);

/* This rank does not go on with that call, of which it may have posted nothing. */
void ah_board_give_up(ah_board *board, uint64_t number);

/* The rank for whose sake this one may not post that call yet; -1: it may. */
int ah_board_full(const ah_board *board, uint64_t number);
/* Where the data of this rank's post goes, once it may post; then it is published. */
char *ah_board_room(const ah_board *board, uint64_t number);
void ah_board_post(ah_board *board, uint64_t number, uint64_t signature, size_t nbytes);

/* Whether a rank has posted that call, with that signature and as many bytes, or never will. */
ah_found ah_board_look(const ah_board *board, int rank, uint64_t number, uint64_t signature,
                       size_t nbytes);
const char *ah_board_data(const ah_board *board, int rank, uint64_t number);

/* Wait until a rank has posted that call or given it up, or (`room`) until it is over with the one
 * whose place that takes: true; false: `until` has passed, in nanoseconds of the monotonic clock,
 * or ah_board_wake was called. Looks again and again for up to `spin` of them before it sleeps. */
bool ah_board_wait(ah_board *board, int rank, uint64_t number, bool room, int64_t until,
                   int64_t spin);
/* End the wait under way on this rank, or the next one. From any thread. */
void ah_board_wake(ah_board *board);

#endif
