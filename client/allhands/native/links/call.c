#define _GNU_SOURCE
#include "links/call.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "kernels/copy.h"
#include "links/credit.h"

enum {
    AWAITED = 64, /* links that are waited for at once; with more the call is not made here */
    WHOLE_BYTES = 8 << 10, /* payloads from here on do not pass through the link's memory */
    MOVES = 16,            /* of up to a message each, after which a call looks at the time */
};

typedef enum { PARSED_ALL, PARSED_FOREIGN, PARSED_STUCK } parsed;

/* ---------------------------------------------------------------- memory */

static void touch(ah_call *call, const ah_span *span) {
    call->has_landed |= span->area == AH_AREA_OUTPUT && span->nbytes > 0;
}

static void copy(const ah_call *call, const ah_span *source, const ah_span *target) {
    if (source->nbytes)
        memmove(ah_call_locate(call, target), ah_call_locate(call, source), source->nbytes);
}

static void combine(const ah_call *call, const ah_combine *one) {
    const void *operands[AH_CALL_OPERANDS];
    if (one->target.nbytes == 0) return;
    for (int i = 0; i < one->count; i++) operands[i] = ah_call_locate(call, &one->sources[i]);
    ah_fold(call->op, call->type, ah_call_locate(call, &one->target), operands, one->count,
            one->target.nbytes / ah_type_size(call->type), call->divisor);
}

/* ---------------------------------------------------------------- rounds */

static ah_round *current(const ah_call *call) { return &call->rounds[call->at]; }

ah_round *ah_call_sending(const ah_call *call) {
    return call->prepared > call->at ? &call->rounds[call->prepared - 1] : NULL;
}

/* Whether all messages of a round have left, the last encrypted bytes too. */
static bool have_left(const ah_call *call, const ah_round *round) {
    for (int i = 0; i < round->send_count; i++) {
        const ah_send *send = &round->sends[i];
        if (!ah_send_is_whole(send) || call->links[send->link]->has_unsent) return false;
    }
    return true;
}

/* Whether a frame of the call has left in part. */
static bool is_amid_frame(const ah_call *call, int link) {
    const ah_round *round = ah_call_sending(call);
    for (int i = 0; round != NULL && i < round->send_count; i++) {
        const ah_send *send = &round->sends[i];
        if (send->link == link && send->sent > 0 && !ah_send_is_whole(send)) return true;
    }
    return false;
}

/* Whether all messages of a round go unasked. */
static bool is_short(const ah_round *round) {
    for (int i = 0; i < round->send_count; i++)
        if (round->sends[i].span.nbytes > AH_CALL_EAGER) return false;
    for (int i = 0; i < round->recv_count; i++)
        if (round->recvs[i].span.nbytes > AH_CALL_EAGER) return false;
    return true;
}

/* Whether a message has begun to leave, or its peer has room for it. */
static bool has_credit(const ah_call *call, const ah_send *send) {
    return send->sent > 0 || (int64_t)send->span.nbytes <= call->links[send->link]->credit;
}

static uint32_t get_flags(const ah_call *call) { return call->has_digests ? AH_FRAME_DIGEST : 0; }

static ah_frame make_frame(const ah_call *call, uint32_t step, size_t nbytes) {
    return (ah_frame){.kind = AH_FRAME_DATA,
                      .group = call->group,
                      .sequence = call->sequence,
                      .step = step,
                      .part = call->part,
                      .signature = call->signature,
                      .total = nbytes,
                      .length = (uint32_t)nbytes,
                      .flags = get_flags(call)};
}

static void pack(const ah_call *call, uint32_t step, size_t nbytes, uint32_t digest,
                 uint8_t *header) {
    ah_frame frame = make_frame(call, step, nbytes);
    frame.digest = digest;
    ah_frame_pack(header, &frame);
}

/* Have the messages of the next round leave. */
static void prepare_sends(ah_call *call) {
    ah_round *round = &call->rounds[call->prepared++];
    for (int i = 0; i < round->send_count; i++) {
        ah_send *send = &round->sends[i];
        pack(call, send->step, send->span.nbytes, 0, send->header);
        send->payload = ah_call_locate(call, &send->span);
        send->sent = 0;
        send->is_signed = false;
    }
}

