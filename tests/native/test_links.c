/* Calls and messages over links of one process: what is due is taken, all else is left as it came.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "links/call.h"
#include "links/credit.h"
#include "links/message.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "test_links:%d: not so: %s\n", __LINE__, #what);                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { ELEMENTS = 4, NBYTES = ELEMENTS * sizeof(float) };
enum { LONG = 8192, LONG_BYTES = LONG * sizeof(float) }; /* read to its place as it comes */

static int64_t soon(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + 1000000;
}

static ah_frame data(uint64_t sequence, uint64_t signature) {
    return (ah_frame){.kind = AH_FRAME_DATA,
                      .group = 7,
                      .sequence = sequence,
                      .signature = signature,
                      .total = NBYTES,
                      .length = NBYTES};
}

static void put(int to, const ah_frame *frame, const float *values) {
    uint8_t bytes[AH_FRAME_HEADER + LONG_BYTES];
    ah_frame_pack(bytes, frame);
    if (frame->length) memcpy(bytes + AH_FRAME_HEADER, values, frame->length);
    CHECK(write(to, bytes, AH_FRAME_HEADER + frame->length) ==
          (ssize_t)(AH_FRAME_HEADER + frame->length));
}

/* One round of a pair: send the array, and add what comes. */
static ah_call_status sum_bytes(ah_link *link, float *values, size_t nbytes, ah_call *call) {
    static uint8_t staging[LONG_BYTES];
    static ah_send send;
    static ah_recv recv;
    static ah_round round = {.sends = &send, .recvs = &recv, .send_count = 1, .recv_count = 1};
    static ah_link *links[1];
    static ah_piece piece;
    ah_span whole = {AH_AREA_OUTPUT, 0, nbytes};
    links[0] = link;
    send = (ah_send){.span = whole};
    recv = (ah_recv){.span = whole, .reduces = true};
    piece = (ah_piece){(uint8_t *)values, nbytes};
    *call = (ah_call){.links = links,
                      .link_count = 1,
                      .rounds = &round,
                      .round_count = 1,
                      .group = 7,
                      .signature = 99,
                      .op = AH_SUM,
                      .type = AH_FLOAT32,
                      .divisor = 2,
                      .staging = staging,
                      .staging_bytes = nbytes};
    ah_memory memory[AH_AREAS] = {[AH_AREA_OUTPUT] = {&piece, 1}};
    ah_call_begin(call, 5, memory);
    return ah_call_run(call, soon(), 0);
}

static ah_call_status sum(ah_link *link, float *values, ah_call *call) {
    return sum_bytes(link, values, NBYTES, call);
}

static ah_frame credit(uint64_t nbytes) {
    return (ah_frame){.kind = AH_FRAME_CREDIT, .total = nbytes};
}

/* Credit before messages is taken in at once, unless it is more than there can be. */
static void test_credit_taken(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ah_link link = {.in = ends[0], .out = ends[0], .credit = LONG_BYTES};
    ah_call call;
    const float theirs[ELEMENTS] = {1, 2, 3, 4};
    static float longer[LONG], mine[LONG];
    ah_frame due = data(5, 99), some = credit(1000), long_due = data(5, 99);
    long_due.total = long_due.length = LONG_BYTES;
    put(ends[1], &some, NULL);
    put(ends[1], &due, theirs);
    CHECK(sum(&link, mine, &call) == AH_CALL_DONE && mine[3] == 4);
    CHECK(link.credit == LONG_BYTES + 1000 - NBYTES && ah_link_pending(&link) == 0);

    /* So before one that is read to its place, wherever a read ends. */
    for (size_t cut = 1; cut <= 4 * AH_FRAME_HEADER; cut += AH_FRAME_HEADER / 2 - 1) {
        link.credit = LONG_BYTES;
        for (int i = 0; i < LONG; i++) longer[i] = (float)i, mine[i] = (float)cut;
        uint8_t bytes[3 * AH_FRAME_HEADER + LONG_BYTES];
        ah_frame_pack(bytes, &some);
        ah_frame_pack(bytes + AH_FRAME_HEADER, &some);
        ah_frame_pack(bytes + 2 * AH_FRAME_HEADER, &long_due);
        memcpy(bytes + 3 * AH_FRAME_HEADER, longer, LONG_BYTES);
        CHECK(write(ends[1], bytes, cut) == (ssize_t)cut);
        CHECK(sum_bytes(&link, mine, LONG_BYTES, &call) == AH_CALL_LATE);
        CHECK(write(ends[1], bytes + cut, sizeof bytes - cut) == (ssize_t)(sizeof bytes - cut));
        CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_DONE);
        for (int i = 0; i < LONG; i++) CHECK(mine[i] == (float)i + (float)cut);
        CHECK(link.credit == 2000 && ah_link_pending(&link) == 0);
        static uint8_t rest[AH_FRAME_HEADER + LONG_BYTES];
        CHECK(read(ends[1], rest, sizeof rest) > 0); /* what was sent */
        while (read(ends[1], rest, sizeof rest) > 0) continue;
    }

    float got[ELEMENTS] = {0};
    size_t foreign = 0;
    ah_frame wanted = data(1, 3), excess = credit(AH_CREDIT_BUDGET - 2000 + 1);
    wanted.flags = AH_FRAME_P2P;
    put(ends[1], &some, NULL);
    put(ends[1], &wanted, theirs);
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) == AH_MESSAGE_DONE);
    CHECK(got[3] == 4 && link.credit == 3000);
    put(ends[1], &excess, NULL);
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) ==
          AH_MESSAGE_FOREIGN);
    CHECK(link.credit == 3000 && foreign == AH_FRAME_HEADER);
    ah_link_free(&link);
    close(ends[0]);
    close(ends[1]);
}

