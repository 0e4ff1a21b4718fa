/* Comparison of results: a second meeting of a call's ranks, at its end, in the same slot. */
#ifndef ALLHANDS_RESULT_CHECK_H
#define ALLHANDS_RESULT_CHECK_H

#include "comm/comm_state.h"

/* Publish the digest of this rank's result, await the others', and compare: AH_DIFFERENT says whose
 * are unlike most. Law 3 holds for digests as for data: no rank posts the next call before it has
 * read those of this one. */
ah_status ah_compare_results(ah_comm *comm);

#endif
