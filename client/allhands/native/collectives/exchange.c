/* exchange: messages between all ranks, of sizes that only their senders know.
 *
 * Sizes travel with the call's header, and the messages too where those of a rank fit its slot.
 * Once all headers are there each rank gets memory for what comes to it. What is in no slot goes
 * through the boxes of a pairwise swap.
 */
#include "collectives/calls.h"
#include "collectives/pairwise_swap.h"

enum { SENT = 1 }; /* the table of a slot with the sizes of messages */

typedef struct {
    const ah_messages *messages;
    char **out;
} exchange;

static const ah_message *message_to(const ah_messages *messages, int rank) {
    return &messages->to[messages->is_same ? 0 : rank];
}

/* Bytes that rank a says it sends to b. */
static size_t declared(const ah_comm *comm, int a, int b) {
    const ah_call_header *header = &comm->header[a];
    if (header->flags & AH_SAME) return header->even;
    return ah_slot_table(comm, a, SENT)[b];
}

/* Messages in a slot: the same for all, or one behind the other, the own left out. */
static char *packed(const ah_comm *comm, int rank) {
    return ah_slot_body(comm, rank) + (comm->header[rank].flags & AH_SAME ? 0 : AH_TABLES);
}

/* Bytes of the messages of `rank` to those before `stop`, as they lie in its slot; SIZE_MAX if that
 * is absurd. */
static size_t sum(const ah_comm *comm, int rank, int stop) {
    if (comm->header[rank].flags & AH_SAME) return stop == comm->size ? declared(comm, rank, 0) : 0;
    size_t total = 0;
    for (int r = 0; r < stop; r++)
        if (r != rank && __builtin_add_overflow(total, declared(comm, rank, r), &total))
            return SIZE_MAX;
    return total;
}

