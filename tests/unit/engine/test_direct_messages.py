"""Blocking messages over links in the native core, with the peer's end played by the test."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from allhands.collectives.request import name_dtype
from allhands.collectives.signature import CallSignature
from allhands.engine.numbering import CallNumbering
from allhands.engine.p2p.direct_messages import DirectMessages
from allhands.runtime import native_core
from allhands.runtime.loop_thread import LoopThread
from allhands.transport.frame import MAX_PAYLOAD_BYTES, FrameKind, Header, MessageKey, unpack, whole
from allhands.transport.inbox import PostedReceive
from support.socket_meshes import MeshRank, address_of, wait_credit, wait_until

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

GROUP, OTHER_GROUP = 7, 8
PATIENCE = 20.0
ATTEMPTS = 1000
"""Messages that are sent until a connection is full: more than any buffer of the system holds."""


class Host:
    """A rank on a loop thread, as in a process of its own."""

    def __init__(self, rank: int) -> None:
        self.thread = LoopThread(f"rank {rank}")
        self.counts: dict[int, int] = {}

        async def make() -> MeshRank:
            return MeshRank(rank, 2)

        self.one = self.thread.run(make())

    def attach(self, addresses: dict[int, tuple[str, int]]) -> None:
        async def attach() -> None:
            self.one.attach(addresses)

        self.thread.run(attach())

    def run(self, act: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return act()

        return self.thread.run(run())

    def make_messages(self, group: int = GROUP) -> DirectMessages:
        mesh = self.one.mesh
        return DirectMessages(
            self.thread,
            CallNumbering(30.0),
            mesh,
            self.one.links,
            group,
            (0, 1),
            self.one.rank,
            (0, 1),
            lambda: True,
            lambda _: False,
            16,
        )

    def connect(self) -> None:
        self.thread.run(self.one.connect())

    def write(self, data: bytes) -> None:
        """Write to the other rank past all queues."""
        connection = cast(socket.socket, self.one.fabric._links[1 - self.one.rank]._raw)

        def write_some() -> int:
            with contextlib.suppress(BlockingIOError):
                return connection.send(data)
            return 0

        while data:
            data = data[self.run(write_some) :]

    def frame(self, x: "np.ndarray[Any, Any]", tag: int = 0, group: int = GROUP) -> bytes:
        """Return the next message of the group as the frame that its link sends next."""
        count = self.counts[group] = self.counts.get(group, 0) + 1
        signature = CallSignature("message", name_dtype(x.dtype), x.size).signature
        key = MessageKey(group, count, 0, tag, is_p2p=True)
        header = Header(FrameKind.DATA, key, signature, x.nbytes, 0, x.nbytes).pack()
        signer = self.one.mesh._get_sender(1 - self.one.rank).signer
        return whole(signer.sign([header, x.tobytes()]))

    def frames(self, x: "np.ndarray[Any, Any]") -> list[bytes]:
        """Return the next message of the group as the frames of a message unasked."""
        count = self.counts[GROUP] = self.counts.get(GROUP, 0) + 1
        signature = CallSignature("message", name_dtype(x.dtype), x.size).signature
        key = MessageKey(GROUP, count, 0, 0, is_p2p=True)
        data, made = x.tobytes(), []
        self.one.mesh._get_sender(1 - self.one.rank).outbox.state.credit -= len(data)
        for offset in range(0, len(data), MAX_PAYLOAD_BYTES):
            payload = data[offset : offset + MAX_PAYLOAD_BYTES]
            header = Header(FrameKind.DATA, key, signature, len(data), offset, len(payload))
            made.append(header.pack() + payload)
        return made

    def close(self) -> None:
        self.thread.run(self.one.mesh.aclose())
        self.thread.stop()


Pair = tuple[Host, Host]


class Listener:
    """A group that verifies, and hears of no corrupt call."""

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        raise AssertionError(f"rank {peer} has sent no call, but {key}")

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        raise AssertionError(f"rank {peer} reports {key} on {link}")


@pytest.fixture(params=[False, True], ids=["plain", "with digests"])
def has_digests(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def unlinked(has_digests: bool) -> Iterator[Pair]:
    hosts = Host(0), Host(1)
    addresses = {host.one.rank: address_of(host.one) for host in hosts}
    for host in hosts:
        host.attach(addresses)
        if has_digests:
            host.run(lambda mesh=host.one.mesh: mesh.enable_digests(GROUP, Listener()))
    yield hosts
    for host in hosts:
        host.close()


@pytest.fixture
def pair(unlinked: Pair) -> Pair:
    threads = [threading.Thread(target=host.connect) for host in unlinked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return unlinked


def values(number: int, count: int = 3) -> "np.ndarray[Any, Any]":
    return np.arange(count, dtype=np.float32) + number


def receive(messages: DirectMessages, count: int = 3, tag: int = 0) -> Any:
    """Receive from rank 1; None: declined."""
    x = np.zeros(count, np.float32)
    return x if messages.recv(x, 1, tag, None, None) == 1 else None


def receive_over_loop(host: Host, count: int = 3, tag: int = 0, group: int = GROUP) -> Any:
    """Receive from rank 1 as a message does that was declined."""
    x, came = bytearray(4 * count), threading.Event()
    outcome: list[object] = []

    def land(offset: int, payload: memoryview) -> None:
        x[offset : offset + len(payload)] = payload

    def done(unlike: object) -> None:
        outcome.append(unlike)
        came.set()

    signature = CallSignature("message", name_dtype(np.dtype(np.float32)), count).signature
    posted = PostedReceive(4 * count, signature, land, done)
    host.run(lambda: host.one.mesh.post_p2p(1, group, tag, posted))
    assert came.wait(PATIENCE)
    return np.frombuffer(x, np.float32) if outcome == [None] else outcome[0]


LONGER = (262_145, 600_000, 1 << 20)
"""Elements of messages in two, three and four frames: without digests."""


@pytest.mark.parametrize("count", [0, 1, 1000, 16384, 20_000, 65536, 262_144, *LONGER])
def test_messages_up_to_the_limit_arrive_whole(pair: Pair, has_digests: bool, count: int) -> None:
    """The core reads 64 KiB ahead: longer ones do not pass through there."""
    if has_digests and count in LONGER:
        return
    mine, theirs = (host.make_messages() for host in pair)
    for number in range(5):
        sent = values(number, count)
        thread = threading.Thread(target=_send_until_sent, args=(theirs, sent))
        thread.start()
        if count in LONGER:  # the loop may have had some of it
            x = _receive_either_way(pair[0], mine, count)
        else:
            x = _receive_until_received(mine, count)
        thread.join()
        assert x.tolist() == sent.tolist()
    if count not in LONGER:
        assert [row[4] for row in mine.records(5)] == [1] * 5


def test_credit_is_given_back_and_taken_without_the_interpreter(pair: Pair) -> None:
    """Each message is as long as what is given back at once; all are three times what there is."""
    both = [host.make_messages() for host in pair]
    calls: list[str] = []
    for messages in both:
        messages.take_back = _note(calls, messages.take_back)  # type: ignore[method-assign]
        messages.deliver = _note(calls, messages.deliver)  # type: ignore[method-assign]
    rounds, wrong = 48, []

    def exchange(me: int) -> None:
        x = np.zeros(65536, np.float32)
        for number in range(rounds):
            for act in (0, 1) if me else (1, 0):
                if act:
                    while not both[me].send(values(number + me, x.size), 1 - me, 0, None, None):
                        pass
                    continue
                while both[me].recv(x, 1 - me, 0, None, None) < 0:
                    pass
                if not (x == values(number + 1 - me, x.size)).all():
                    wrong.append((me, number))

    threads = [threading.Thread(target=exchange, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(calls) < rounds // 2, "of four times as many that there would be"
    pair[0].thread.run(wait_credit([host.one for host in pair]))


def _note(calls: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    def act(*arguments: object) -> Any:
        calls.append(method.__name__)
        return method(*arguments)

    return act


def _receive_until_received(messages: DirectMessages, count: int = 3) -> "np.ndarray[Any, Any]":
    """Receive from rank 1 as soon as the loop is lent: it may have something to do still."""
    while (x := receive(messages, count)) is None:
        pass
    return cast("np.ndarray[Any, Any]", x)


def _receive_either_way(host: Host, messages: DirectMessages, count: int) -> "np.ndarray[Any, Any]":
    """Receive from rank 1 here or, where that is declined, on the loop."""
    got = receive(messages, count)
    return cast("np.ndarray[Any, Any]", receive_over_loop(host, count) if got is None else got)


def _send_until_sent(messages: DirectMessages, x: "np.ndarray[Any, Any]") -> None:
    while not messages.send(x, 0, 0, None, None):
        pass


def test_a_message_of_several_frames_that_stays_incomplete_goes_on_on_the_loop(
    pair: Pair, has_digests: bool
) -> None:
    """What came of it is put back, wherever it ends."""
    if has_digests:
        return
    mine, theirs = pair
    messages, count = mine.make_messages(), 600_000
    for number, cut in enumerate((100, 1 << 20, (1 << 20) + 64, (1 << 20) + 100, (2 << 20) + 200)):
        sent = values(number, count)
        message = b"".join(theirs.frames(sent))
        theirs.write(message[:cut])
        assert receive(messages, count) is None
        theirs.write(message[cut:])
        assert receive_over_loop(mine, count).tolist() == sent.tolist()


def test_a_message_of_several_frames_to_a_peer_that_does_not_read_waits_on_the_loop(
    pair: Pair, has_digests: bool
) -> None:
    """Its array is free, and what did not leave goes on as it was."""
    if has_digests:
        return
    mine, theirs = pair
    messages, count = mine.make_messages(), 1 << 20
    release, held = threading.Event(), threading.Event()

    def hold_loop() -> None:
        held.set()
        assert release.wait(PATIENCE)

    sender = theirs.make_messages()
    sent = values(7, count)
    with_thread = threading.Thread(target=lambda: mine.run(hold_loop))
    with_thread.start()
    assert held.wait(PATIENCE)
    _send_until_sent(sender, sent)
    wanted = sent.tolist()
    sent[:] = -1
    release.set()
    with_thread.join()
    assert _receive_either_way(mine, messages, count).tolist() == wanted
    pair[0].thread.run(wait_credit([host.one for host in pair]))


def test_longer_messages_are_declined(pair: Pair, has_digests: bool) -> None:
    mine = pair[0].make_messages()
    x = np.zeros((1 << 20 if has_digests else 4 << 20) + 1, np.uint8)
    assert not mine.send(x, 1, 0, None, None)
    assert mine.recv(x, 1, 0, None, None) < 0


def test_the_first_message_of_a_peer_to_which_there_is_no_link_is_declined(unlinked: Pair) -> None:
    mine, theirs = unlinked
    theirs.thread.run(_dial(theirs.one))
    theirs.write(theirs.frame(values(1)))
    messages = mine.make_messages()
    while not mine.run(lambda: mine.one.mesh._inbox._p2p_early):
        pass
    assert receive(messages) is None
    assert receive_over_loop(mine).tolist() == values(1).tolist()


async def _dial(one: MeshRank) -> None:
    one.mesh._get_sender(0)
    await wait_until(lambda: 0 in one.fabric._links)


def test_messages_of_two_groups_keep_their_orders(pair: Pair) -> None:
    """A message of one group, read while another's is awaited, comes before those that follow."""
    mine, theirs = pair
    first, second = mine.make_messages(GROUP), mine.make_messages(OTHER_GROUP)
    theirs.write(theirs.frame(values(0)) + theirs.frame(values(10), group=OTHER_GROUP))
    assert receive(first).tolist() == values(0).tolist()
    assert receive(second).tolist() == values(10).tolist()  # both have looked at the loop's state
    theirs.write(
        theirs.frame(values(11), group=OTHER_GROUP)
        + theirs.frame(values(1))
        + theirs.frame(values(12), group=OTHER_GROUP)
    )
    assert receive(first).tolist() == values(1).tolist()
    got = receive(second)
    if got is None:
        got = receive_over_loop(mine, group=OTHER_GROUP)
    assert got.tolist() == values(11).tolist()


