#include "collectives/rooted_exchange.h"

#include "collectives/calls.h"
#include "collectives/message_slots.h"
#include "collectives/staged_copy.h"

typedef struct {
    const ah_comm *comm;
    const ah_messages *messages;
    char **out;
} rooted;

/* What is in a slot goes no other way. */
static size_t count(const void *given, int source, int reader) {
    const ah_comm *comm = ((const rooted *)given)->comm;
    return comm->header[source].flags & AH_IN_SLOT ? 0 : ah_declared(comm, source, reader);
}

static void produce(const void *given, int reader, size_t at, size_t nbytes, char *box) {
    ah_copy_message(box, ah_message_to(((const rooted *)given)->messages, reader), at, nbytes);
}

static void consume(const void *given, int source, size_t at, size_t nbytes, const char *box) {
    ah_copy(((const rooted *)given)->out[source] + at, box, nbytes, false);
}

/* Get memory for what comes here from these ranks. */
static bool allocate(const rooted *what, uint64_t sources) {
    size_t nbytes[AH_MAX_RANKS] = {0};
    for (uint64_t rest = sources; rest; rest &= rest - 1) {
        int source = __builtin_ctzll(rest);
        nbytes[source] = ah_declared(what->comm, source, what->comm->rank);
    }
    return what->messages->allocate(what->comm->call->owner, nbytes, what->out);
}

/* Post what this rank sends, or its size, unless that was done. */
static ah_status post(ah_comm *comm, uint64_t signature, const ah_messages *messages) {
    ah_slot *slot;
    if (comm->call->is_posted) return AH_OK;
    ah_status status = ah_acquire_slot(comm, &slot);
    if (status != AH_OK) return status;
    ah_call_header *header = &comm->header[comm->rank];
    ah_declare_messages(comm, messages);
    if (!(header->flags & AH_IN_SLOT)) ah_pause(comm);
    ah_staged_describe(comm, header);
    ah_post_header(comm, slot, signature, *header);
    return AH_OK;
}

ah_status ah_rooted_exchange(ah_comm *comm, uint64_t signature, const ah_messages *messages) {
    char *out[AH_MAX_RANKS] = {NULL};
    rooted what = {comm, messages, out};
    uint64_t root = AH_BIT(messages->root), own = AH_BIT(comm->rank);
    uint64_t others = ah_all_ranks(comm) & ~root;
    uint64_t sources = messages->to_root ? others : root,
             readers = messages->to_root ? root : others;
    ah_staged_copy staged = {signature, sources, readers, &what, count, produce, consume};
    ah_status status = post(comm, signature, messages);
    if (status != AH_OK) return status;
    if (sources & own && comm->header[comm->rank].flags & AH_IN_SLOT) {
        ah_forget_boxes(comm);
        status = ah_await_posted_rooted(comm, 0, signature);
    } else
        status = ah_staged_await(comm, signature, sources, false);
    uint64_t received = readers & own ? sources : 0;
    if (status == AH_OK) status = ah_check_declared(comm, received);
    if (status != AH_OK) return status;
    /* The rest takes as long as others send, or take, which no size of this rank's own tells. */
    if (!ah_are_packed(comm, received | (sources & own)) && ah_stops(comm)) return AH_PENDING;
    if (!allocate(&what, received)) return AH_INTERRUPTED;
    comm->call->variant = AH_SLOTS;
    ah_take_packed(comm, received, out);
    return ah_staged_copy_run(comm, &staged);
}
