/* exchange where one rank alone sends anything, or one alone receives anything, as all ranks know.
 *
 * A sender whose messages fit its slot, or the staging that it may fill ahead (staged_copy.h), does
 * not wait for anybody.
 */
#ifndef ALLHANDS_ROOTED_EXCHANGE_H
#define ALLHANDS_ROOTED_EXCHANGE_H

#include "collectives/collectives.h"

/* In a call that has started; of two ranks and more. */
ah_status ah_rooted_exchange(ah_comm *comm, uint64_t signature, const ah_messages *messages);

#endif
