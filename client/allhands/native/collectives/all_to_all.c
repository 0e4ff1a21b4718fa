/* all_to_all: each rank's pieces may have other sizes, which travel along.
 *
 * A rank whose pieces are small together has them in its slot, whatever the others do. All ranks
 * see all tables, check all pairs before they touch an output, and so agree on what follows.
 */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"
#include "collectives/remote_read.h"

enum { WHERE, SENT, RECEIVED }; /* tables of a slot */

typedef struct {
    const char *const *in;
    char *const *out;
} pieces;


/* Bytes that rank a says it sends to b, or receives from it. */
static size_t said(const ah_lane *lane, int a, int which, int b) {
    const ah_terms *terms = &lane->terms[a];
    if (terms->flags & AH_EVEN) return terms->even;
    return ah_slot_table(ah_slot_of(lane, a, lane->call->sequence), which)[b];
}

/* Pieces in the slot follow each other, the own left out. */
static char *packed(const ah_lane *lane, int rank, size_t total) {
    ah_slot *slot = ah_slot_of(lane, rank, lane->call->sequence);
    bool fits = total <= sizeof slot->small - sizeof(ah_terms);
    return fits ? (char *)slot->small + sizeof(ah_terms) : (char *)(slot + 1) + AH_TABLES;
}

/* What `rank` sends to others in all, or to those before `stop`; SIZE_MAX if that is absurd. */
static size_t sum(const ah_lane *lane, int rank, int stop) {
    size_t total = 0;
    for (int r = 0; r < stop; r++)
        if (r != rank && __builtin_add_overflow(total, said(lane, rank, SENT, r), &total))
            return SIZE_MAX;
    return total;
}

static void post(ah_lane *lane, ah_slot *slot, uint64_t signature, const ah_exchange *exchange,
                 const pieces *what, const size_t send[], const size_t recv[]) {
    ah_terms *terms = &lane->terms[lane->rank];
    *terms = (ah_terms){.flags = AH_EVEN, .even = send[0]};
    for (int r = 0; r < lane->size; r++)
        if (send[r] != send[0] || recv[r] != send[0]) terms->flags = 0;
    if (!terms->flags) {
        for (int r = 0; r < lane->size; r++) {
            ah_slot_table(slot, SENT)[r] = send[r];
            ah_slot_table(slot, RECEIVED)[r] = recv[r];
        }
    }
    size_t total = sum(lane, lane->rank, lane->size);
    if (total <= lane->limits.slot_max) {
        terms->flags |= AH_IN_SLOT;
        char *at = packed(lane, lane->rank, total);
        for (int r = 0; r < lane->size; r++) {
            if (r == lane->rank) continue;
            ah_move(at, what->in[r], send[r]);
            at += send[r];
        }
    } else {
        ah_pause(lane);
        terms->flags |= ah_locate_all(lane, (const void *const *)what->in, send, 0,
                                      ah_slot_table(slot, WHERE));
    }
    ah_exchange_open(lane, exchange, false, terms);
    ah_post_terms(lane, slot, signature, *terms);
}

/* Every rank checks every pair, so that all come to the same end. */
static ah_status check(const ah_lane *lane) {
    for (int a = 0; a < lane->size; a++) {
        for (int b = 0; b < lane->size; b++) {
            if (said(lane, a, SENT, b) == said(lane, b, RECEIVED, a)) continue;
            if (a == lane->rank || b == lane->rank)
                lane->call->culprits |= AH_BIT(a == lane->rank ? b : a);
            else
                lane->call->culprits |= AH_BIT(a) | AH_BIT(b);
        }
        bool packs = lane->terms[a].flags & AH_IN_SLOT;
        if (packs && sum(lane, a, lane->size) > lane->limits.slot_max)
            lane->call->culprits |= AH_BIT(a);
    }
    return lane->call->culprits ? AH_MISMATCH : AH_OK;
}

/* Empty where it is not for the boxes. */
static size_t part(const ah_lane *lane, int from, int to, uint64_t step) {
    if (lane->terms[from].flags & AH_IN_SLOT) return 0;
    return ah_part(said(lane, from, SENT, to), lane->box, step);
}

