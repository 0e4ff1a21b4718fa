#include "collectives/staged_copy.h"

#include "collectives/calls.h"
#include "comm/heap_access.h"

/* What is published of a step at a time: a reader follows its source so closely. */
enum { PIECES = 4 };
/* Less than that in a step is one piece, the first. */
#define LEAST_CUT ((size_t)32 << 10)

/* Bytes of a step for one reader, which has the whole buffer if it is alone. */
static size_t box_bytes(const ah_comm *comm, const ah_staged_copy *staged) {
    return ah_is_single(staged->readers) ? comm->limits.chunk : comm->box_bytes;
}

/* Which of its two buffers a source uses in that step. */
static int parity_of(const ah_comm *comm, int source, uint64_t step) {
    return (int)((comm->header[source].phase + step) & 1);
}

char *ah_staged_box(const ah_comm *comm, const ah_staged_copy *staged, int source, int reader,
                    uint64_t step) {
    int place = ah_is_single(staged->readers) ? 0 : reader;
    return ah_staging_box(comm, source, place, parity_of(comm, source, step));
}

static size_t part_of(const ah_comm *comm, const ah_staged_copy *staged, int source, int reader,
                      uint64_t step) {
    size_t nbytes = staged->count(staged->what, source, reader);
    return ah_part(nbytes, box_bytes(comm, staged), step);
}

/* Where that piece begins in what a reader gets in a step, in whole lines; `nbytes` behind the
 * last. */
static size_t piece_start(size_t nbytes, int piece) {
    if (piece == 0) return 0;
    if (piece == PIECES || nbytes < LEAST_CUT) return nbytes;
    return ah_round_up(nbytes / PIECES, AH_CACHE_LINE) * (size_t)piece;
}

static uint64_t steps_between(const ah_comm *comm, const ah_staged_copy *staged, int source,
                              int reader) {
    return ah_steps(staged->count(staged->what, source, reader), box_bytes(comm, staged));
}

void ah_staged_describe(const ah_comm *comm, ah_call_header *header) {
    header->phase = comm->fills;
}

ah_status ah_staged_post(ah_comm *comm, uint64_t signature, const void *at, size_t nbytes) {
    ah_slot *slot;
    ah_call_header header = {0};
    if (comm->call->is_posted) return AH_OK;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    if (at) header.flags = ah_locate_buffer(comm, at, nbytes, &header.where);
    ah_staged_describe(comm, &header);
    ah_post_header(comm, slot, signature, header);
    return AH_OK;
}

ah_status ah_staged_await(ah_comm *comm, uint64_t signature, uint64_t sources, bool all) {
    if (comm->course.is_begun) return AH_OK;
    bool is_source = sources & AH_BIT(comm->rank);
    uint64_t needed = sources & comm->others;
    if (is_source) needed = comm->fills_known ? 0 : comm->others;
    ah_forget_boxes(comm);
    ah_status status = ah_await_headers_of(comm, all ? comm->others : needed, signature);
    comm->course.is_begun = status == AH_OK;
    return status;
}

/* ---- a source */

/* Wait until nobody reads any more what the buffer of that step holds. */
static ah_status await_taken(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    int parity = parity_of(comm, comm->rank, step);
    const ah_fill *fill = &comm->fill[parity];
    if (!fill->readers) return AH_OK;
    if (fill->sequence != comm->call->sequence) {
        ah_wait_goal goal = {
            .offset = offsetof(ah_area, taken) + (size_t)parity * sizeof(uint64_t),
            .least = fill->sequence,
            .left = fill->sequence,
        };
        return ah_await(comm, fill->readers, goal);
    }
    ah_status status = ah_await_headers_of(comm, fill->readers, staged->signature);
    return status == AH_OK ? ah_await_consumed(comm, fill->readers, step - 1) : status;
}

/* Whether there was anything to fill. */
static bool fill_piece(ah_comm *comm, const ah_staged_copy *staged, uint64_t step, int piece,
                       ah_fill *fill) {
    bool filled = false;
    for (int k = 1; k < comm->size; k++) {
        int reader = (comm->rank + k) % comm->size;
        if (!(staged->readers & AH_BIT(reader))) continue;
        size_t nbytes = part_of(comm, staged, comm->rank, reader, step);
        size_t from = piece_start(nbytes, piece), to = piece_start(nbytes, piece + 1);
        if (from == to) continue;
        char *box = ah_staged_box(comm, staged, comm->rank, reader, step);
        size_t at = step * box_bytes(comm, staged) + from;
        staged->produce(staged->what, reader, at, to - from, box + from);
        fill->readers |= AH_BIT(reader);
        filled = true;
    }
    return filled;
}

