/* The serving thread: it makes progress where no caller waits. */
#ifndef ALLHANDS_P2P_SERVE_H
#define ALLHANDS_P2P_SERVE_H

#include "p2p/p2p_state.h"

/* No caller waits any more: from now on new frames are for the serving thread. */
void ah_hand_to_server(ah_p2p *p2p);
/* A caller waits, and sees new frames: none need wake the serving thread. */
void ah_skip_server(ah_p2p *p2p);

#endif