static void begin_round(ah_call *call) {
    ah_round *round = current(call);
    for (int i = 0; i < round->move_count; i++) {
        touch(call, &round->moves[i].target);
        copy(call, &round->moves[i].source, &round->moves[i].target);
    }
    for (int i = 0; i < round->combine_count; i++) {
        touch(call, &round->combines[i].target);
        combine(call, &round->combines[i]);
    }
    if (call->prepared == call->at) prepare_sends(call);
    for (int i = 0; i < round->recv_count; i++) {
        ah_recv *recv = &round->recvs[i];
        recv->target =
            recv->is_direct ? ah_call_locate(call, &recv->span) : call->staging + recv->place;
        recv->came = 0;
        recv->is_begun = recv->is_whole = false;
    }
    call->is_begun = true;
}

/* Whether the next round's messages may leave now. The credit that their peers need to go on goes
 * before them: none of it may have to wait behind a message that its receiver does not take yet. */
static bool may_send_ahead(const ah_call *call) {
    if (call->prepared != call->at + 1 || call->prepared == call->round_count) return false;
    const ah_round *round = &call->rounds[call->prepared], *now = current(call);
    if (!round->is_ahead || !is_short(round) || !have_left(call, now)) return false;
    for (int i = 0; i < round->send_count; i++) {
        const ah_link *link = call->links[round->sends[i].link];
        if (link->credit_left > 0 || link->consumed >= AH_CREDIT_STEP || link->has_unsent)
            return false;
    }
    return true;
}

/* Whether nothing waits on any link of the call: behind the call nobody would send it. */
static bool are_clear(const ah_call *call) {
    for (int i = 0; i < call->link_count; i++)
        if (call->links[i]->credit_left > 0 || call->links[i]->has_unsent) return false;
    return true;
}

static bool is_over(const ah_call *call) {
    const ah_round *round = current(call);
    if (call->prepared == call->at + 1 && !have_left(call, round))
        return false; /* else they have */
    for (int i = 0; i < round->recv_count; i++)
        if (!round->recvs[i].is_whole) return false;
    return call->at + 1 < call->round_count || are_clear(call);
}

static void land(const ah_call *call, const ah_recv *recv) {
    if (recv->is_direct || recv->span.nbytes == 0) return;
    uint8_t *target = ah_call_locate(call, &recv->span);
    if (!recv->reduces) {
        ah_copy_bytes(target, recv->target, recv->span.nbytes);
        return;
    }
    const void *operands[2] = {recv->is_left ? recv->target : target,
                               recv->is_left ? target : recv->target};
    /* What an average adds up is divided at its end. */
    ah_fold(call->op == AH_AVG ? AH_SUM : call->op, call->type, target, operands, 2,
            recv->span.nbytes / ah_type_size(call->type), 1);
}

/* Give back what the rounds that have ended took in, between two frames. */
static void return_credit(const ah_call *call) {
    for (int i = 0; i < call->link_count; i++) {
        ah_link *link = call->links[i];
        if (link->credit_left > 0 ||
            (link->consumed >= AH_CREDIT_STEP && !link->has_unsent && !is_amid_frame(call, i)))
            ah_credit_return(link);
    }
}

static void end_round(ah_call *call) {
    ah_round *round = current(call);
    for (int i = 0; i < round->recv_count; i++) {
        const ah_recv *recv = &round->recvs[i];
        touch(call, &recv->span);
        land(call, recv);
        call->links[recv->link]->consumed += (int64_t)recv->span.nbytes;
    }
    call->at++;
    call->is_begun = false;
}

/* ---------------------------------------------------------------- sending */

/* Give a message that leaves next its digest, where it needs one; false: that is not possible. */
static bool sign(const ah_call *call, ah_send *send) {
    ah_link *link = call->links[send->link];
    if (!call->has_digests || send->sent > 0) return true;
    /* Frames that others send meanwhile are counted as well. */
    if (send->is_signed && send->number == link->signed_frames) return true;
    ah_frame frame = make_frame(call, send->step, send->span.nbytes);
    if (!ah_frame_digest(link->signer, link->signed_frames, &frame, send->payload, &frame.digest))
        return false;
    ah_frame_pack(send->header, &frame);
    send->number = link->signed_frames;
    send->is_signed = true;
    return true;
}