def test_tags_are_kept_apart_and_in_order(pair: Pair) -> None:
    mine, theirs = pair
    messages = mine.make_messages()
    theirs.write(theirs.frame(values(1), tag=5) + theirs.frame(values(2), tag=6))
    got = receive(messages, tag=6)
    assert got is None or got.tolist() == values(2).tolist()
    if got is None:
        assert receive_over_loop(mine, tag=6).tolist() == values(2).tolist()
    got = receive(messages, tag=5)
    if got is None:
        got = receive_over_loop(mine, tag=5)
    assert got.tolist() == values(1).tolist()


@pytest.mark.parametrize(
    "unlike", [values(1, 4), values(1).view(np.int32)], ids=["length", "dtype"]
)
def test_an_unlike_message_is_declined_and_found_by_the_loop(
    pair: Pair, unlike: "np.ndarray[Any, Any]"
) -> None:
    """Also if one that is like what is asked for follows it."""
    mine, theirs = pair
    theirs.write(theirs.frame(unlike) + theirs.frame(values(2)))
    x = np.full(3, -1.0, np.float32)
    assert mine.make_messages().recv(x, 1, 0, None, None) < 0
    assert x.tolist() == [-1.0] * 3
    found = receive_over_loop(mine)
    assert (found.peer, found.total) == (1, unlike.nbytes)
    assert receive_over_loop(mine).tolist() == values(2).tolist()


