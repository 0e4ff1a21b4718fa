#include "p2p/p2p_ring.h"

#include <string.h>

#include "kernels/copy.h"

size_t ah_p2p_region_bytes(int size) {
    return ah_round_up(sizeof(ah_p2p_region) + (size_t)size * sizeof(ah_p2p_ring), 4096);
}

/* Look how far the receiver has come: only when what is known of it does not do. */
static void refresh_room(ah_ring_end *out) {
    out->room_frames = atomic_load(&out->consumed->frames) + AH_FRAMES;
    out->room_bytes = atomic_load(&out->consumed->bytes) + AH_RING_BYTES;
}

size_t ah_ring_room(ah_ring_end *out) {
    refresh_room(out);
    return out->frames == out->room_frames ? 0 : out->room_bytes - out->bytes;
}

bool ah_ring_put(ah_ring_end *out, const ah_frame *frame, const void *data) {
    size_t trailing = ah_trailing_bytes(frame), consumed = ah_round_up(trailing, AH_CACHE_LINE);
    if (out->frames == out->room_frames || out->room_bytes - out->bytes < consumed)
        refresh_room(out);
    if (out->frames == out->room_frames || out->room_bytes - out->bytes < consumed) return false;
    if (trailing) {
        size_t at = out->bytes & (AH_RING_BYTES - 1), first = ah_min(trailing, AH_RING_BYTES - at);
        ah_copy_bytes(out->ring->bytes + at, data, first);
        ah_copy_bytes(out->ring->bytes, (const char *)data + first, trailing - first);
        out->bytes += consumed;
    }
    ah_frame *to = &out->ring->frame[out->frames & (AH_FRAMES - 1)];
    memcpy((char *)to + sizeof to->stamp, (const char *)frame + sizeof frame->stamp,
           sizeof *frame - sizeof frame->stamp);
    /* Before the look at the receiver's doorbell: see doorbell.h. */
    atomic_store(&to->stamp, ++out->frames);
    return true;
}

void ah_ring_read(const ah_ring_end *in, void *to, size_t nbytes) {
    size_t at = in->bytes & (AH_RING_BYTES - 1), first = ah_min(nbytes, AH_RING_BYTES - at);
    ah_copy_bytes(to, in->ring->bytes + at, first);
    ah_copy_bytes((char *)to + first, in->ring->bytes, nbytes - first);
}

void ah_ring_pop(ah_ring_end *in, size_t trailing) {
    size_t consumed = ah_round_up(trailing, AH_CACHE_LINE);
    if (trailing > 4 * AH_CACHE_LINE) {
        size_t at = in->bytes & (AH_RING_BYTES - 1), first = ah_min(consumed, AH_RING_BYTES - at);
        ah_dirty_lines(in->ring->bytes + at, first);
        ah_dirty_lines(in->ring->bytes, consumed - first);
    }
    in->bytes += consumed;
    atomic_store_explicit(&in->consumed->bytes, in->bytes, memory_order_release);
    atomic_store(&in->consumed->frames,
                 ++in->frames); /* before the look at the sender's doorbell */
}

void ah_rts_release(ah_p2p_region *own, uint64_t slot) {
    atomic_store(&own->rts_table[slot], 0);
    /* Who sees what the caller writes from here on sees that word. */
    atomic_thread_fence(memory_order_seq_cst);
}

bool ah_rts_holds(const ah_p2p_region *region, uint64_t slot, uint64_t id) {
    /* Pairs with the fence above: an RTS that still holds did so during all our reads. */
    atomic_thread_fence(memory_order_acquire);
    return atomic_load(&region->rts_table[slot]) == id;
}