/* Send what goes at once; false: a link has failed. `*moved`: something went. */
static bool send_more(ah_call *call, bool *moved) {
    ah_round *round = ah_call_sending(call);
    for (int i = 0; i < call->link_count; i++) {
        ah_link *link = call->links[i];
        if (link->has_unsent && (link->out < 0 || !ah_link_flush(link))) return false;
    }
    for (int i = 0; i < round->send_count; i++) {
        ah_send *send = &round->sends[i];
        ah_link *link = call->links[send->link];
        bool is_blocked =
            ah_send_is_whole(send) || link->credit_left > 0 || !has_credit(call, send);
        for (int k = 0; k < i && !is_blocked; k++) /* in their order */
            is_blocked = round->sends[k].link == send->link && !ah_send_is_whole(&round->sends[k]);
        if (is_blocked) continue;
        if (link->out < 0 || !sign(call, send)) return false;
        struct iovec pieces[2];
        int count = 0;
        size_t past = 0;
        if (send->sent < AH_FRAME_HEADER)
            pieces[count++] =
                (struct iovec){send->header + send->sent, AH_FRAME_HEADER - send->sent};
        else
            past = send->sent - AH_FRAME_HEADER;
        if (send->span.nbytes > past)
            pieces[count++] =
                (struct iovec){(void *)(send->payload + past), send->span.nbytes - past};
        int64_t sent = ah_link_write(link, pieces, count);
        if (sent < 0) return false;
        if (sent > 0 && send->sent == 0) {
            link->credit -= (int64_t)send->span.nbytes;
            link->signed_frames += call->has_digests;
        }
        send->sent += (size_t)sent;
        *moved |= sent > 0;
    }
    return true;
}

/* ---------------------------------------------------------------- receiving */

/* The first message of the round from a link that has not come whole; before it begins none. */
static ah_recv *find_due(const ah_call *call, int link) {
    ah_round *round = current(call);
    for (int i = 0; call->is_begun && i < round->recv_count; i++)
        if (round->recvs[i].link == link && !round->recvs[i].is_whole) return &round->recvs[i];
    return NULL;
}

static bool is_of_call(const ah_call *call, const ah_frame *frame) {
    return frame->group == call->group && !(frame->flags & AH_FRAME_P2P);
}

/* Whether a frame is the whole message that is due. */
static bool is_due(const ah_call *call, const ah_frame *frame, const ah_recv *due) {
    return due != NULL && frame->kind == AH_FRAME_DATA && frame->flags == get_flags(call) &&
           frame->epoch == 0 && frame->sequence == call->sequence && frame->part == call->part &&
           frame->step == due->step && frame->signature == call->signature &&
           frame->total == due->span.nbytes && frame->offset == 0 &&
           frame->length == due->span.nbytes;
}

/* Whether a frame belongs to a later round, part or call, whose turn comes. */
static bool is_early(const ah_call *call, const ah_frame *frame) {
    switch (frame->kind) {
    case AH_FRAME_DATA:
    case AH_FRAME_CTS:
    case AH_FRAME_RTS:
    case AH_FRAME_CALL: break;
    default: return false;
    }
    if (frame->sequence != call->sequence) return frame->sequence > call->sequence;
    if (frame->kind != AH_FRAME_DATA || frame->flags != get_flags(call) ||
        frame->signature != call->signature)
        return false;
    if (frame->part != call->part) return frame->part > call->part;
    return frame->step >> 12 >= (uint32_t)call->at + call->is_begun;
}

/* The digest that a message which has come should have as the frame of that number; false: none can
 * be made. */
static bool compute_digest(const ah_call *call, const ah_recv *recv, uint64_t number,
                           uint32_t *digest) {
    ah_frame frame = make_frame(call, recv->step, recv->span.nbytes);
    return ah_frame_digest(call->links[recv->link]->verifier, number, &frame, recv->target, digest);
}

