/* v-variants on the caller's thread, of plain arrays only, with the group's timeout and no label.
 */
#ifndef ALLHANDS_VECTOR_CALLS_H
#define ALLHANDS_VECTOR_CALLS_H

#include "python/comm_object_state.h"
#include "python/inline_calls.h"

CommMethod comm_all_gather_v, comm_gather_v, comm_scatter_v, comm_all_to_all_v;

#endif