/* Copy a part of a message, which may be made of several buffers. */
static void copy_part(char *to, const ah_message *message, size_t at, size_t nbytes) {
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

static void post(ah_comm *comm, ah_slot *slot, uint64_t signature, const ah_swap *swap,
                 const ah_messages *messages) {
    ah_call_header *header = &comm->header[comm->rank];
    *header = (ah_call_header){0};
    if (messages->is_same)
        *header = (ah_call_header){.flags = AH_SAME, .even = messages->to[0].nbytes};
    else
        for (int r = 0; r < comm->size; r++)
            ah_slot_table(comm, comm->rank, SENT)[r] = messages->to[r].nbytes;
    if (sum(comm, comm->rank, comm->size) <= comm->limits.slot_max) {
        header->flags |= AH_IN_SLOT;
        char *at = packed(comm, comm->rank);
        for (int r = 0; r < comm->size; r++) {
            if (r == comm->rank && !messages->is_same) continue;
            const ah_message *message = message_to(messages, r);
            copy_part(at, message, 0, message->nbytes);
            at += message->nbytes;
            if (messages->is_same) break;
        }
    } else
        ah_pause(comm);
    ah_swap_open(comm, swap, false, header);
    ah_post_header(comm, slot, signature, *header);
}

/* Every rank comes to the same end: no slot has more than there is room for. */
static ah_status check(const ah_comm *comm) {
    for (int r = 0; r < comm->size; r++) {
        bool packs = comm->header[r].flags & AH_IN_SLOT;
        if (packs && sum(comm, r, comm->size) > comm->limits.slot_max)
            comm->call->offenders |= AH_BIT(r);
    }
    return comm->call->offenders ? AH_MISMATCH : AH_OK;
}

/* Empty where it is not for the boxes. */
static size_t part_of(const ah_comm *comm, int from, int to, uint64_t step) {
    if (comm->header[from].flags & AH_IN_SLOT) return 0;
    return ah_part(declared(comm, from, to), comm->box_bytes, step);
}

static void produce(const ah_comm *comm, const void *given, int peer, uint64_t step, char *box) {
    const exchange *what = given;
    size_t nbytes = part_of(comm, comm->rank, peer, step);
    if (nbytes) copy_part(box, message_to(what->messages, peer), step * comm->box_bytes, nbytes);
}

static void consume(const ah_comm *comm, const void *given, uint64_t step, char *const boxes[]) {
    const exchange *what = given;
    for (int r = 0; r < comm->size; r++) {
        size_t nbytes = boxes[r] ? part_of(comm, r, comm->rank, step) : 0;
        if (!nbytes) continue;
        ah_copy(what->out[r] + step * comm->box_bytes, boxes[r], nbytes, false);
        /* This rank writes that box next only if it sends as much itself. */
        if (!part_of(comm, comm->rank, r, step)) ah_dirty_lines(boxes[r], nbytes);
    }
}

static bool allocate(ah_comm *comm, const ah_messages *messages, char *out[]) {
    size_t nbytes[AH_MAX_RANKS];
    for (int r = 0; r < comm->size; r++)
        nbytes[r] = r == comm->rank ? 0 : declared(comm, r, comm->rank);
    return messages->allocate(comm->call->owner, nbytes, out);
}

/* Read the headers of all ranks, or of a root: a message that lies in its slot waits for nobody. */
static ah_status await_headers(ah_comm *comm, uint64_t signature, int root) {
    if (root < 0) return ah_await_headers(comm, signature);
    uint64_t source = AH_BIT(root) & ~AH_BIT(comm->rank);
    ah_status status = ah_await_posted_rooted(comm, source, signature);
    if (status != AH_OK) return status;
    for (uint64_t rest = comm->others; rest; rest &= rest - 1)
        comm->header[__builtin_ctzll(rest)] = (ah_call_header){.flags = AH_SAME | AH_IN_SLOT};
    if (source)
        memcpy(&comm->header[root], ah_slot_of(comm, root, comm->call->sequence)->small,
               sizeof(ah_call_header));
    if (comm->header[root].flags & AH_IN_SLOT) return AH_OK;
    return ah_await_headers(comm, signature);
}

static ah_status run(ah_comm *comm, uint64_t signature, const ah_messages *messages) {
    ah_slot *slot;
    char *out[AH_MAX_RANKS] = {NULL};
    exchange what = {messages, out};
    ah_swap swap = {0, &what, produce, consume};
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    post(comm, slot, signature, &swap, messages);
    status = await_headers(comm, signature, messages->root);
    if (status == AH_OK) status = check(comm);
    if (status != AH_OK) comm->call->all_arrived = false;
    if (status != AH_OK) return status;
    if (!allocate(comm, messages, out)) return AH_INTERRUPTED;

    bool large = false;
    size_t longest = 0; /* of what is in no slot */
    for (int r = 0; r < comm->size; r++) {
        if (!(comm->header[r].flags & AH_IN_SLOT)) {
            large = true;
            for (int p = 0; p < comm->size; p++)
                if (p != r && declared(comm, r, p) > longest) longest = declared(comm, r, p);
        } else if (r != comm->rank) {
            size_t nbytes = declared(comm, r, comm->rank);
            const char *from = packed(comm, r) + sum(comm, r, comm->rank);
            ah_copy_small(out[r], from, nbytes);
            if (comm->size == 2 && nbytes > 4 * AH_CACHE_LINE) ah_dirty_lines(from, nbytes);
        }
    }
    comm->call->variant = AH_SLOTS;
    if (!large) return AH_OK;
    ah_pause(comm);
    swap.steps = ah_steps(longest, comm->box_bytes);
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

ah_status ah_exchange(ah_comm *comm, ah_call *call, const ah_messages *messages) {
    uint64_t signature = ah_sign_call(call, AH_KIND_EXCHANGE, (uint64_t)messages->root, 0, 0);
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK && comm->size > 1) status = run(comm, signature, messages);
    return ah_call_finish(comm, status);
}
