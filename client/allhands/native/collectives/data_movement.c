/* barrier, broadcast, gather, scatter, all_gather: which variant, and the small one. */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"
#include "collectives/staged_copy.h"
#include "collectives/remote_read.h"

/* From so many bytes on, nothing of what is copied is still in a cache when it is used. */
#define FAR ((size_t)8 << 20)

static bool is_small(const ah_lane *lane, size_t nbytes) { return nbytes <= lane->limits.slot_max; }

static uint64_t everybody(const ah_lane *lane) { return lane->others | AH_BIT(lane->rank); }

/* ---- barrier */

ah_status ah_barrier(ah_lane *lane, ah_call *call) {
    ah_slot *slot;
    uint64_t signature = ah_sign(call, CALL_BARRIER, 0, 0, 0);
    ah_status status = ah_start(lane, call);
    if (status == AH_OK && lane->size > 1) {
        call->variant = AH_SLOTS;
        status = ah_room(lane, &slot);
        if (status == AH_OK) ah_post(lane, slot, signature);
        if (status == AH_OK) status = ah_headers(lane, lane->others, signature);
    }
    return ah_finish(lane, status);
}

/* ---- broadcast */

typedef struct {
    const char *in;
    char *out;
    char *const *outs;
    const char *const *ins;
    size_t nbytes;
} moved;

static void put_copies(const ah_lane *lane, const void *given, uint64_t step) {
    const moved *what = given;
    size_t part = ah_part(what->nbytes, lane->box, step);
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_copy(ah_box(lane, lane->rank, peer, step & 1), what->in + step * lane->box, part, false);
    }
}

static void put_parts(const ah_lane *lane, const void *given, uint64_t step) {
    const moved *what = given;
    size_t part = ah_part(what->nbytes, lane->box, step);
    for (int k = 1; k < lane->size; k++) {
        int peer = (lane->rank + k) % lane->size;
        ah_copy(ah_box(lane, lane->rank, peer, step & 1), what->ins[peer] + step * lane->box, part,
                false);
    }
}

static void take_part(const ah_lane *lane, const void *given, uint64_t step, int source) {
    const moved *what = given;
    const char *box = ah_box(lane, source, lane->rank, step & 1);
    size_t part = ah_part(what->nbytes, lane->box, step);
    ah_copy(what->out + step * lane->box, box, part, false);
    ah_hand_back(box, part);
}

static ah_status broadcast_slots(ah_lane *lane, uint64_t signature, void *x, size_t nbytes,
                                 int root) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    lane->call->variant = AH_SLOTS;
    if (lane->rank == root) ah_move(ah_slot_data(slot, nbytes), x, nbytes);
    ah_post(lane, slot, signature);
    status = ah_headers_of(lane, AH_BIT(root) & ~AH_BIT(lane->rank), signature);
    if (status != AH_OK || lane->rank == root) return status;
    ah_move(x, ah_theirs(lane, root, nbytes), nbytes);
    if (lane->size == 2) ah_read_slot(lane, root, nbytes);
    return AH_OK;
}

static ah_status broadcast_large(ah_lane *lane, uint64_t signature, void *x, size_t nbytes,
                                 int root) {
    ah_terms terms = {0};
    uint64_t source = AH_BIT(root), readers = everybody(lane) & ~source;
    ah_pause(lane);
    terms.flags = ah_locate(lane, x, nbytes, &terms.where);
    ah_status status = ah_meet(lane, signature, terms);
    if (status != AH_OK) return status;
    if (!ah_can_pull(lane, source, nbytes)) {
        moved what = {.in = x, .out = x, .nbytes = nbytes};
        ah_outbox outbox = {ah_steps(nbytes, lane->box), source, readers, &what,
                            put_copies, take_part};
        return ah_outbox_run(lane, &outbox);
    }
    if (lane->rank != root) {
        status = ah_pull(lane, root, lane->terms[root].where, x, nbytes);
        readers = 0;
    }
    return status == AH_OK ? ah_pulled(lane, source, readers) : status;
}

ah_status ah_broadcast(ah_lane *lane, ah_call *call, void *x, size_t nbytes, int root) {
    uint64_t signature = ah_sign(call, CALL_BROADCAST, nbytes, (uint64_t)root, 0);
    ah_status status = ah_start(lane, call);
    if (status == AH_OK && lane->size > 1)
        status = is_small(lane, nbytes) ? broadcast_slots(lane, signature, x, nbytes, root)
                                        : broadcast_large(lane, signature, x, nbytes, root);
    return ah_finish(lane, status);
}

/* ---- gather */

static void put_in(const ah_lane *lane, const void *given, uint64_t step) {
    const moved *what = given;
    size_t chunk = lane->limits.chunk;
    ah_copy(ah_outbox_of(lane, lane->rank, step), what->in + step * chunk,
            ah_part(what->nbytes, chunk, step), false);
}

