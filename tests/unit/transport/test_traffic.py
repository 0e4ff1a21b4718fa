"""Outboxes and inboxes of three ranks together, through random histories.

A history draws what happens next: a message is pushed, a receive is posted, a frame goes out or
comes in, a call gives up. Whatever was drawn, everything must come to the same good end.
"""

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from allhands.transport.frame import HEADER_BYTES, FrameKind, Header, MessageKey, unpack, whole
from allhands.transport.inbox import Inbox, MessageMismatch, PostedReceive
from allhands.transport.outbox import Outbox, PendingSend

CHUNK, EAGER, UNASKED, BUDGET = 64, 32, 48, 192
"""As the miniature world has them."""
SIZES = (0, 1, 7, EAGER, EAGER + 1, UNASKED, UNASKED + 1, CHUNK, CHUNK + 1, 3 * CHUNK, 323)
RANKS = 3
PAIRS = tuple(permutations(range(RANKS), 2))

pytestmark = pytest.mark.usefixtures("miniature")


@dataclass(eq=False)
class Sent:
    sender: int
    receiver: int
    key: MessageKey
    data: bytes
    outgoing: PendingSend | None = None
    told: list[bool] = field(default_factory=list)
    withdrawn: bool = False


@dataclass(eq=False)
class Receive:
    receiver: int
    source: int | None
    tag: int
    incoming: PostedReceive
    data: bytearray
    told: list[MessageMismatch | None] = field(default_factory=list)
    retracted: bool = False


class Network:
    """The mesh's part without links: each outbox's frames go to the peer's inbox."""

    def __init__(self) -> None:
        self.outboxes = {pair: Outbox() for pair in PAIRS}
        self.wires: dict[tuple[int, int], deque[bytes]] = {pair: deque() for pair in PAIRS}
        self.inboxes = [self._inbox(rank) for rank in range(RANKS)]

    def _inbox(self, rank: int) -> Inbox:
        return Inbox(lambda peer, header: self.outboxes[rank, peer].push_control(header))

    def put_out(self, pair: tuple[int, int]) -> bool:
        """Move the next frame to the wire; return whether there was a frame."""
        frame = self.outboxes[pair].next_frame()
        if frame is not None:
            self.wires[pair].append(whole(frame))
            self.outboxes[pair].finish_frame()
        return frame is not None

    def take_in(self, pair: tuple[int, int]) -> bool:
        """Deliver the oldest frame on the wire; return whether there was a frame."""
        if not self.wires[pair]:
            return False
        frame, (sender, receiver) = self.wires[pair].popleft(), pair
        header = unpack(frame)
        match header.kind:
            case FrameKind.CTS:
                self.outboxes[receiver, sender].on_cts(header)
            case FrameKind.CREDIT:
                self.outboxes[receiver, sender].add_credit(header.total)
            case _:
                self.inboxes[receiver].accept(sender, header, memoryview(frame)[HEADER_BYTES:])
        return True

    def run(self) -> None:
        """Move frames until none is left."""
        while sum(self.put_out(pair) + self.take_in(pair) for pair in PAIRS):
            pass

    def check_budget(self) -> None:
        """Check the conservation of the budget's bytes."""
        for sender, receiver in PAIRS:
            outbox, inbox = self.outboxes[sender, receiver], self.inboxes[receiver]
            there = [*map(whole, outbox._urgent), *self.wires[sender, receiver]]
            urgent = map(whole, self.outboxes[receiver, sender]._urgent)
            back = [*urgent, *self.wires[receiver, sender]]
            unasked = [header for header in map(unpack, there) if is_unasked(header)]
            credit = [header for header in map(unpack, back) if header.kind is FrameKind.CREDIT]
            queued = [one for line in outbox._bulk.values() for one in line if not one.is_cleared]
            held = inbox._held_bytes.get(sender, 0)
            assert 0 <= held <= BUDGET
            assert (
                outbox.state.credit
                + sum(one.total for one in queued)
                + sum(header.length for header in unasked)
                + held
                + inbox._uncredited.get(sender, 0)
                + sum(header.total for header in credit)
                == BUDGET
            )


def is_unasked(header: Header) -> bool:
    return header.kind is FrameKind.DATA and not header.is_cleared


