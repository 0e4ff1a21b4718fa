/* Early ends: cancelled, late, or without a peer. */
#ifndef ALLHANDS_P2P_CANCEL_H
#define ALLHANDS_P2P_CANCEL_H

#include "p2p/p2p_state.h"

/* End a message that has not ended, whatever its stage. */
void ah_end_early(ah_p2p *p2p, ah_message *msg, int outcome);
/* Whether all ranks that could be its other end have left. */
bool ah_has_no_peer(const ah_p2p *p2p, const ah_message *msg);
/* End messages to which `applies` applies. Ending one may end others: begin anew after each. */
void ah_end_where(ah_p2p *p2p, bool (*applies)(const ah_p2p *, const ah_message *), int outcome);
/* End asynchronous messages past their deadlines; find the next deadline. */
void ah_expire(ah_p2p *p2p);

#endif
