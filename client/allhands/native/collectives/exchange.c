/* exchange: messages between all ranks, of sizes that only their senders know.
 *
 * Sizes travel with the call's header, and the messages too where those of a rank fit its slot.
 * Once all headers are there each rank gets memory for what comes to it. What is in no slot goes
 * through the boxes of a pairwise swap; where one root alone sends, or receives, rooted_exchange.c.
 */
#include "collectives/calls.h"
#include "collectives/message_slots.h"
#include "collectives/pairwise_swap.h"
#include "collectives/rooted_exchange.h"

typedef struct {
    const ah_messages *messages;
    char **out;
} exchange;

/* Empty where it is not for the boxes. */
static size_t part_of(const ah_comm *comm, int from, int to, uint64_t step) {
    if (comm->header[from].flags & AH_IN_SLOT) return 0;
    return ah_part(ah_declared(comm, from, to), comm->box_bytes, step);
}

static void produce(const ah_comm *comm, const void *given, int peer, uint64_t step, char *box) {
    const exchange *what = given;
    const ah_message *message = ah_message_to(what->messages, peer);
    size_t nbytes = part_of(comm, comm->rank, peer, step);
    if (nbytes) ah_copy_message(box, message, step * comm->box_bytes, nbytes);
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
        nbytes[r] = r == comm->rank ? 0 : ah_declared(comm, r, comm->rank);
    return messages->allocate(comm->call->owner, nbytes, out);
}

/* Bytes of the longest message that is in no slot; all ranks find the same. */
static size_t longest(const ah_comm *comm) {
    size_t most = 0;
    for (int r = 0; r < comm->size; r++)
        for (int p = 0; p < comm->size && !(comm->header[r].flags & AH_IN_SLOT); p++)
            if (p != r && ah_declared(comm, r, p) > most) most = ah_declared(comm, r, p);
    return most;
}

static ah_status run(ah_comm *comm, uint64_t signature, const ah_messages *messages) {
    ah_slot *slot;
    char *out[AH_MAX_RANKS] = {NULL};
    exchange what = {messages, out};
    ah_swap swap = {0, &what, produce, consume};
    ah_status status;
    if (!comm->call->is_posted) {
        status = ah_acquire_slot(comm, &slot);
        if (status != AH_OK) return status;
        ah_call_header *header = &comm->header[comm->rank];
        ah_declare_messages(comm, messages);
        if (!(header->flags & AH_IN_SLOT)) ah_pause(comm);
        ah_swap_open(comm, &swap, false, header);
        ah_post_header(comm, slot, signature, *header);
    }
    status = ah_await_headers(comm, signature);
    if (status == AH_OK) status = ah_check_declared(comm, comm->others);
    if (status != AH_OK) return status;
    /* The rest takes as long as others send, which no size of this rank's own tells. */
    if (!ah_are_packed(comm, ah_all_ranks(comm)) && ah_stops(comm)) return AH_PENDING;
    if (!allocate(comm, messages, out)) return AH_INTERRUPTED;
    ah_take_packed(comm, comm->others, out);
    comm->call->variant = AH_SLOTS;
    size_t most = longest(comm);
    if (!most) return AH_OK;
    ah_pause(comm);
    swap.steps = ah_steps(most, comm->box_bytes);
    comm->call->variant = AH_SWAP;
    return ah_swap_run(comm, &swap);
}

ah_status ah_exchange(ah_comm *comm, ah_call *call, const ah_messages *messages) {
    uint64_t signature =
        ah_sign_call(call, AH_KIND_EXCHANGE, (uint64_t)messages->root, messages->to_root, 0);
    ah_status status = ah_call_start(comm, call);
    if (status == AH_OK && comm->size > 1)
        status = messages->root < 0 ? run(comm, signature, messages)
                                    : ah_rooted_exchange(comm, signature, messages);
    return ah_call_finish(comm, status);
}
