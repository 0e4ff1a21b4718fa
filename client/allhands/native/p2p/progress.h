/* Progress: receive frames, send what waits for room, read what lies with its sender. */
#ifndef ALLHANDS_P2P_PROGRESS_H
#define ALLHANDS_P2P_PROGRESS_H

#include "p2p/p2p_state.h"

/* Handle frames of a peer; return whether there were any. */
bool ah_drain(ah_p2p *p2p, int peer);
/* Do what can be done now; return whether there was anything. */
bool ah_progress(ah_p2p *p2p);

#endif
