/* Queues of messages by stage, and of unexpected messages by tag. */
#ifndef ALLHANDS_P2P_QUEUES_H
#define ALLHANDS_P2P_QUEUES_H

#include <stdlib.h>

#include "p2p/p2p_state.h"

static inline void ah_queue_append(msg_queue *to, ah_message *msg) {
    msg->before = to->last;
    msg->after = NULL;
    *(to->last ? &to->last->after : &to->first) = msg;
    to->last = msg;
}

static inline void ah_queue_remove(msg_queue *from, ah_message *msg) {
    *(msg->before ? &msg->before->after : &from->first) = msg->after;
    *(msg->after ? &msg->after->before : &from->last) = msg->before;
}

/* Receives are matched in the order in which they were posted, also after having been matched. */
static inline void ah_queue_insert(msg_queue *to, ah_message *msg) {
    ah_message *before = to->last;
    while (before && before->order > msg->order) before = before->before;
    msg->before = before;
    msg->after = before ? before->after : to->first;
    *(before ? &before->after : &to->first) = msg;
    *(msg->after ? &msg->after->before : &to->last) = msg;
}

static inline msg_queue *ah_posted_queue(ah_p2p *p2p, uint32_t tag) {
    return &p2p->posted[tag % TAG_BUCKETS];
}

static inline void ah_queue_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    unsigned at = arrived->frame.tag % TAG_BUCKETS;
    ah_unexpected *before = p2p->unexpected[at].last;
    while (before && before->order > arrived->order) before = before->before;
    arrived->before = before;
    arrived->after = before ? before->after : p2p->unexpected[at].first;
    *(before ? &before->after : &p2p->unexpected[at].first) = arrived;
    *(arrived->after ? &arrived->after->before : &p2p->unexpected[at].last) = arrived;
}

static inline void ah_remove_unexpected(ah_p2p *p2p, ah_unexpected *arrived) {
    unsigned at = arrived->frame.tag % TAG_BUCKETS;
    *(arrived->before ? &arrived->before->after : &p2p->unexpected[at].first) = arrived->after;
    *(arrived->after ? &arrived->after->before : &p2p->unexpected[at].last) = arrived->before;
}

static inline void ah_free_unexpected(ah_unexpected *arrived) {
    free(arrived->text);
    free(arrived->payload);
    free(arrived);
}

static inline ah_message *ah_find_receive(ah_p2p *p2p, int peer, uint32_t tag) {
    for (ah_message *msg = ah_posted_queue(p2p, tag)->first; msg; msg = msg->after)
        if (msg->tag == tag && (msg->peer < 0 || msg->peer == peer)) return msg;
    return NULL;
}

#endif