/* What was taken in is given back in one frame, where the link takes it. */
static void test_credit_returned(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ah_link link = {.in = -1, .out = ends[0], .consumed = 12345};
    uint8_t came[AH_FRAME_HEADER + 1];
    ah_credit_return(&link);
    CHECK(link.consumed == 0 && link.credit_left == 0);
    CHECK(read(ends[1], came, sizeof came) == AH_FRAME_HEADER);
    ah_frame frame;
    CHECK(ah_frame_unpack(came, &frame) && frame.kind == AH_FRAME_CREDIT && frame.total == 12345);

    link.consumed = 7;
    while (write(ends[0], came, sizeof came) > 0) continue;
    ah_credit_return(&link);
    CHECK(link.consumed == 7 && link.credit_left == 0);
    link.out = -1;
    ah_credit_return(&link);
    CHECK(link.consumed == 7 && link.credit_left == 0);

    /* What has not left of it goes first. */
    while (read(ends[1], came, sizeof came) > 0) continue;
    link.out = ends[0];
    link.credit_left = 3;
    memcpy(link.credit_frame + AH_FRAME_HEADER - 3, "abc", 3);
    ah_credit_return(&link);
    CHECK(link.consumed == 7 && link.credit_left == 0);
    CHECK(read(ends[1], came, sizeof came) == 3 && memcmp(came, "abc", 3) == 0);
    close(ends[0]);
    close(ends[1]);
}

/* A call whose rounds end one after the other looks at the time in their midst. */
static void test_time_of_a_call_that_moves_on(void) {
    enum { ROUNDS = 40 };
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ah_link link = {.in = ends[0], .out = ends[0]}, *links[] = {&link};
    float mine[ELEMENTS] = {0};
    ah_piece piece = {(uint8_t *)mine, NBYTES};
    ah_recv recvs[ROUNDS];
    ah_round rounds[ROUNDS];
    uint8_t staging[64];
    for (uint32_t at = 0; at < ROUNDS; at++) {
        float theirs[ELEMENTS] = {(float)at};
        ah_frame frame = data(5, 99);
        frame.step = at << 12;
        put(ends[1], &frame, theirs);
        recvs[at] = (ah_recv){.step = at << 12, .span = {AH_AREA_OUTPUT, 0, NBYTES}};
        rounds[at] = (ah_round){.recvs = &recvs[at], .recv_count = 1};
    }
    ah_call call = {.links = links,
                    .link_count = 1,
                    .rounds = rounds,
                    .round_count = ROUNDS,
                    .group = 7,
                    .signature = 99,
                    .staging = staging,
                    .staging_bytes = sizeof staging};
    ah_memory memory[AH_AREAS] = {[AH_AREA_OUTPUT] = {&piece, 1}};
    ah_call_begin(&call, 5, memory);
    CHECK(ah_call_run(&call, ah_link_now(), 0) == AH_CALL_LATE);
    CHECK(call.at > 0 && call.at < ROUNDS && mine[0] == (float)(call.at - 1));
    CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_DONE);
    CHECK(mine[0] == ROUNDS - 1);
    ah_link_free(&link);
    close(ends[0]);
    close(ends[1]);
}

