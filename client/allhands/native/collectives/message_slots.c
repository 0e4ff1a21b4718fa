#include "collectives/message_slots.h"

#include "collectives/calls.h"

enum { SENT = 1 }; /* the table of a slot with the sizes of messages */

const ah_message *ah_message_to(const ah_messages *messages, int rank) {
    return &messages->to[messages->is_same ? 0 : rank];
}

size_t ah_declared(const ah_comm *comm, int from, int to) {
    const ah_call_header *header = &comm->header[from];
    if (header->flags & AH_SAME) return header->even;
    return ah_slot_table(comm, from, SENT)[to];
}

/* Bytes of the messages of `rank` to those before `stop`, as they lie in its slot; SIZE_MAX if that
 * is absurd. */
static size_t sum(const ah_comm *comm, int rank, int stop) {
    if (comm->header[rank].flags & AH_SAME) return stop == comm->size ? comm->header[rank].even : 0;
    size_t total = 0;
    for (int r = 0; r < stop; r++)
        if (r != rank && __builtin_add_overflow(total, ah_declared(comm, rank, r), &total))
            return SIZE_MAX;
    return total;
}

static char *first_packed(const ah_comm *comm, int rank) {
    return ah_slot_body(comm, rank) + (comm->header[rank].flags & AH_SAME ? 0 : AH_TABLES);
}

/* Where the message from one rank to another lies in the slot. */
static const char *packed(const ah_comm *comm, int from, int to) {
    return first_packed(comm, from) + sum(comm, from, to);
}

void ah_copy_message(char *to, const ah_message *message, size_t at, size_t nbytes) {
    for (size_t k = 0; k < message->count && nbytes; k++) {
        const ah_buffer *buffer = &message->buffers[k];
        if (at >= buffer->nbytes) {
            at -= buffer->nbytes;
            continue;
        }
        size_t part = ah_min(nbytes, buffer->nbytes - at);
        ah_copy(to, (const char *)buffer->at + at, part, false);
        to += part;
        nbytes -= part;
        at = 0;
    }
}

/* The one message that this rank sends, if it is one; of a root that only receives, none. */
static const ah_message *only_message(const ah_comm *comm, const ah_messages *messages) {
    static const ah_message none;
    if (messages->to_root)
        return comm->rank == messages->root ? &none : ah_message_to(messages, messages->root);
    return messages->is_same ? messages->to : NULL;
}

void ah_declare_messages(ah_comm *comm, const ah_messages *messages) {
    const ah_message *only = only_message(comm, messages);
    ah_call_header *header = &comm->header[comm->rank];
    *header = (ah_call_header){0};
    if (only)
        *header = (ah_call_header){.flags = AH_SAME, .even = only->nbytes};
    else
        for (int r = 0; r < comm->size; r++)
            ah_slot_table(comm, comm->rank, SENT)[r] = messages->to[r].nbytes;
    if (sum(comm, comm->rank, comm->size) > comm->limits.slot_max) return;
    header->flags |= AH_IN_SLOT;
    char *at = first_packed(comm, comm->rank);
    if (only) ah_copy_message(at, only, 0, only->nbytes);
    for (int r = 0; r < comm->size && !only; r++) {
        if (r == comm->rank) continue;
        ah_copy_message(at, &messages->to[r], 0, messages->to[r].nbytes);
        at += messages->to[r].nbytes;
    }
}

ah_status ah_check_declared(const ah_comm *comm, uint64_t ranks) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int r = __builtin_ctzll(rest);
        bool packs = comm->header[r].flags & AH_IN_SLOT;
        if (packs && sum(comm, r, comm->size) > comm->limits.slot_max)
            comm->call->offenders |= AH_BIT(r);
    }
    if (!comm->call->offenders) return AH_OK;
    comm->call->touches_output = false;
    return AH_MISMATCH;
}

bool ah_are_packed(const ah_comm *comm, uint64_t ranks) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1)
        if (!(comm->header[__builtin_ctzll(rest)].flags & AH_IN_SLOT)) return false;
    return true;
}

void ah_take_packed(const ah_comm *comm, uint64_t ranks, char *const out[]) {
    for (uint64_t rest = ranks; rest; rest &= rest - 1) {
        int r = __builtin_ctzll(rest);
        if (!(comm->header[r].flags & AH_IN_SLOT)) continue;
        size_t nbytes = ah_declared(comm, r, comm->rank);
        const char *from = packed(comm, r, comm->rank);
        ah_copy_small(out[r], from, nbytes);
        if (comm->size == 2 && nbytes > 4 * AH_CACHE_LINE) ah_dirty_lines(from, nbytes);
    }
}
