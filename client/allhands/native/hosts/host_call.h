/* A small call of a group that spans hosts, on the thread that makes it: the ranks of each host
 * meet on their board, and one of them, the head, in a call over links with the other heads.
 */
#ifndef ALLHANDS_HOST_CALL_H
#define ALLHANDS_HOST_CALL_H

#include "hosts/board.h"
#include "links/call.h"

typedef enum { AH_STEP_UP, AH_STEP_ACROSS, AH_STEP_DOWN } ah_step;

typedef struct {
    ah_board *board; /* NULL: no other rank of the group is on this host */
    int head;        /* its place on the board */
    bool brings;     /* all ranks of a host bring something, or at least word that they came */
    bool folds;      /* what they bring is reduced; else its blocks lie end to end */
    bool gives;      /* heads give them a result, or at least word that all have come */
    ah_span own;     /* what this rank brings */
    ah_span into;    /* the head's: where that of all of its host goes, before it goes across */
    ah_span given;   /* the head's: what it gives */
    ah_span taken;   /* another's: where that goes, */
    size_t from;     /* from this byte of */
    size_t nbytes;   /* so many that are given */
    ah_step step;    /* of the call under way */
} ah_host_steps;

void ah_host_call_begin(ah_host_steps *steps, const ah_call *call);

/* As ah_call_run. What it cannot judge is AH_CALL_STUCK: somebody's unlike call too. */
ah_call_status ah_host_call_run(ah_host_steps *steps, ah_call *call, int64_t until, int64_t spin);

bool ah_host_call_fits(const ah_host_steps *steps, const ah_memory memory[AH_AREAS]);

#endif
