/* reduce_scatter_v: on the caller's thread, of plain arrays only, with the group's timeout and no
 * label; and from the queue. */
#ifndef ALLHANDS_RAGGED_REDUCTION_H
#define ALLHANDS_RAGGED_REDUCTION_H

#include "python/comm_object_state.h"
#include "python/inline_calls.h"

CommMethod comm_reduce_scatter_v, comm_reduce_scatter_blocks, comm_enqueue_reduce_scatter_blocks;

#endif
