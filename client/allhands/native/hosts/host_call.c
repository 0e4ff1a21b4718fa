#include "hosts/host_call.h"

#include <string.h>

#include "kernels/copy.h"

static bool is_head(const ah_host_steps *steps) {
    return steps->board == NULL || steps->head == steps->board->rank;
}

bool ah_host_call_fits(const ah_host_steps *steps, const ah_memory memory[AH_AREAS]) {
    return ah_call_fits(memory, &steps->own) && ah_call_fits(memory, &steps->into) &&
           ah_call_fits(memory, &steps->given) && ah_call_fits(memory, &steps->taken);
}

/* Wait for a post that the call needs; AH_CALL_DONE: it is there. */
static ah_call_status await_post(const ah_host_steps *steps, const ah_call *call, int rank,
                                 size_t nbytes, int64_t until, int64_t spin) {
    ah_board *board = steps->board;
    if (!ah_board_wait(board, rank, call->sequence, false, until, spin)) return AH_CALL_LATE;
    ah_found found = ah_board_look(board, rank, call->sequence, call->signature, nbytes);
    return found == AH_THERE ? AH_CALL_DONE : AH_CALL_STUCK;
}

static ah_call_status await_room(const ah_host_steps *steps, const ah_call *call, int64_t until,
                                 int64_t spin) {
    int rank;
    while ((rank = ah_board_full(steps->board, call->sequence)) >= 0)
        if (!ah_board_wait(steps->board, rank, call->sequence, true, until, spin))
            return AH_CALL_LATE;
    return AH_CALL_DONE;
}

static void post(const ah_host_steps *steps, const ah_call *call, const ah_span *span) {
    if (span->nbytes)
        ah_copy_bytes(ah_board_room(steps->board, call->sequence), ah_call_locate(call, span),
                      span->nbytes);
    ah_board_post(steps->board, call->sequence, call->signature, span->nbytes);
}

/* Put together what the ranks of this host bring, all of which is there. */
static void gather(const ah_host_steps *steps, const ah_call *call) {
    const void *blocks[AH_BOARD_RANKS];
    int count = 0;
    uint8_t *into = ah_call_locate(call, &steps->into);
    for (int at = 0; steps->board != NULL && steps->brings && at < steps->board->size; at++)
        blocks[count++] = at == steps->board->rank
                              ? (const void *)ah_call_locate(call, &steps->own)
                              : ah_board_data(steps->board, at, call->sequence);
    if (count == 0) blocks[count++] = ah_call_locate(call, &steps->own);
    size_t nbytes = steps->own.nbytes;
    if (steps->folds)
        ah_fold(call->op == AH_AVG ? AH_SUM : call->op, call->type, into, blocks, count,
                nbytes / ah_type_size(call->type), 1);
    else
        for (int at = 0; at < count; at++)
            ah_copy_bytes(into + (size_t)at * nbytes, blocks[at], nbytes);
}

static ah_call_status go_up(const ah_host_steps *steps, const ah_call *call, int64_t until,
                            int64_t spin) {
    ah_board *board = steps->board;
    if (board != NULL && (is_head(steps) ? steps->gives : steps->brings)) {
        ah_call_status status = await_room(steps, call, until, spin);
        if (status != AH_CALL_DONE) return status;
    }
    if (!is_head(steps)) {
        if (steps->brings) post(steps, call, &steps->own);
        return AH_CALL_DONE;
    }
    for (int at = 0; board != NULL && steps->brings && at < board->size; at++) {
        if (at == board->rank) continue;
        ah_call_status status = await_post(steps, call, at, steps->own.nbytes, until, spin);
        if (status != AH_CALL_DONE) return status;
    }
    if (steps->own.nbytes) gather(steps, call);
    return AH_CALL_DONE;
}

static ah_call_status go_down(const ah_host_steps *steps, const ah_call *call, int64_t until,
                              int64_t spin) {
    if (steps->board == NULL || !steps->gives) return AH_CALL_DONE;
    if (is_head(steps)) {
        post(steps, call, &steps->given);
        return AH_CALL_DONE;
    }
    ah_call_status status = await_post(steps, call, steps->head, steps->nbytes, until, spin);
    if (status == AH_CALL_DONE && steps->taken.nbytes)
        ah_copy_bytes(ah_call_locate(call, &steps->taken),
                      ah_board_data(steps->board, steps->head, call->sequence) + steps->from,
                      steps->taken.nbytes);
    return status;
}

void ah_host_call_begin(ah_host_steps *steps, const ah_call *call) {
    steps->step = AH_STEP_UP;
    if (steps->board != NULL) ah_board_over(steps->board, call->sequence - 1);
}

ah_call_status ah_host_call_run(ah_host_steps *steps, ah_call *call, int64_t until, int64_t spin) {
    ah_call_status status = AH_CALL_DONE;
    if (steps->step == AH_STEP_UP) {
        status = go_up(steps, call, until, spin);
        if (status != AH_CALL_DONE) return status;
        steps->step = AH_STEP_ACROSS;
    }
    if (steps->step == AH_STEP_ACROSS) {
        status = ah_call_run(call, until, spin);
        if (status != AH_CALL_DONE) return status;
        steps->step = AH_STEP_DOWN;
    }
    status = go_down(steps, call, until, spin);
    if (status == AH_CALL_DONE && steps->board != NULL) ah_board_over(steps->board, call->sequence);
    return status;
}
