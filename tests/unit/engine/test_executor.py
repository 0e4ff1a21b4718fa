"""Execution of a call on one rank, with peers played by the test."""

import asyncio

import numpy as np
import pytest

from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.part import Part
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.transport.frame import MessageKey
from allhands.transport.inbox import MessageMismatch, PostedReceive
from allhands.transport.outbox import BULK_EAGER_BYTES, PendingSend


class Network:
    """A mesh that only records calls."""

    def __init__(self, *, sends_at_once: bool = False) -> None:
        self.posted: list[tuple[int, PostedReceive]] = []
        self.sent: list[tuple[int, PendingSend]] = []
        self.order: list[str] = []
        self.retracted: list[PostedReceive] = []
        self.withdrawn: list[PendingSend] = []
        self._sends_at_once = sends_at_once
        self.error: Exception | None = None

    def post(self, peer: int, key: MessageKey, incoming: PostedReceive) -> None:
        self.order.append("post")
        self.posted.append((peer, incoming))

    def send(self, peer: int, message: PendingSend) -> None:
        if self.error is not None:
            raise self.error
        self.order.append("send")
        self.sent.append((peer, message))
        if self._sends_at_once:
            message.done(True)

    def cancel_receive(self, incoming: PostedReceive) -> None:
        self.retracted.append(incoming)

    def cancel_send(self, peer: int, message: PendingSend) -> None:
        self.withdrawn.append(message)


class Rank:
    """Rank 1 of 4, with a single array as input and result."""

    def __init__(self, x: Array, *rounds: Round, sends_at_once: bool = False) -> None:
        self.x = x
        self.network = Network(sends_at_once=sends_at_once)
        self.execution = Execution(
            self.network,  # type: ignore[arg-type]
            peers=range(4),
            rank=1,
            group=7,
            sequence=3,
            signature=5,
            op=ReduceOp.SUM,
        )
        nothing = Buffer([], x.dtype)
        self.ended = self.execution.begin([Part(Schedule(rounds), nothing, Buffer([x], x.dtype))])

    def come(self, number: int, values: list[float], first: int = 0) -> None:
        """Deliver elements of a message to the number-th posted receive."""
        _, incoming = self.network.posted[number]
        data = np.array(values, self.x.dtype)
        incoming.land(first * data.itemsize, memoryview(data.tobytes()))
        if first + len(data) == incoming.total // data.itemsize:
            incoming.done(None)

    def go(self, number: int) -> None:
        """Complete the number-th send."""
        self.network.sent[number][1].done(True)


def span(start: int, stop: int) -> Span:
    return Span(Area.OUTPUT, start, stop)


def swap(peer: int, length: int) -> Round:
    """Exchange whole arrays, and add."""
    whole = span(0, length)
    return Round(sends=(Send(peer, whole),), recvs=(Recv(peer, whole, reduces=True),))


async def test_a_part_goes_from_round_to_round_without_the_loop() -> None:
    rank = Rank(np.array([1.0, 2.0]), swap(0, 2), swap(3, 2), sends_at_once=True)
    assert rank.execution.list_awaited() == [0]
    rank.come(0, [10.0, 20.0])
    assert rank.execution.list_awaited() == [3]
    assert bytes(rank.network.sent[1][1].views[0]) == np.array([11.0, 22.0]).tobytes()
    assert not rank.ended.done()
    rank.come(1, [100.0, 200.0])
    assert rank.ended.done()
    assert rank.x.tolist() == [111.0, 222.0]


async def test_what_comes_before_its_place_was_sent_is_not_seen_there() -> None:
    rank = Rank(np.array([1.0, 2.0, 3.0]), swap(0, 3))
    rank.come(0, [10.0, 20.0])
    assert rank.x.tolist() == [1.0, 2.0, 3.0]
    rank.go(0)
    rank.come(0, [30.0], first=2)
    assert rank.x.tolist() == [11.0, 22.0, 33.0]
    assert rank.ended.done()