/* Take in a message of which all bytes have come; false: they may not be those that were sent. */
static bool take_in(const ah_call *call, ah_recv *recv) {
    ah_link *link = call->links[recv->link];
    if (call->has_digests) {
        uint32_t digest;
        if (!compute_digest(call, recv, link->verified_frames, &digest) || digest != recv->digest)
            return false;
        link->verified_frames++;
    }
    recv->is_whole = true;
    return true;
}

/* Use what a link has read ahead, as far as it is of this round. */
static parsed parse(ah_call *call, int at, bool *moved) {
    ah_link *link = call->links[at];
    for (;;) {
        ah_recv *due = find_due(call, at);
        if (due != NULL && due->is_begun && due->came == due->span.nbytes) {
            /* Who looks at the links next finds out what is wrong with it. */
            if (!take_in(call, due)) return PARSED_STUCK;
            *moved = true;
            continue;
        }
        if (ah_link_pending(link) == 0) return PARSED_ALL;
        if (due != NULL && due->is_begun) { /* the payload goes on */
            size_t room = due->span.nbytes - due->came, have = ah_link_pending(link);
            size_t nbytes = room < have ? room : have;
            ah_copy_bytes(due->target + due->came, link->data + link->start, nbytes);
            link->start += nbytes;
            due->came += nbytes;
            *moved = true;
            continue;
        }
        if (ah_link_pending(link) < AH_FRAME_HEADER) return PARSED_ALL;
        ah_frame frame;
        if (!ah_frame_unpack(link->data + link->start, &frame)) return PARSED_STUCK;
        if (ah_credit_take(link, &frame)) {
            *moved = true;
            continue;
        }
        if (is_of_call(call, &frame)) {
            if (is_due(call, &frame, due)) {
                link->start += AH_FRAME_HEADER;
                due->is_begun = true;
                due->digest = frame.digest;
                if (due->is_direct) touch(call, &due->span);
                *moved = true;
                continue;
            }
            /* Nothing of this round follows it. */
            if (is_early(call, &frame)) return due == NULL ? PARSED_ALL : PARSED_STUCK;
            if (frame.kind == AH_FRAME_DATA || frame.kind == AH_FRAME_CTS ||
                frame.kind == AH_FRAME_RTS)
                return PARSED_STUCK;
        }
        /* Who ends the link takes no more of it, and the call may have to give back what came. */
        if (frame.kind == AH_FRAME_BYE) return PARSED_STUCK;
        size_t nbytes = AH_FRAME_HEADER + frame.length;
        if (ah_link_pending(link) < nbytes)
            return nbytes > AH_LINK_ROOM ? PARSED_STUCK : PARSED_ALL;
        call->foreign = at;
        call->foreign_bytes = nbytes;
        return PARSED_FOREIGN;
    }
}

/* Leave the bytes that came behind a header at the message's place, if they are its payload; else
 * they are read ahead. Credit often comes before a message. False: no memory. */
static bool place_payload(const ah_call *call, ah_link *link, ah_recv *due, size_t nbytes) {
    const uint8_t *at = due->target;
    ah_frame frame;
    while (ah_link_pending(link) >= AH_FRAME_HEADER &&
           ah_frame_unpack(link->data + link->start, &frame)) {
        if (is_of_call(call, &frame) && is_due(call, &frame, due)) {
            link->start += AH_FRAME_HEADER;
            due->is_begun = true;
            due->digest = frame.digest;
            if (at != due->target) memmove(due->target, at, nbytes);
            due->came += nbytes;
            return true;
        }
        if (!ah_credit_take(link, &frame)) break;
        size_t header = nbytes < AH_FRAME_HEADER ? nbytes : AH_FRAME_HEADER;
        if (!ah_link_feed(link, at, header)) return false;
        at += header;
        nbytes -= header;
    }
    return ah_link_feed(link, at, nbytes);
}

/* Read once from an encrypted link, as read_link. */
static bool read_encrypted(ah_link *link, ah_recv *due, bool *moved) {
    size_t direct = 0;
    int64_t came;
    if (due != NULL && due->is_begun)
        came = link->opener->read(link->opener, link, due->target + due->came,
                                  due->span.nbytes - due->came, &direct);
    else
        came = ah_link_read_ahead(link);
    if (direct) due->came += direct;
    *moved |= came > 0;
    return came >= 0;
}