/* Take what a peer has been sent, and add the rounds of its messages: how many there are. */
static int read_rounds(int from, int *rounds, int count) {
    static uint8_t bytes[8 * (AH_FRAME_HEADER + NBYTES)];
    ssize_t came = read(from, bytes, sizeof bytes), at = 0;
    while (at < came) {
        ah_frame frame;
        CHECK(ah_frame_unpack(bytes + at, &frame));
        if (frame.kind == AH_FRAME_DATA) rounds[count++] = (int)(frame.step >> 12);
        at += AH_FRAME_HEADER + (ssize_t)frame.length;
    }
    return count;
}

/* While a round waits, the messages of the next leave, if it sends nothing that is to come or to be
 * copied, and its peer has room; those of the one after it do not. */
static void test_messages_ahead(void) {
    enum { ROUNDS = 3 };
    static const struct {
        size_t sent;    /* where what the second round sends lies, behind what the first receives */
        bool is_copied; /* it is copied there first */
        int64_t credit, consumed;
        bool is_ahead;
    } cases[] = {
        {NBYTES, false, 1000, 0, true},
        {NBYTES - 4, false, 1000, 0, false},
        {NBYTES, true, 1000, 0, false},
        {NBYTES, false, NBYTES, 0, false},
        {NBYTES, false, 1000, AH_CREDIT_STEP, true}, /* credit goes before it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ends[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
        ah_link link = {.in = ends[0], .out = ends[0], .credit = cases[i].credit};
        ah_link *links[] = {&link};
        float mine[8 * ELEMENTS] = {0};
        ah_piece piece = {(uint8_t *)mine, sizeof mine};
        ah_send sends[ROUNDS];
        ah_recv recvs[ROUNDS];
        ah_round rounds[ROUNDS];
        uint8_t staging[64];
        ah_move move = {.source = {AH_AREA_OUTPUT, 5 * NBYTES, NBYTES},
                        .target = {AH_AREA_OUTPUT, cases[i].sent, NBYTES}};
        for (uint32_t at = 0; at < ROUNDS; at++) {
            size_t start = at == 1 ? cases[i].sent : 3 * NBYTES;
            sends[at] = (ah_send){.step = at << 12, .span = {AH_AREA_OUTPUT, start, NBYTES}};
            recvs[at] = (ah_recv){.step = at << 12, .span = {AH_AREA_OUTPUT, 0, NBYTES}};
            rounds[at] = (ah_round){
                .sends = &sends[at], .recvs = &recvs[at], .send_count = 1, .recv_count = 1};
        }
        if (cases[i].is_copied) rounds[1].moves = &move, rounds[1].move_count = 1;
        ah_call call = {.links = links,
                        .link_count = 1,
                        .rounds = rounds,
                        .round_count = ROUNDS,
                        .group = 7,
                        .signature = 99,
                        .staging = staging,
                        .staging_bytes = sizeof staging};
        ah_memory memory[AH_AREAS] = {[AH_AREA_OUTPUT] = {&piece, 1}};
        ah_call_plan_ahead(&call);
        ah_call_begin(&call, 5, memory);
        CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_LATE && call.at == 0);
        CHECK(!ah_call_has_come(&call));
        int left[2 * ROUNDS], count = read_rounds(ends[1], left, 0);
        CHECK(count == 1 + cases[i].is_ahead);
        CHECK(link.credit == cases[i].credit - count * NBYTES && link.consumed == 0);
        const float theirs[ELEMENTS] = {1, 2, 3, 4};
        for (uint32_t at = 0; at < ROUNDS; at++) {
            ah_frame frame = data(5, 99), more = credit(NBYTES);
            frame.step = at << 12;
            put(ends[1], &more, NULL);
            put(ends[1], &frame, theirs);
            CHECK(ah_call_run(&call, soon(), 0) == (at + 1 < ROUNDS ? AH_CALL_LATE : AH_CALL_DONE));
            CHECK(call.at == (int)at + 1 && ah_call_has_come(&call));
        }
        count = read_rounds(ends[1], left, count);
        CHECK(count == ROUNDS && left[0] == 0 && left[1] == 1 && left[2] == 2);
        ah_link_free(&link);
        close(ends[0]);
        close(ends[1]);
    }
}

/* A channel that takes all, and gives nothing of it to the connection before it `lets`. */
typedef struct {
    ah_channel channel;
    bool lets;
} Keeper;

static int64_t keep(ah_channel *channel, ah_link *link, const struct iovec *pieces, int count) {
    (void)channel;
    int64_t taken = 0;
    for (int i = 0; i < count; i++) taken += (int64_t)pieces[i].iov_len;
    link->has_unsent = true;
    return taken;
}

static bool let_go(ah_channel *channel, ah_link *link) {
    link->has_unsent = !((Keeper *)channel)->lets;
    return true;
}

/* A call does not end before all that it gave to any link has left, also where another link has the
 * messages of the last round; nor does one with a frame of credit that has left in part. */
static void test_call_ends_when_all_has_left(void) {
    int ends[2], others[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, others) == 0);
    Keeper keeper = {.channel = {.write = keep, .flush = let_go}};
    ah_link first = {.in = ends[0], .out = ends[0], .credit = 1000, .sealer = &keeper.channel};
    ah_link second = {.in = others[0], .out = others[0], .credit = 1000},
            *links[] = {&first, &second};
    float mine[ELEMENTS] = {0};
    ah_piece piece = {(uint8_t *)mine, NBYTES};
    ah_send sends[2];
    ah_round rounds[2];
    for (uint32_t at = 0; at < 2; at++) {
        sends[at] =
            (ah_send){.link = (int)at, .step = at << 12, .span = {AH_AREA_INPUT, 0, NBYTES}};
        rounds[at] = (ah_round){.sends = &sends[at], .send_count = 1};
    }
    ah_call call = {.links = links,
                    .link_count = 2,
                    .rounds = rounds,
                    .round_count = 2,
                    .group = 7,
                    .signature = 99};
    ah_memory memory[AH_AREAS] = {[AH_AREA_INPUT] = {&piece, 1}};
    ah_call_plan_ahead(&call);
    ah_call_begin(&call, 5, memory);
    CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_LATE);
    keeper.lets = true;
    CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_DONE && !first.has_unsent);

    const float theirs[ELEMENTS] = {1, 2, 3, 4};
    ah_frame due = data(5, 99);
    ah_recv recv = {.link = 1, .span = {AH_AREA_OUTPUT, 0, NBYTES}, .is_direct = true};
    rounds[0] = (ah_round){.recvs = &recv, .recv_count = 1};
    call.round_count = 1;
    memory[AH_AREA_OUTPUT] = (ah_memory){&piece, 1};
    uint8_t bytes[1 << 12] = {0};
    while (write(others[0], bytes, sizeof bytes) > 0) continue;
    while (write(others[0], bytes, 1) > 0) continue;
    second.credit_left = 3;
    put(others[1], &due, theirs);
    ah_call_begin(&call, 5, memory);
    CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_LATE && mine[3] == 4);
    while (read(others[1], bytes, sizeof bytes) > 0) continue;
    CHECK(ah_call_run(&call, soon(), 0) == AH_CALL_DONE && second.credit_left == 0);
    CHECK(read(others[1], bytes, sizeof bytes) == 3);
    ah_link_free(&first);
    ah_link_free(&second);
    for (int i = 0; i < 2; i++) close(ends[i]), close(others[i]);
}