static ah_status fill_step(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    ah_status status = await_taken(comm, staged, step);
    if (status != AH_OK) return status;
    ah_fill *fill = &comm->fill[parity_of(comm, comm->rank, step)];
    *fill = (ah_fill){.sequence = comm->call->sequence};
    for (int piece = 0; piece < PIECES; piece++) {
        bool filled = fill_piece(comm, staged, step, piece, fill);
        /* Readers without a processor of their own had better come once. */
        if (piece == PIECES - 1 || (filled && !comm->oversubscribed))
            ah_publish_produced(comm, step * PIECES + (uint64_t)piece + 1);
    }
    return AH_OK;
}

/* ---- a reader */

/* The buffers, as bits of their parities, that some source is to be read from after that step. */
static int unread_after(const ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    int unread = 0;
    for (uint64_t rest = staged->sources & comm->others; rest; rest &= rest - 1) {
        int source = __builtin_ctzll(rest);
        uint64_t steps = steps_between(comm, staged, source, comm->rank);
        if (steps > step + 2) return 3;
        if (steps > step + 1) unread |= 1 << parity_of(comm, source, step + 1);
    }
    return unread;
}

void ah_staged_take(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    int unread = unread_after(comm, staged, step);
    for (int parity = 0; parity < 2; parity++)
        if (!(unread & 1 << parity))
            atomic_store_explicit(&comm->area[comm->rank]->taken[parity], comm->call->sequence,
                                  memory_order_release);
    ah_publish_consumed(comm, step + 1);
}

ah_status ah_staged_await_filled(ah_comm *comm, uint64_t sources, uint64_t step) {
    return ah_await_produced(comm, sources, (step + 1) * PIECES);
}

static ah_status read_part(ah_comm *comm, const ah_staged_copy *staged, uint64_t step, int source) {
    size_t nbytes = part_of(comm, staged, source, comm->rank, step);
    size_t at = step * box_bytes(comm, staged);
    const char *box = ah_staged_box(comm, staged, source, comm->rank, step);
    for (int piece = 0; piece < PIECES; piece++) {
        size_t from = piece_start(nbytes, piece), to = piece_start(nbytes, piece + 1);
        if (from == to) continue;
        uint64_t produced = step * PIECES + (uint64_t)piece + 1;
        ah_status status = ah_await_produced(comm, AH_BIT(source), produced);
        if (status != AH_OK) return status;
        comm->call->touches_output = true;
        staged->consume(staged->what, source, at + from, to - from, box + from);
        ah_dirty_lines(box + from, to - from);
    }
    return AH_OK;
}

static ah_status read_step(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    for (int k = 1; k < comm->size; k++) {
        int source = (comm->rank + k) % comm->size;
        if (!(staged->sources & AH_BIT(source))) continue;
        ah_status status = read_part(comm, staged, step, source);
        if (status != AH_OK) return status;
    }
    ah_staged_take(comm, staged, step);
    return AH_OK;
}

/* ---- both */

/* Steps of this rank: as many as the longest of its transfers takes. */
static uint64_t own_steps(const ah_comm *comm, const ah_staged_copy *staged, bool is_source) {
    uint64_t most = 0, peers = is_source ? staged->readers : staged->sources;
    for (uint64_t rest = peers; rest; rest &= rest - 1) {
        int peer = __builtin_ctzll(rest);
        uint64_t steps = is_source ? steps_between(comm, staged, comm->rank, peer)
                                   : steps_between(comm, staged, peer, comm->rank);
        if (steps > most) most = steps;
    }
    return most;
}

ah_status ah_staged_copy_run(ah_comm *comm, const ah_staged_copy *staged) {
    uint64_t own = AH_BIT(comm->rank);
    bool is_source = staged->sources & own;
    if (!is_source && !(staged->readers & own)) return AH_OK;
    uint64_t steps = own_steps(comm, staged, is_source);
    if (!steps) return AH_OK;
    comm->call->variant = AH_STAGED;
    ah_pause(comm);
    if (is_source) comm->fills_known = true; /* if it was not, all have posted this call */
    for (; comm->course.step < steps; comm->course.step++) {
        uint64_t step = comm->course.step;
        ah_status status =
            is_source ? fill_step(comm, staged, step) : read_step(comm, staged, step);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
        if (status != AH_OK) return status;
    }
    if (is_source) comm->fills += steps;
    return AH_OK;
}