def test_half_a_message_waits_for_its_rest_on_the_loop(pair: Pair) -> None:
    mine, theirs = pair
    message = theirs.frame(values(1))
    theirs.write(message[:70])
    assert receive(mine.make_messages()) is None
    theirs.write(message[70:])
    assert receive_over_loop(mine).tolist() == values(1).tolist()


@pytest.mark.parametrize("at", [0, 2, 59])
def test_a_damaged_header_breaks_the_link_and_touches_nothing(pair: Pair, at: int) -> None:
    mine, theirs = pair
    damaged = bytearray(theirs.frame(values(1)))
    damaged[at] ^= 0xFF
    theirs.write(bytes(damaged))
    x = np.full(3, -1.0, np.float32)
    assert mine.make_messages().recv(x, 1, 0, None, None) < 0
    assert x.tolist() == [-1.0] * 3
    peer, reason = mine.thread.run(_next_break(mine.one))
    assert peer == 1
    assert "protocol error" in reason


def test_messages_that_the_loop_has_had_are_received_here_before_others(pair: Pair) -> None:
    mine, theirs = pair
    theirs.write(b"".join(theirs.frame(values(number)) for number in range(3)))
    mine.thread.run(_count_early(mine.one, 3))
    messages = mine.make_messages()
    assert _receive_until_received(messages).tolist() == values(0).tolist()
    theirs.write(theirs.frame(values(3)))
    for number in range(1, 4):
        assert _receive_until_received(messages).tolist() == values(number).tolist()