/* Read once from a link; false: it has ended, or failed. */
static bool read_link(ah_call *call, int at, bool *moved) {
    ah_link *link = call->links[at];
    ah_recv *due = find_due(call, at);
    struct iovec pieces[2];
    int count = 1;
    size_t ahead = 0; /* bytes for the link's own memory */
    if (link->in < 0) return false;
    if (link->opener != NULL) return read_encrypted(link, due, moved);
    if (due != NULL && due->is_begun) {
        pieces[0] = (struct iovec){due->target + due->came, due->span.nbytes - due->came};
    } else {
        size_t held = ah_link_pending(link);
        if (held == 0) link->start = link->end = 0;
        if (!ah_link_reserve(link, AH_FRAME_HEADER)) return false;
        ahead = link->room - link->end;
        if (due != NULL && due->span.nbytes >= WHOLE_BYTES && held < AH_FRAME_HEADER) {
            ahead = AH_FRAME_HEADER - held;
            /* Memory of its own may be written before it is known what comes. */
            if (!due->is_direct) pieces[count++] = (struct iovec){due->target, due->span.nbytes};
        }
        pieces[0] = (struct iovec){link->data + link->end, ahead};
    }
    ssize_t came = readv(link->in, pieces, count);
    if (came == 0) return false;
    if (came < 0) return errno == EAGAIN || errno == EINTR;
    *moved = true;
    if (ahead == 0) {
        due->came += (size_t)came;
        return true;
    }
    size_t own = (size_t)came < ahead ? (size_t)came : ahead, rest = (size_t)came - own;
    link->end += own;
    return rest == 0 || place_payload(call, link, due, rest);
}

/* ---------------------------------------------------------------- waiting */

static void wait_for_links(const ah_call *call, int64_t nanoseconds) {
    struct pollfd wanted[3 * AWAITED];
    nfds_t count = 0;
    const ah_round *round = current(call), *sending = ah_call_sending(call);
    for (int i = 0; i < round->recv_count && count < AWAITED; i++)
        if (!round->recvs[i].is_whole)
            wanted[count++] = (struct pollfd){call->links[round->recvs[i].link]->in, POLLIN, 0};
    for (int i = 0; i < sending->send_count && count < 2 * AWAITED; i++) {
        const ah_send *send = &sending->sends[i];
        const ah_link *link = call->links[send->link];
        if (ah_send_is_whole(send)) continue;
        if (has_credit(call, send))
            wanted[count++] = (struct pollfd){link->out, POLLOUT, 0};
        else if (sending == round) /* what is ahead does not ask for credit: see `receive` */
            wanted[count++] = (struct pollfd){link->in, POLLIN, 0};
    }
    for (int i = 0; i < call->link_count && count < 3 * AWAITED; i++)
        if (call->links[i]->credit_left > 0 || call->links[i]->has_unsent)
            wanted[count++] = (struct pollfd){call->links[i]->out, POLLOUT, 0};
    struct timespec timeout = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    ppoll(wanted, count, &timeout, NULL);
}

/* Parse and read once from a link, if a message is due; or for credit, if it `seeks` that. */
static ah_call_status read_once(ah_call *call, int at, bool seeks, bool *moved) {
    parsed outcome = parse(call, at, moved);
    if (outcome == PARSED_ALL && (seeks || find_due(call, at) != NULL)) {
        bool came = false;
        if (!read_link(call, at, &came)) return AH_CALL_STUCK;
        *moved |= came;
        if (came) outcome = parse(call, at, moved);
    }
    if (outcome == PARSED_FOREIGN) return AH_CALL_FOREIGN;
    return outcome == PARSED_STUCK ? AH_CALL_STUCK : AH_CALL_DONE;
}

/* Parse and read once from every link that the round waits for: for a message, or for the credit to
 * send one. */
