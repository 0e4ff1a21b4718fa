/* What each kind of frame does when it is received. */
#ifndef ALLHANDS_P2P_HANDLERS_H
#define ALLHANDS_P2P_HANDLERS_H

#include "p2p/p2p_state.h"

/* Handle a frame; false: not now. */
bool ah_handle(ah_p2p *p2p, int peer, const ah_frame *frame);

#endif
