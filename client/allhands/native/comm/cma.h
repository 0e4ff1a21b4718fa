/* Cross-memory attach: the kernel copies from another process's memory into ours. */
#ifndef ALLHANDS_CMA_H
#define ALLHANDS_CMA_H

#include "comm/comm_state.h"

/* Read the memory of another rank's process. Waits for the end of the call if it cannot be read. */
ah_status ah_cma_read(ah_comm *comm, int from, uint64_t address, void *to, size_t nbytes);

/* Read another process's memory, which is whoever's has that number now: see cma.c. */
bool ah_cma_read_process(pid_t process, uint64_t address, void *to, size_t nbytes);

#endif
