#include "p2p/p2p_ring.h"

#include <string.h>

size_t ah_office_bytes(int size) {
    return ah_round_up(sizeof(ah_office) + (size_t)size * sizeof(ah_wire), 4096);
}

/* How far the receiver has come; looked up only when what is known of it does not do. */
static void look_again(ah_wire_end *out) {
    out->room_frames = atomic_load(&out->taken->frames) + AH_FRAMES;
    out->room_bytes = atomic_load(&out->taken->bytes) + AH_WIRE_BYTES;
}

size_t ah_wire_room(ah_wire_end *out) {
    look_again(out);
    return out->frames == out->room_frames ? 0 : out->room_bytes - out->bytes;
}

bool ah_wire_put(ah_wire_end *out, const ah_frame *frame, const void *data) {
    size_t beside = ah_beside(frame), taken = ah_round_up(beside, AH_CACHE_LINE);
    if (out->frames == out->room_frames || out->room_bytes - out->bytes < taken) look_again(out);
    if (out->frames == out->room_frames || out->room_bytes - out->bytes < taken) return false;
    if (beside) {
        size_t at = out->bytes & (AH_WIRE_BYTES - 1), first = ah_min(beside, AH_WIRE_BYTES - at);
        memcpy(out->wire->bytes + at, data, first);
        memcpy(out->wire->bytes, (const char *)data + first, beside - first);
        out->bytes += taken;
    }
    ah_frame *to = &out->wire->frame[out->frames & (AH_FRAMES - 1)];
    memcpy((char *)to + sizeof to->stamp, (const char *)frame + sizeof frame->stamp,
           sizeof *frame - sizeof frame->stamp);
    /* Before the look at the receiver's bell: see p2p.c. */
    atomic_store(&to->stamp, ++out->frames);
    return true;
}

void ah_wire_read(const ah_wire_end *in, void *to, size_t nbytes) {
    size_t at = in->bytes & (AH_WIRE_BYTES - 1), first = ah_min(nbytes, AH_WIRE_BYTES - at);
    memcpy(to, in->wire->bytes + at, first);
    memcpy((char *)to + first, in->wire->bytes, nbytes - first);
}

void ah_wire_pass(ah_wire_end *in, size_t beside) {
    size_t taken = ah_round_up(beside, AH_CACHE_LINE);
    if (beside > 4 * AH_CACHE_LINE) {
        size_t at = in->bytes & (AH_WIRE_BYTES - 1), first = ah_min(taken, AH_WIRE_BYTES - at);
        ah_dirty_lines(in->wire->bytes + at, first);
        ah_dirty_lines(in->wire->bytes, taken - first);
    }
    in->bytes += taken;
    atomic_store_explicit(&in->taken->bytes, in->bytes, memory_order_release);
    atomic_store(&in->taken->frames, ++in->frames); /* before the look at the sender's bell */
}

void ah_offer_release(ah_office *own, uint64_t slot) {
    atomic_store(&own->offers[slot], 0);
    /* Who sees what the caller writes from here on sees that word. */
    atomic_thread_fence(memory_order_seq_cst);
}

bool ah_offer_holds(const ah_office *office, uint64_t slot, uint64_t id) {
    /* Pairs with the fence above: an offer that still holds did so during all our reads. */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load(&office->offers[slot]) == id;
}
