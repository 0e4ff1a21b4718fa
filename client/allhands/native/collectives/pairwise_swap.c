#include "collectives/pairwise_swap.h"

#include "comm/call.h"
#include "comm/wait.h"

/* The box that `writer` writes for `reader` in this step. */
static char *box(const ah_comm *comm, int writer, int reader, uint64_t step) {
    int low = writer < reader ? writer : reader, high = writer < reader ? reader : writer;
    int side = ((writer > reader) + (int)(step >> 1)) & 1;
    return side ? ah_staging_box(comm, high, low, step & 1)
                : ah_staging_box(comm, low, high, step & 1);
}

static void produce(const ah_comm *comm, const ah_swap *swap, uint64_t phase, uint64_t step) {
    for (int k = 1; k < comm->size; k++) {
        int peer = (comm->rank + k) % comm->size;
        swap->produce(comm, swap->what, peer, step, box(comm, comm->rank, peer, phase + step));
    }
}

static void consume(const ah_comm *comm, const ah_swap *swap, uint64_t phase, uint64_t step) {
    char *boxes[AH_MAX_RANKS];
    for (int peer = 0; peer < comm->size; peer++)
        boxes[peer] = peer == comm->rank ? NULL : box(comm, peer, comm->rank, phase + step);
    swap->consume(comm, swap->what, step, boxes);
}

void ah_swap_open(ah_comm *comm, const ah_swap *swap, bool early, ah_call_header *header) {
    if (!comm->phase_known) return;
    header->flags |= AH_PHASE_KNOWN;
    header->phase = comm->phase;
    if (!early || !swap->steps) return;
    ah_forget_staging(comm); /* until this call has ended well */
    produce(comm, swap, comm->phase, 0);
    ah_publish_produced(comm, 1);
    header->flags |= AH_EARLY;
}

/* Agree on the boxes, by the headers of all ranks. */
static void begin(ah_comm *comm) {
    const ah_call_header *own = &comm->header[comm->rank];
    bool agreed = true, ready = true; /* ready: everybody's first step is there */
    for (int r = 0; r < comm->size; r++) {
        const ah_call_header *header = &comm->header[r];
        agreed &= (header->flags & AH_PHASE_KNOWN) && header->phase == own->phase;
        ready &= (header->flags & AH_EARLY) != 0;
    }
    ah_forget_staging(comm);
    if (!agreed) { /* a step that was put early is void: count from behind it */
        for (int r = 0; r < comm->size; r++)
            if (comm->header[r].flags & AH_EARLY) comm->header[r].base++;
        comm->base = own->base;
    }
    comm->course = (ah_course){
        .is_begun = true,
        .is_ready = agreed && ready,
        .phase = agreed ? own->phase : 0,
        .unproduced = agreed && (own->flags & AH_EARLY) ? 1 : 0,
    };
}

ah_status ah_swap_run(ah_comm *comm, const ah_swap *swap) {
    ah_course *course = &comm->course;
    ah_status status = AH_OK;
    if (!course->is_begun) begin(comm);
    for (; course->step <= swap->steps && status == AH_OK; course->step++) {
        uint64_t step = course->step;
        if (step >= course->unproduced && step < swap->steps) {
            produce(comm, swap, course->phase, step);
            course->unproduced = step + 1;
            ah_publish_produced(comm, step + 1);
        }
        if (step == 0) continue;
        if (step > 1 || !course->is_ready) status = ah_await_produced(comm, comm->others, step);
        if (status != AH_OK) break;
        consume(comm, swap, course->phase, step - 1);
        status = ah_poll_interrupt(comm);
    }
    if (status == AH_OK) {
        comm->phase = course->phase + swap->steps;
        comm->phase_known = true;
    }
    return status;
}