class History:
    """Messages, receives, and the network between both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.network = Network()
        self.sent: list[Sent] = []
        self.receives: list[Receive] = []
        self._counts: defaultdict[tuple[int, int], int] = defaultdict(int)

    def draw(self, sender: int, receiver: int, key: MessageKey) -> Sent:
        size = self.random.choice(SIZES)
        return Sent(sender, receiver, key, self.random.randbytes(size))

    def push(self, message: Sent) -> None:
        cut = self.random.randint(0, len(message.data))
        views = [memoryview(message.data[:cut]), memoryview(message.data[cut:])]
        message.outgoing = PendingSend(
            message.key, views, len(message.data), lambda like: message.told.append(like)
        )
        self.sent.append(message)
        self.network.outboxes[message.sender, message.receiver].push(message.outgoing)

    def send(self, sender: int, receiver: int, tag: int, size: int) -> None:
        """Send a message point to point."""
        self._counts[sender, receiver] += 1
        key = MessageKey(1, self._counts[sender, receiver], 0, tag, is_p2p=True)
        self.push(Sent(sender, receiver, key, self.random.randbytes(size)))

    def receive(self, receiver: int, source: int | None, tag: int, size: int) -> Receive:
        """Make a receive, to be posted later."""
        data = bytearray(size)

        def land(offset: int, payload: memoryview) -> None:
            assert receive.told == []
            assert not receive.retracted
            data[offset : offset + len(payload)] = payload

        incoming = PostedReceive(size, size, land, lambda unlike: receive.told.append(unlike))
        receive = Receive(receiver, source, tag, incoming, data)
        self.receives.append(receive)
        return receive

    def post(self, message: Sent) -> Receive:
        """Post the receive of a message of a collective."""
        receive = self.receive(message.receiver, message.sender, 0, len(message.data))
        self.network.inboxes[message.receiver].post(message.sender, message.key, receive.incoming)
        return receive

    def post_open(self, receiver: int, source: int | None, tag: int, size: int) -> None:
        receive = self.receive(receiver, source, tag, size)
        self.network.inboxes[receiver].post_p2p(source, 1, tag, receive.incoming)

    def move(self) -> None:
        pair = self.random.choice(PAIRS)
        self.random.choice((self.network.put_out, self.network.take_in))(pair)

    def withdraw(self, message: Sent) -> None:
        """Cancel a pending send."""
        assert message.outgoing is not None
        message.withdrawn = message.told == []
        self.network.outboxes[message.sender, message.receiver].cancel(message.outgoing)

    def retract(self, receive: Receive) -> None:
        """Cancel a pending receive."""
        if not receive.told:
            receive.retracted = True
            self.network.inboxes[receive.receiver].cancel_receive(receive.incoming)

    def check_end(self) -> None:
        """Check that every inbox and outbox is empty."""
        self.network.check_budget()
        for inbox in self.network.inboxes:
            assert not inbox._posted
            assert not inbox._early
            assert not inbox._p2p_early
            assert not inbox._p2p_posted
            assert not any(inbox._held_bytes.values())
        assert all(outbox.is_idle for outbox in self.network.outboxes.values())


@pytest.mark.parametrize("seed", range(30))
def test_every_message_of_collectives_lands_once_and_whole(seed: int) -> None:
    history = History(seed)
    messages = [
        history.draw(*pair, MessageKey(1, 1 + number // 10, number % 10))
        for number in range(20)
        for pair in PAIRS
    ]
    unpushed, unposted = list(messages), list(messages)
    history.random.shuffle(unpushed)
    history.random.shuffle(unposted)
    receives: dict[int, Receive] = {}
    # Some histories are all senders first, some all receivers first, most neither.
    eagerness = history.random.choice((0.02, 0.5, 0.98))
    while unpushed or unposted:
        if history.random.random() < 0.6:
            history.move()
        elif unpushed and (not unposted or history.random.random() < eagerness):
            history.push(unpushed.pop())
        else:
            message = unposted.pop()
            receives[id(message)] = history.post(message)
        if history.random.random() < 0.1:
            history.network.check_budget()
    history.network.run()
    for message in messages:
        receive = receives[id(message)]
        assert receive.told == [None]
        assert receive.data == message.data
        assert message.told == [True]
    history.check_end()
    assert not any(outbox._early_cts for outbox in history.network.outboxes.values())


@pytest.mark.parametrize("seed", range(30))
def test_calls_that_give_up_leave_nothing_behind(seed: int) -> None:
    """Each sequence number is a call; both ends of the call may end early, at any time."""
    history = History(seed)
    over = [[0] * 2 for _ in range(RANKS)]  # by rank, of groups 0 and 1
    begun: list[tuple[Sent, Receive]] = []
    for sequence in range(1, 25):
        group = sequence % 2
        messages = [
            history.draw(*pair, MessageKey(group, sequence, step))
            for step in range(3)
            for pair in PAIRS
        ]
        history.random.shuffle(messages)
        absent = history.random.choice((None, *range(RANKS)))
        ours: list[tuple[Sent, Receive | None]] = []
        for message in messages:
            receive = None if message.receiver == absent else history.post(message)
            if message.sender != absent:
                history.push(message)
            ours.append((message, receive))
            for _ in range(history.random.randrange(12)):
                history.move()
        for rank in history.random.sample(range(RANKS), RANKS):
            for message, receive in ours:
                if message.sender == rank and message.outgoing is not None:
                    history.withdraw(message)
                if message.receiver == rank and receive is not None:
                    history.retract(receive)
            history.network.inboxes[rank].forget(group, sequence)
            for peer in range(RANKS):
                if peer != rank:
                    history.network.outboxes[rank, peer].forget(group, sequence)
            over[rank][group] = sequence
            for _ in range(history.random.randrange(30)):
                history.move()
            history.network.check_budget()
        begun += [(message, receive) for message, receive in ours if receive is not None]
    history.network.run()
    for message, receive in begun:
        assert receive.retracted or receive.told == [None]
        if receive.told:
            assert receive.data == message.data
    history.check_end()


@pytest.mark.parametrize("open_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(25))
def test_messages_to_a_point_never_overtake_each_other(seed: int, open_share: float) -> None:
    history = History(seed)
    tags, size = 2, history.random.choice(SIZES)  # one size, so that any receive fits
    eagerness = history.random.choice((0.1, 0.5, 0.9))
    for _ in range(300):
        if history.random.random() < 0.6:
            history.move()
        elif history.random.random() < eagerness:
            history.send(*history.random.choice(PAIRS), history.random.randrange(tags), size)
        else:
            receiver, source = history.random.choice(PAIRS)
            any_source = history.random.random() < open_share
            tag = history.random.randrange(tags)
            history.post_open(receiver, None if any_source else source, tag, size)
        if history.random.random() < 0.1:
            history.network.check_budget()
    history.network.run()
    check_matching(history)
    serve_the_rest(history, size)
    check_matching(history)
    assert all(message.told == [True] for message in history.sent)


def check_matching(history: History, *, in_order: bool = True) -> None:
    """Check that messages arrived whole, once, in order, without a gap."""
    by_line: defaultdict[tuple[int, int, int], list[Sent]] = defaultdict(list)
    for message in history.sent:
        if not message.withdrawn:
            by_line[message.sender, message.receiver, message.key.part].append(message)
    taken: defaultdict[tuple[int, int, int], list[Receive]] = defaultdict(list)
    for receive in history.receives:
        if receive.told:
            assert receive.told == [None]
            assert receive.source in (None, receive.incoming.peer)
            taken[receive.incoming.peer, receive.receiver, receive.tag].append(receive)
    for line, receives in taken.items():
        received = [bytes(receive.data) for receive in receives]
        sent = [message.data for message in by_line[line]]
        if in_order:  # receives in the order posted hold the messages in the order sent
            assert received == sent[: len(received)]
        else:
            assert not Counter(received) - Counter(sent)
    for receive in history.receives:
        if receive.told or receive.retracted:
            continue
        for sender in range(RANKS) if receive.source is None else [receive.source]:
            line = sender, receive.receiver, receive.tag
            assert len(taken[line]) == len(by_line[line]), "it waits beside a message that fits"


def serve_the_rest(history: History, size: int) -> None:
    """Send the awaited messages, and receive the rest."""
    while waiting := [one for one in history.receives if not one.told and not one.retracted]:
        receive = waiting[0]  # one at a time: another that is open to all may take its message
        source = (receive.receiver + 1) % RANKS if receive.source is None else receive.source
        history.send(source, receive.receiver, receive.tag, size)
        history.network.run()
    while left := [
        (receiver, arrived)
        for receiver, inbox in enumerate(history.network.inboxes)
        for queue in inbox._p2p_early.values()
        for arrived in queue
    ]:
        receiver, arrived = left[0]
        history.post_open(receiver, arrived.peer, arrived.header.key.part, size)
        history.network.run()
    history.check_end()


@pytest.mark.parametrize("seed", range(50))
def test_sends_and_receives_that_give_up_pass_nobody_over(seed: int) -> None:
    """Withdrawn messages are never received; every remaining message still finds a receive.

    Order is no more: the receive of a withdrawn message may get one after the next receive's.
    """
    history = History(seed)
    size = history.random.choice((EAGER, EAGER + 1, 3 * CHUNK))
    for _ in range(300):
        what = history.random.random()
        if what < 0.6:
            history.move()
        elif what < 0.75:
            history.send(*history.random.choice(PAIRS), 0, size)
        elif what < 0.9:
            receiver, source = history.random.choice(PAIRS)
            history.post_open(receiver, history.random.choice((None, source)), 0, size)
        elif history.sent:
            history.withdraw(history.random.choice(history.sent))
        if history.random.random() < 0.1:
            history.network.check_budget()
    history.network.run()
    check_matching(history, in_order=False)
    serve_the_rest(history, size)
    check_matching(history, in_order=False)