static ah_call_status receive(ah_call *call, bool *moved) {
    const ah_round *round = current(call);
    for (int i = 0; i < round->recv_count; i++) {
        if (round->recvs[i].is_whole) continue;
        ah_call_status status = read_once(call, round->recvs[i].link, false, moved);
        if (status != AH_CALL_DONE) return status;
    }
    for (int i = 0; i < round->send_count; i++) {
        const ah_send *send = &round->sends[i];
        if (has_credit(call, send) || find_due(call, send->link) != NULL) continue;
        ah_call_status status = read_once(call, send->link, true, moved);
        if (status != AH_CALL_DONE) return status;
    }
    return AH_CALL_DONE;
}

void ah_call_begin(ah_call *call, uint64_t sequence, const ah_memory memory[AH_AREAS]) {
    call->sequence = sequence;
    memcpy(call->memory, memory, sizeof call->memory);
    call->at = call->prepared = 0;
    call->is_begun = call->has_landed = false;
    call->foreign = -1;
}

/* Whether a call of which more came or left, that often, has gone on for long enough. */
static bool is_over_time(int moves, int64_t until) {
    return moves % MOVES == 0 && ah_link_now() >= until;
}

static ah_call_status run(ah_call *call, int64_t until, int64_t spin) {
    int64_t idle_since = 0;
    int moves = 0;
    while (call->at < call->round_count) {
        if (!call->is_begun) {
            if (!is_short(current(call))) return AH_CALL_STUCK;
            begin_round(call);
        }
        return_credit(call);
        bool moved = false;
        if (!send_more(call, &moved)) return AH_CALL_STUCK;
        ah_call_status status = receive(call, &moved);
        if (status != AH_CALL_DONE) return status;
        bool is_ended = is_over(call);
        if (is_ended) end_round(call);
        if (is_ended || moved) {
            if (is_over_time(++moves, until) && call->at < call->round_count) return AH_CALL_LATE;
            idle_since = 0;
            continue;
        }
        if (may_send_ahead(call)) { /* there is nothing else to do */
            prepare_sends(call);
            continue;
        }
        int64_t at = ah_link_now();
        if (at >= until) return AH_CALL_LATE;
        if (idle_since == 0) idle_since = at;
        if (at - idle_since < spin)
            sched_yield();
        else
            wait_for_links(call, until - at);
    }
    return AH_CALL_DONE;
}

ah_call_status ah_call_run(ah_call *call, int64_t until, int64_t spin) {
    ah_call_status status = run(call, until, spin);
    for (int i = 0; i < call->link_count; i++)
        call->links[i]->has_rest = call->links[i]->credit_left > 0 || is_amid_frame(call, i);
    return status;
}

bool ah_call_has_come(const ah_call *call) {
    bool has_come = call->at > 0;
    for (int i = 0; call->is_begun && !has_come && i < current(call)->recv_count; i++)
        has_come = current(call)->recvs[i].is_begun;
    return has_come;
}

const uint8_t *ah_call_take_foreign(ah_call *call, int *link, size_t *nbytes) {
    *link = call->foreign;
    *nbytes = call->foreign_bytes;
    ah_link *from = call->links[call->foreign];
    const uint8_t *frame = from->data + from->start;
    from->start += call->foreign_bytes;
    call->foreign = -1;
    return frame;
}

/* Put a message back as the bytes that came of it. */
static bool give_back(const ah_call *call, const ah_recv *recv) {
    ah_link *link = call->links[recv->link];
    uint8_t header[AH_FRAME_HEADER];
    uint32_t digest = recv->digest;
    /* Others may have been taken in since: it is the next one again, under a new number. */
    if (recv->is_whole && call->has_digests &&
        !compute_digest(call, recv, --link->verified_frames, &digest))
        return false;
    pack(call, recv->step, recv->span.nbytes, digest, header);
    return ah_link_unread(link, recv->target, recv->came) &&
           ah_link_unread(link, header, sizeof header);
}

bool ah_call_withdraw(ah_call *call) {
    if (!call->is_begun) return true;
    ah_round *round = current(call);
    for (int i = round->recv_count; i-- > 0;) /* the last first: each goes before those there */
        if (round->recvs[i].is_begun) {
            if (!give_back(call, &round->recvs[i])) return false;
            round->recvs[i].is_begun = round->recvs[i].is_whole = false;
            round->recvs[i].came = 0;
        }
    return true;
}
