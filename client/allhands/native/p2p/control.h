/* Ends of messages, and the control messages that are sent to peers in order. */
#ifndef ALLHANDS_P2P_CONTROL_H
#define ALLHANDS_P2P_CONTROL_H

#include "p2p/p2p_state.h"

/* End a message, whose memory is its caller's from then on, and wake its waiters. */
void ah_end_and_wake(ah_p2p *p2p, ah_message *msg, int outcome);
/* Withdraw the RTS of a send from the table, before its memory is anything else's. */
void ah_release_rts(ah_p2p *p2p, ah_message *msg);
/* Go on after a control message has been put in the ring. */
void ah_ctrl_sent(ah_p2p *p2p, ah_ctrl_msg *ctrl);
/* What follows its frame. */
const void *ah_data_of(const ah_ctrl_msg *ctrl);
/* Send a frame, if there is room; false: the peer will ring when there is. */
bool ah_put_frame(ah_p2p *p2p, int peer, const ah_frame *frame, const void *data);
/* Send it, or queue it behind what waits to be sent. */
void ah_send_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl);
/* Take back a control message that waits to be sent. */
void ah_unsend_ctrl(ah_p2p *p2p, int peer, ah_ctrl_msg *ctrl);
/* Answer an RTS: CTS, ACK or NACK. */
void ah_send_answer(ah_p2p *p2p, ah_message *msg, ah_frame_kind kind);

#endif