/* A message in three frames is received whole, and else put back as it came, wherever it ends. */
static void test_message_in_frames(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ah_link link = {.in = ends[0], .out = ends[0]};
    ah_frame first = data(1, 3);
    first.flags = AH_FRAME_P2P;
    first.total = 2 * (size_t)AH_FRAME_PAYLOAD + 1000;
    first.length = ah_message_first(first.total);
    size_t total = first.total, all = ah_message_bytes(&first), foreign = 0;
    CHECK(all == total + 3 * AH_FRAME_HEADER);
    uint8_t *sent = malloc(total), *got = malloc(total), *bytes = malloc(all), *rest = malloc(all);
    CHECK(sent != NULL && got != NULL && bytes != NULL && rest != NULL);
    for (size_t i = 0; i < total; i++) sent[i] = (uint8_t)(i * 2654435761U >> 13);
    ah_message_copy(&first, sent, 0, bytes);
    const size_t frame = AH_FRAME_HEADER + (size_t)AH_FRAME_PAYLOAD;
    const size_t cuts[] = {AH_FRAME_HEADER, AH_FRAME_HEADER + 100,           frame,  frame + 10,
                           frame + 100,     2 * frame + AH_FRAME_HEADER + 7, all - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        size_t cut = cuts[i];
        ah_message_copy(&first, sent, cut, rest);
        CHECK(memcmp(rest, bytes + cut, all - cut) == 0);
        memset(got, 0, total);
        CHECK(ah_link_feed(&link, bytes, cut));
        CHECK(ah_link_receive(&link, &first, got, soon(), 0, &foreign) == AH_MESSAGE_LATE);
        CHECK(ah_link_pending(&link) == cut && memcmp(link.data + link.start, bytes, cut) == 0);
        CHECK(link.consumed == 0);
        CHECK(ah_link_feed(&link, rest, all - cut));
        CHECK(ah_link_receive(&link, &first, got, soon(), 0, &foreign) == AH_MESSAGE_DONE);
        CHECK(memcmp(got, sent, total) == 0 && link.consumed == (int64_t)total);
        CHECK(ah_link_pending(&link) == 0);
        link.consumed = 0;
    }
    /* A frame of another message among them is not for who wants this one. */
    bytes[frame + 16]++; /* its number */
    CHECK(ah_link_feed(&link, bytes, all));
    CHECK(ah_link_receive(&link, &first, got, soon(), 0, &foreign) == AH_MESSAGE_STUCK);
    CHECK(ah_link_pending(&link) == all && memcmp(link.data + link.start, bytes, all) == 0);
    ah_link_free(&link);
    free(sent), free(got), free(bytes), free(rest);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    test_time_of_a_call_that_moves_on();
    test_messages_ahead();
    test_call_ends_when_all_has_left();
    test_message_in_frames();
    test_credit_taken();
    test_credit_returned();
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    ah_link link = {.in = ends[0], .out = ends[0], .credit = 1000};
    const float theirs[ELEMENTS] = {1, 2, 3, 4};
    ah_call call;

    /* The message of the call is added, that of the next call stays. */
    float mine[ELEMENTS] = {10, 10, 10, 10};
    ah_frame due = data(5, 99), next = data(6, 99);
    put(ends[1], &due, theirs);
    put(ends[1], &next, theirs);
    CHECK(sum(&link, mine, &call) == AH_CALL_DONE);
    CHECK(mine[0] == 11 && mine[3] == 14);
    CHECK(ah_link_pending(&link) <= AH_FRAME_HEADER + NBYTES && link.credit == 1000 - NBYTES);
    link.start = link.end = 0;
    uint8_t rest[4096];
    CHECK(read(ends[0], rest, sizeof rest) != 0); /* whatever of the next was not read yet */

    /* Another signature is found before anything is added. */
    float same[ELEMENTS] = {10, 10, 10, 10};
    ah_frame unlike = data(5, 98);
    put(ends[1], &unlike, theirs);
    CHECK(sum(&link, same, &call) == AH_CALL_STUCK);
    CHECK(same[0] == 10 && same[3] == 10 && !call.has_landed);
    CHECK(ah_call_withdraw(&call) && ah_link_pending(&link) >= AH_FRAME_HEADER);
    ah_link_free(&link);
    CHECK(read(ends[0], rest, sizeof rest) != 0);

    /* Half a message goes back as it came, and is whole later. */
    uint8_t header[AH_FRAME_HEADER];
    ah_frame_pack(header, &due);
    CHECK(write(ends[1], header, sizeof header) == AH_FRAME_HEADER);
    CHECK(write(ends[1], theirs, NBYTES / 2) == NBYTES / 2);
    CHECK(sum(&link, same, &call) == AH_CALL_LATE);
    CHECK(ah_call_withdraw(&call) && ah_link_pending(&link) == AH_FRAME_HEADER + NBYTES / 2);
    CHECK(same[0] == 10);
    CHECK(write(ends[1], (const char *)theirs + NBYTES / 2, NBYTES / 2) == NBYTES / 2);
    CHECK(sum(&link, same, &call) == AH_CALL_DONE && same[3] == 14);

    /* A message to a point behind another frame, which is handed out first. */
    ah_frame wanted = data(1, 3);
    float got[ELEMENTS] = {0};
    size_t foreign = 0;
    wanted.flags = AH_FRAME_P2P;
    put(ends[1], &due, theirs);
    put(ends[1], &wanted, theirs);
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) ==
          AH_MESSAGE_FOREIGN);
    CHECK(foreign == AH_FRAME_HEADER + NBYTES && got[0] == 0);
    link.start += foreign;
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) == AH_MESSAGE_DONE);
    CHECK(memcmp(got, theirs, NBYTES) == 0);

    /* Nor is another message of the same tag the one that is due. */
    ah_frame later = wanted;
    later.sequence++;
    put(ends[1], &later, theirs);
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) ==
          AH_MESSAGE_FOREIGN);
    link.start += foreign;

    /* The end of a connection is known at once, within a message and before it. */
    CHECK(write(ends[1], header, sizeof header) == AH_FRAME_HEADER);
    CHECK(shutdown(ends[1], SHUT_WR) == 0);
    CHECK(sum(&link, same, &call) == AH_CALL_STUCK && ah_call_withdraw(&call));
    CHECK(same[3] == 14 && ah_link_pending(&link) == AH_FRAME_HEADER);
    CHECK(ah_link_receive(&link, &wanted, (uint8_t *)got, soon(), 0, &foreign) == AH_MESSAGE_STUCK);
    ah_link_free(&link);
    close(ends[0]);
    close(ends[1]);
    return 0;
}