static void take_out(const ah_lane *lane, const void *given, uint64_t step, int source) {
    const moved *what = given;
    size_t chunk = lane->limits.chunk;
    const char *box = ah_outbox_of(lane, source, step);
    size_t part = ah_part(what->nbytes, chunk, step);
    ah_copy(what->outs[source] + step * chunk, box, part, false);
    ah_hand_back(box, part);
}

static ah_status gather_slots(ah_lane *lane, uint64_t signature, const void *in,
                              char *const out[], size_t nbytes, int root) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    lane->call->variant = AH_SLOTS;
    if (lane->rank != root) {
        ah_move(ah_slot_data(slot, nbytes), in, nbytes);
        ah_post(lane, slot, signature);
        return ah_headers_of(lane, 0, signature);
    }
    ah_post(lane, slot, signature);
    status = ah_headers_of(lane, lane->others, signature);
    if (status != AH_OK) return status;
    ah_move(out[root], in, nbytes);
    for (int r = 0; r < lane->size; r++) {
        if (r == root) continue;
        ah_move(out[r], ah_theirs(lane, r, nbytes), nbytes);
        ah_read_slot(lane, r, nbytes);
    }
    return AH_OK;
}

static ah_status gather_large(ah_lane *lane, uint64_t signature, const void *in, char *const out[],
                              size_t nbytes, int root) {
    ah_terms terms = {0};
    uint64_t readers = AH_BIT(root), sources = everybody(lane) & ~readers;
    ah_pause(lane);
    terms.flags = ah_locate(lane, in, nbytes, &terms.where);
    ah_status status = ah_meet(lane, signature, terms);
    if (status != AH_OK) return status;
    bool pull = ah_can_pull(lane, sources, nbytes);
    if (lane->rank == root) ah_move(out[root], in, nbytes);
    if (!pull) {
        moved what = {.in = in, .outs = out, .nbytes = nbytes};
        ah_outbox outbox = {ah_steps(nbytes, lane->limits.chunk), sources, readers, &what,
                            put_in, take_out};
        return ah_outbox_run(lane, &outbox);
    }
    if (lane->rank == root) {
        for (int r = 0; r < lane->size && status == AH_OK; r++)
            if (r != root) status = ah_pull(lane, r, lane->terms[r].where, out[r], nbytes);
        return status == AH_OK ? ah_pulled(lane, sources, 0) : status;
    }
    return ah_pulled(lane, 0, readers);
}

ah_status ah_gather(ah_lane *lane, ah_call *call, const void *in, void *const out[],
                    size_t nbytes, int root) {
    uint64_t signature = ah_sign(call, CALL_GATHER, nbytes, (uint64_t)root, 0);
    char *const *outs = (char *const *)out;
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        ah_move(out[0], in, nbytes);
    else if (is_small(lane, nbytes))
        status = gather_slots(lane, signature, in, outs, nbytes, root);
    else
        status = gather_large(lane, signature, in, outs, nbytes, root);
    return ah_finish(lane, status);
}

/* ---- scatter */

static ah_status scatter_slots(ah_lane *lane, uint64_t signature, const char *const in[], void *out,
                               size_t nbytes, int root) {
    ah_slot *slot;
    size_t total = nbytes * (size_t)lane->size;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    lane->call->variant = AH_SLOTS;
    for (int r = 0; r < lane->size && lane->rank == root; r++)
        if (r != root) ah_move(ah_slot_data(slot, total) + (size_t)r * nbytes, in[r], nbytes);
    ah_post(lane, slot, signature);
    status = ah_headers_of(lane, AH_BIT(root) & ~AH_BIT(lane->rank), signature);
    if (status != AH_OK) return status;
    const char *mine = ah_theirs(lane, root, total) + (size_t)lane->rank * nbytes;
    ah_move(out, lane->rank == root ? in[root] : mine, nbytes);
    return AH_OK;
}

static ah_status scatter_large(ah_lane *lane, uint64_t signature, const char *const in[], void *out,
                               size_t nbytes, int root) {
    ah_slot *slot;
    ah_terms terms = {0};
    uint64_t source = AH_BIT(root), readers = everybody(lane) & ~source;
    ah_pause(lane);
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    if (lane->rank == root) {
        terms.flags = ah_locate_all(lane, (const void *const *)in, NULL, nbytes,
                                    ah_slot_table(slot, 0));
    }
    ah_post_terms(lane, slot, signature, terms);
    status = ah_meet_all(lane, signature);
    if (status != AH_OK) return status;
    if (lane->rank == root) ah_move(out, in[root], nbytes);
    if (!ah_can_pull(lane, source, nbytes)) {
        moved what = {.ins = in, .out = out, .nbytes = nbytes};
        ah_outbox outbox = {ah_steps(nbytes, lane->box), source, readers, &what,
                            put_parts, take_part};
        return ah_outbox_run(lane, &outbox);
    }
    if (lane->rank != root) {
        ah_slot *from = ah_slot_of(lane, root, lane->call->sequence);
        status = ah_pull(lane, root, ah_slot_table(from, 0)[lane->rank], out, nbytes);
        readers = 0;
    }
    return status == AH_OK ? ah_pulled(lane, source, readers) : status;
}