async def test_what_comes_before_its_place_was_sent_waits_for_that() -> None:
    rank = Rank(np.array([1.0, 2.0]), swap(0, 2))
    rank.come(0, [10.0, 20.0])
    assert not rank.ended.done()
    assert rank.x.tolist() == [1.0, 2.0]
    rank.go(0)
    assert rank.ended.done()
    assert rank.x.tolist() == [11.0, 22.0]


async def test_what_replaces_another_value_waits_as_well() -> None:
    whole = span(0, 2)
    rank = Rank(np.array([1.0, 2.0]), Round(sends=(Send(0, whole),), recvs=(Recv(0, whole),)))
    _, incoming = rank.network.posted[0]
    assert incoming.room is not None
    room = incoming.room(0, 16)
    assert room is not None
    room[:] = np.array([10.0, 20.0]).tobytes()
    incoming.done(None)
    assert rank.x.tolist() == [1.0, 2.0]
    rank.go(0)
    assert rank.x.tolist() == [10.0, 20.0]


@pytest.mark.parametrize("reduce", [False, True])
async def test_receives_into_one_place_land_in_the_order_listed(reduce: bool) -> None:
    whole = span(0, 1)
    both = Round(recvs=tuple(Recv(peer, whole, reduce) for peer in (0, 2)))
    rank = Rank(np.array([1e8], np.float32), both)
    rank.come(1, [-1e8])
    rank.come(0, [1.0])
    assert rank.ended.done()
    # In float32, 1 is lost beside 1e8.
    assert rank.x.tolist() == ([0.0] if reduce else [-1e8])


async def test_small_messages_go_first_and_large_ones_when_their_like_was_asked_for() -> None:
    for length, order in (
        (BULK_EAGER_BYTES, ["send", "post"]),
        (BULK_EAGER_BYTES + 1, ["post", "send"]),
    ):
        rank = Rank(np.zeros(length, np.uint8), swap(0, length))
        assert rank.network.order == order
        rank.execution.stop()


async def test_a_call_that_is_stopped_forgets_what_it_waits_for() -> None:
    rank = Rank(np.array([1.0, 2.0]), swap(0, 2))
    rank.execution.stop()
    assert rank.network.retracted == [incoming for _, incoming in rank.network.posted]
    assert rank.network.withdrawn == [message for _, message in rank.network.sent]
    assert rank.execution.list_awaited() == []
    rank.go(0)
    rank.network.posted[0][1].done(None)  # too late
    assert not rank.ended.done()


@pytest.mark.parametrize("from_receiver", [False, True])
async def test_another_call_of_a_peer_ends_all_parts(from_receiver: bool) -> None:
    rank = Rank(np.array([1.0, 2.0]), swap(2, 2))
    if from_receiver:
        rank.network.sent[0][1].done(False)
    else:
        rank.network.posted[0][1].done(MessageMismatch(2, MessageKey(7, 3), 99))
    with pytest.raises(MismatchFound) as raised:
        await rank.ended
    assert raised.value.world_rank == 2
    assert rank.network.withdrawn
    assert rank.network.retracted


async def test_an_error_within_a_round_is_the_outcome_of_the_call() -> None:
    rank = Rank(np.array([1.0]), swap(0, 1), swap(2, 1), sends_at_once=True)
    rank.network.error = ZeroDivisionError("in the mesh")
    rank.come(0, [1.0])
    with pytest.raises(ZeroDivisionError):
        await rank.ended


async def test_parts_that_end_as_they_begin_are_not_stacked_up() -> None:
    """Thousands of such parts would otherwise overflow the interpreter's stack."""
    network = Network(sends_at_once=True)
    execution = Execution(
        network,  # type: ignore[arg-type]
        peers=range(2),
        rank=0,
        group=7,
        sequence=3,
        signature=5,
    )
    x = np.zeros(1)
    schedule = Schedule((Round(sends=(Send(1, span(0, 1)),)),))
    parts = [Part(schedule, Buffer([], x.dtype), Buffer([x], x.dtype)) for _ in range(5000)]
    async with asyncio.timeout(10):
        await execution.run(parts)
    assert len(network.sent) == 5000