@pytest.mark.parametrize("has_digests", [True])
def test_a_changed_message_breaks_the_link_and_is_not_received(pair: Pair) -> None:
    mine, theirs = pair
    changed = bytearray(theirs.frame(values(1, 1000)))
    changed[-1] ^= 1
    theirs.write(bytes(changed))
    assert receive(mine.make_messages(), 1000) is None
    peer, reason = mine.thread.run(_next_break(mine.one))
    assert peer == 1
    assert "a frame was changed on its way (digest)" in reason


@pytest.mark.parametrize("has_digests", [True])
def test_a_message_that_comes_twice_is_received_once(pair: Pair) -> None:
    mine, theirs = pair
    messages = mine.make_messages()
    twice = theirs.frame(values(1))
    theirs.write(twice)
    assert receive(messages).tolist() == values(1).tolist()
    theirs.write(twice)
    assert receive(messages) is None
    peer, reason = mine.thread.run(_next_break(mine.one))
    assert peer == 1
    assert "came twice or too late" in reason


@pytest.mark.parametrize("has_digests", [True])
def test_messages_without_digests_of_a_group_that_verifies_break_the_link(pair: Pair) -> None:
    mine, theirs = pair
    frame = theirs.frame(values(1))
    header = Header(FrameKind.DATA, unpack(frame).key, unpack(frame).signature, 12, 0, 12)
    theirs.write(header.pack() + values(1).tobytes())
    assert receive(mine.make_messages()) is None
    _, reason = mine.thread.run(_next_break(mine.one))
    assert "without digest" in reason


