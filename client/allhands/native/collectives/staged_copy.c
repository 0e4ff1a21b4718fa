#include "collectives/staged_copy.h"

#include "comm/call.h"
#include "comm/wait.h"

static ah_status produce(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    if (step < comm->course.unproduced) return AH_OK;
    if (step >= 2) {
        uint64_t readers = staged->readers & comm->others;
        ah_status status = ah_await_consumed(comm, readers, step - 1);
        if (status != AH_OK) return status;
    }
    staged->produce(comm, staged->what, step);
    comm->course.unproduced = step + 1;
    ah_publish_produced(comm, step + 1);
    return AH_OK;
}

static ah_status consume(ah_comm *comm, const ah_staged_copy *staged, uint64_t step) {
    for (int k = 1; k < comm->size; k++) {
        int source = (comm->rank + k) % comm->size;
        if (!(staged->sources & AH_BIT(source))) continue;
        ah_status status = ah_await_produced(comm, AH_BIT(source), step + 1);
        if (status != AH_OK) return status;
        staged->consume(comm, staged->what, step, source);
    }
    ah_publish_consumed(comm, step + 1);
    return AH_OK;
}

ah_status ah_staged_copy_run(ah_comm *comm, const ah_staged_copy *staged) {
    bool source = staged->sources & AH_BIT(comm->rank);
    bool reader = staged->readers & AH_BIT(comm->rank);
    ah_status status = AH_OK;
    ah_forget_phase(comm);
    comm->call->variant = AH_STAGED;
    /* A reader that is a source too puts one step ahead of what it takes. */
    for (; comm->course.step <= staged->steps && status == AH_OK; comm->course.step++) {
        uint64_t step = comm->course.step;
        if (source && step < staged->steps) status = produce(comm, staged, step);
        if (reader && step > 0 && status == AH_OK) status = consume(comm, staged, step - 1);
        if (status == AH_OK) status = ah_poll_interrupt(comm);
        if (status == AH_PENDING) break;
    }
    return status;
}
