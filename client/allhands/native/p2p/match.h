/* Matching receives with messages, and transferring the data of rendezvous messages. */
#ifndef ALLHANDS_P2P_MATCH_H
#define ALLHANDS_P2P_MATCH_H

#include "p2p/p2p_state.h"

/* Whether a message is another than its receive expects. */
static inline bool ah_is_mismatch(const ah_message *msg, const ah_frame *frame) {
    return frame->signature != msg->signature || frame->total != msg->nbytes;
}
/* A message has no receive (any more): match it with the first that fits, or queue it. */
void ah_match_unexpected(ah_p2p *p2p, ah_unexpected *arrived);
/* A receive has no message (any more): match it with the first that fits, or queue it. */
void ah_match_receive(ah_p2p *p2p, ah_message *msg);
/* Read some of a message in the sender's memory. */
void ah_read_some(ah_p2p *p2p, ah_message *msg);

#endif