def test_the_end_of_a_link_within_a_message_is_found_by_the_loop(pair: Pair) -> None:
    mine, theirs = pair
    theirs.write(theirs.frame(values(1))[:70])
    theirs.run(lambda: theirs.one.fabric._links[0]._raw.shutdown(socket.SHUT_WR))
    assert receive(mine.make_messages()) is None
    peer, reason = mine.thread.run(_next_break(mine.one))
    assert peer == 1
    assert "went away" in reason


async def _next_break(one: MeshRank) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE):
        return await one.events.breaks.get()


def test_a_message_that_the_connection_has_no_room_for_leaves_as_soon_as_there_is(
    pair: Pair,
) -> None:
    """The reader stands still until the core has said that it has sent all of it."""
    mine, theirs = pair
    stopped, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stopped.set()
        go_on.wait(PATIENCE)

    theirs.thread.call(stand_still)
    assert stopped.wait(PATIENCE)
    mine.run(
        lambda: mine.one.fabric._links[1]._raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    )
    messages = mine.make_messages()
    sent = 0
    for _ in range(ATTEMPTS):
        if messages.send(values(sent, 65536), 1, 0, None, None):
            sent += 1
        if mine.one.fabric._links[1]._unwritten:
            break
        mine.run(lambda: None)  # declined while the loop had work; here it has been done
    assert mine.one.fabric._links[1]._unwritten, "all found room"
    assert not messages.send(values(0), 1, 0, None, None), "that would break into a frame"
    go_on.set()
    counted = theirs.thread.run(_count_early(theirs.one, sent))
    assert counted == [values(number, 65536).tobytes() for number in range(sent)]


async def _count_early(one: MeshRank, wanted: int) -> list[bytes]:
    early = one.mesh._inbox._p2p_early
    await wait_until(lambda: len(early.get((GROUP, 0), ())) >= wanted)
    return [arrived.payload or b"" for arrived in early[GROUP, 0]]


class Interrupting:
    """Raises as a signal's handler does, before the owner's method begins."""

    def __init__(self, act: Callable[..., object]) -> None:
        self.act = act
        self.times = 0

    def __call__(self, *arguments: object) -> object:
        self.times += 1
        if self.times == 1:
            raise KeyboardInterrupt
        return self.act(*arguments)


def test_ctrl_c_as_a_frame_is_passed_on_loses_nothing(pair: Pair) -> None:
    mine, theirs = pair
    messages = mine.make_messages()
    messages.deliver = Interrupting(messages.deliver)  # type: ignore[method-assign]
    theirs.write(theirs.frame(values(1), tag=5) + theirs.frame(values(2), tag=6))

    def receive_behind() -> None:
        while receive(messages, tag=6) is None:  # declined while the loop has something to do
            pass

    with pytest.raises(KeyboardInterrupt):
        receive_behind()
    assert receive_over_loop(mine, tag=5).tolist() == values(1).tolist()
    assert receive_over_loop(mine, tag=6).tolist() == values(2).tolist()


def test_ctrl_c_as_the_rest_of_a_message_is_handed_over_breaks_nothing(pair: Pair) -> None:
    mine, theirs = pair
    messages = mine.make_messages()
    messages.send_rest = Interrupting(messages.send_rest)  # type: ignore[method-assign]
    stopped, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stopped.set()
        go_on.wait(PATIENCE)

    theirs.thread.call(stand_still)
    assert stopped.wait(PATIENCE)
    sent = 0

    def send_on() -> None:
        nonlocal sent
        for _ in range(ATTEMPTS):
            if messages.send(values(sent, 65536), 1, 0, None, None):
                sent += 1
            else:
                mine.run(lambda: None)  # declined while the loop had work; here it has been done

    with pytest.raises(KeyboardInterrupt):
        send_on()
    go_on.set()
    counted = theirs.thread.run(_count_early(theirs.one, sent + 1))
    assert counted == [values(number, 65536).tobytes() for number in range(sent + 1)]
