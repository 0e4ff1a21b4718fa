/* The processors on which ranks wait, and balancing ranks over them where there are too few.
 *
 * Ranks that yield never leave their processor idle, so the system is slow to see that one has
 * three of them and another one: it looks every few ten milliseconds. Here each rank says where it
 * waits, and a rank that finds itself on the fuller one migrates, to wherever it may run.
 */
#ifndef ALLHANDS_CPU_BALANCE_H
#define ALLHANDS_CPU_BALANCE_H

#include "comm/comm_state.h"

/* Ranks that only wait do not keep a processor from one of them for so long. */
static inline int64_t ah_long_delay(const ah_comm *comm) {
    const int64_t turn = 100 * INT64_C(1000), least = 3;
    return turn * (comm->ranks_per_cpu > least ? comm->ranks_per_cpu : least);
}

/* This rank waits from `now` on. */
void ah_balance_cpus(ah_comm *comm, int64_t now);
/* Its yield has taken ah_long_delay or more. If that was not for other ranks, which have work to do
 * as well, the processor is shared with strangers: no rank migrates there for a while. */
void ah_record_delay(ah_comm *comm, int64_t began, int64_t now);
/* The other ranks that waited last where this one is. */
uint64_t ah_ranks_on_my_cpu(const ah_comm *comm);

#endif