static void put(const ah_lane *lane, const void *given, int peer, uint64_t step, char *box) {
    const pieces *what = given;
    size_t nbytes = part(lane, lane->rank, peer, step);
    if (nbytes) ah_copy(box, what->in[peer] + step * lane->box, nbytes, false);
}

static void take(const ah_lane *lane, const void *given, uint64_t step, char *const boxes[]) {
    const pieces *what = given;
    for (int r = 0; r < lane->size; r++) {
        size_t nbytes = boxes[r] ? part(lane, r, lane->rank, step) : 0;
        if (nbytes) ah_copy(what->out[r] + step * lane->box, boxes[r], nbytes, false);
    }
}

static ah_status pull_large(ah_lane *lane, uint64_t large, const pieces *what) {
    uint64_t sequence = lane->call->sequence;
    for (int k = 1; k < lane->size; k++) {
        int r = (lane->rank + k) % lane->size;
        if (!(large & AH_BIT(r))) continue;
        uint64_t where = ah_slot_table(ah_slot_of(lane, r, sequence), WHERE)[lane->rank];
        ah_status status =
            ah_pull(lane, r, where, what->out[r], said(lane, r, SENT, lane->rank));
        if (status != AH_OK) return status;
    }
    bool source = large & AH_BIT(lane->rank);
    return ah_pulled(lane, large, source ? lane->others : 0);
}

static ah_status all_to_all(ah_lane *lane, uint64_t signature, const pieces *what,
                            const size_t send[], const size_t recv[]) {
    ah_slot *slot;
    ah_exchange exchange = {0, what, put, take};
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    post(lane, slot, signature, &exchange, what, send, recv);
    status = ah_meet_all(lane, signature);
    if (status == AH_OK) status = check(lane);
    lane->call->met = status == AH_OK;
    if (status != AH_OK) return status;

    uint64_t large = 0; /* ranks whose pieces are not in their slot */
    size_t longest = 0;
    for (int r = 0; r < lane->size; r++) {
        if (lane->terms[r].flags & AH_IN_SLOT) {
            size_t nbytes = said(lane, r, SENT, lane->rank);
            const char *from = packed(lane, r, sum(lane, r, lane->size)) + sum(lane, r, lane->rank);
            ah_move(what->out[r], r == lane->rank ? what->in[r] : from, nbytes);
            if (lane->size == 2 && r != lane->rank && nbytes > 4 * AH_LINE)
                ah_hand_back(from, nbytes);
            continue;
        }
        large |= AH_BIT(r);
        if (r == lane->rank) ah_move(what->out[r], what->in[r], send[r]);
        for (int p = 0; p < lane->size; p++)
            if (p != r && said(lane, r, SENT, p) > longest) longest = said(lane, r, SENT, p);
    }
    lane->call->variant = AH_SLOTS;
    if (!large) return AH_OK;
    lane->call->variant = AH_NONE;
    ah_pause(lane);
    if (ah_can_pull(lane, large, longest)) return pull_large(lane, large, what);
    exchange.steps = ah_steps(longest, lane->box);
    lane->call->variant = AH_SWAP;
    return ah_exchange_run(lane, &exchange);
}

ah_status ah_all_to_all(ah_lane *lane, ah_call *call, const void *const in[], const size_t send[],
                        void *const out[], const size_t recv[]) {
    uint64_t signature = ah_sign(call, CALL_ALL_TO_ALL, 0, 0, 0);
    pieces what = {(const char *const *)in, (char *const *)out};
    ah_status status = ah_start(lane, call);
    if (status == AH_OK && lane->size == 1 && send[0] != recv[0]) {
        call->culprits = AH_BIT(0);
        status = AH_MISMATCH;
    } else if (status == AH_OK && lane->size == 1) {
        ah_move(out[0], in[0], send[0]);
    } else if (status == AH_OK) {
        status = all_to_all(lane, signature, &what, send, recv);
    }
    return ah_finish(lane, status);
}