ah_status ah_scatter(ah_lane *lane, ah_call *call, const void *const in[], void *out,
                     size_t nbytes, int root) {
    uint64_t signature = ah_sign(call, CALL_SCATTER, nbytes, (uint64_t)root, 0);
    const char *const *ins = (const char *const *)in;
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        ah_move(out, in[0], nbytes);
    else if (nbytes <= lane->limits.slot_max / (size_t)lane->size)
        status = scatter_slots(lane, signature, ins, out, nbytes, root);
    else
        status = scatter_large(lane, signature, ins, out, nbytes, root);
    return ah_finish(lane, status);
}

/* ---- all_gather */

static void put_same(const ah_lane *lane, const void *given, int peer, uint64_t step, char *box) {
    const moved *what = given;
    (void)peer;
    ah_copy(box, what->in + step * lane->box, ah_part(what->nbytes, lane->box, step), false);
}

static void take_all(const ah_lane *lane, const void *given, uint64_t step, char *const boxes[]) {
    const moved *what = given;
    size_t part = ah_part(what->nbytes, lane->box, step);
    for (int r = 0; r < lane->size; r++)
        if (boxes[r]) ah_copy(what->outs[r] + step * lane->box, boxes[r], part, false);
}

static ah_status all_gather_slots(ah_lane *lane, uint64_t signature, const void *in,
                                  char *const out[], size_t nbytes) {
    ah_slot *slot;
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    lane->call->variant = AH_SLOTS;
    ah_move(ah_slot_data(slot, nbytes), in, nbytes);
    ah_post(lane, slot, signature);
    status = ah_headers(lane, lane->others, signature);
    if (status != AH_OK) return status;
    for (int r = 0; r < lane->size; r++)
        ah_move(out[r], r == lane->rank ? in : ah_theirs(lane, r, nbytes), nbytes);
    if (lane->size == 2) ah_read_slot(lane, 1 - lane->rank, nbytes);
    return AH_OK;
}

static ah_status all_gather_large(ah_lane *lane, uint64_t signature, const void *in,
                                  char *const out[], size_t nbytes) {
    ah_slot *slot;
    ah_terms terms = {0};
    uint64_t all = everybody(lane);
    moved what = {.in = in, .outs = out, .nbytes = nbytes};
    ah_exchange exchange = {ah_steps(nbytes, lane->box), &what, put_same, take_all};
    ah_pause(lane);
    ah_status status = ah_room(lane, &slot);
    if (status != AH_OK) return status;
    terms.flags = ah_locate(lane, in, nbytes, &terms.where);
    bool early = !(terms.flags & AH_IN_HEAP) &&
                 !(lane->attach && nbytes >= lane->limits.attach_min);
    ah_exchange_open(lane, &exchange, early, &terms);
    ah_post_terms(lane, slot, signature, terms);
    status = ah_meet_all(lane, signature);
    if (status != AH_OK) return status;
    if (out[lane->rank] != in) ah_copy(out[lane->rank], in, nbytes, nbytes >= FAR);
    if (ah_can_pull(lane, all, nbytes)) {
        for (int k = 1; k < lane->size && status == AH_OK; k++) {
            int r = (lane->rank + k) % lane->size;
            status = ah_pull(lane, r, lane->terms[r].where, out[r], nbytes);
        }
        return status == AH_OK ? ah_pulled(lane, all, all) : status;
    }
    lane->call->variant = AH_SWAP;
    return ah_exchange_run(lane, &exchange);
}

ah_status ah_all_gather(ah_lane *lane, ah_call *call, const void *in, void *const out[],
                        size_t nbytes) {
    uint64_t signature = ah_sign(call, CALL_ALL_GATHER, nbytes, 0, 0);
    char *const *outs = (char *const *)out;
    ah_status status = ah_start(lane, call);
    if (status != AH_OK)
        ;
    else if (lane->size == 1)
        ah_move(out[0], in, nbytes);
    else if (is_small(lane, nbytes))
        status = all_gather_slots(lane, signature, in, outs, nbytes);
    else
        status = all_gather_large(lane, signature, in, outs, nbytes);
    return ah_finish(lane, status);
}
