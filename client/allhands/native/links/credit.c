#include "links/credit.h"

#include <sys/uio.h>

/* Send so many last bytes of the credit frame, as far as they go at once. */
static size_t send_last(ah_link *link, size_t nbytes) {
    struct iovec piece = {link->credit_frame + (AH_FRAME_HEADER - nbytes), nbytes};
    int64_t sent = link->out < 0 ? -1 : ah_link_write(link, &piece, 1);
    return sent > 0 ? (size_t)sent : 0;
}

bool ah_credit_take(ah_link *link, const ah_frame *frame) {
    if (frame->kind != AH_FRAME_CREDIT || frame->flags != 0 || frame->length != 0) return false;
    if (frame->total > (uint64_t)(AH_CREDIT_BUDGET - link->credit)) return false;
    link->credit += (int64_t)frame->total;
    link->start += AH_FRAME_HEADER;
    return true;
}

void ah_credit_return(ah_link *link) {
    if (link->credit_left > 0) {
        link->credit_left -= send_last(link, link->credit_left);
        return;
    }
    ah_frame frame = {.kind = AH_FRAME_CREDIT, .total = (uint64_t)link->consumed};
    ah_frame_pack(link->credit_frame, &frame);
    size_t sent = send_last(link, AH_FRAME_HEADER);
    if (sent == 0) return;
    link->consumed = 0;
    link->credit_left = AH_FRAME_HEADER - sent;
}
