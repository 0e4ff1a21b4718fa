#include "links/credit.h"

#include <sys/uio.h>

bool ah_credit_take(ah_link *link, const ah_frame *frame) {
    if (frame->kind != AH_FRAME_CREDIT || frame->flags != 0 || frame->length != 0) return false;
    if (frame->total > (uint64_t)(AH_CREDIT_BUDGET - link->credit)) return false;
    link->credit += (int64_t)frame->total;
    link->start += AH_FRAME_HEADER;
    return true;
}

size_t ah_credit_return(ah_link *link, uint8_t header[AH_FRAME_HEADER]) {
    ah_frame frame = {.kind = AH_FRAME_CREDIT, .total = (uint64_t)link->consumed};
    ah_frame_pack(header, &frame);
    struct iovec piece = {header, AH_FRAME_HEADER};
    int64_t sent = link->out < 0 ? -1 : ah_link_write(link, &piece, 1);
    if (sent <= 0) return 0;
    link->consumed = 0;
    return (size_t)sent;
}
