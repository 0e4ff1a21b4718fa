"""Calls over links in the native core, each given up at some moment and ended as an execution."""

import asyncio
import itertools
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from allhands.collectives.algorithms import bruck, dissemination, doubling
from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.message_pieces import cut_messages
from allhands.collectives.part import Part
from allhands.collectives.reduction import OPS, TYPES, ReduceOp, check
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.collectives.split_rounds import split_rounds
from allhands.engine.links import native_calls
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.links.native_calls import CompiledCall, NativeCall, NativeCalls
from allhands.runtime import native_core
from allhands.transport.digests import FrameSigner, LinkKey
from allhands.transport.frame import HEADER_BYTES, FrameKind, Header, MessageKey, whole
from allhands.transport.link_state import PlainLinkState
from allhands.transport.outbox import EAGER_BUDGET
from allhands.transport.socket_inbound import make_bye
from support.arrays.link_algorithms import (
    ALGORITHMS,
    LENGTH,
    Algorithm,
    make_values,
    nothing,
    own,
    total,
)
from support.socket_meshes import MeshRank, socket_meshes, wait_credit, wait_until

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

GROUP, SIGNATURE = 7, 99
PATIENCE = 20.0


@dataclass
class Call:
    """A call of one rank."""

    one: MeshRank
    native: NativeCalls
    part: Part
    op: ReduceOp | None
    sequence: int
    signature: int = SIGNATURE
    under_way: NativeCall | None = None
    has_ended: bool = False
    stops: list[tuple[int, bool]] = field(default_factory=list)
    left_ahead: list[tuple[int, int]] = field(default_factory=list)
    """Where it has stopped, and the round of a message that has left by then."""
    execution: Execution | None = None

    def begin(self) -> None:
        self.one.mesh.begin_call(GROUP, self.sequence, self.signature)
        self.under_way = self.native.begin(self.part, self.op, self.sequence, self.signature)
        assert self.under_way is not None

    def step(self, seconds: float = 0.0) -> None:
        """Go on in the core as far as it goes at once."""
        if not self.has_ended:
            assert self.under_way is not None
            self.has_ended = self.under_way.run(lambda: False, seconds)

    def hand_over(self) -> None:
        """Go on as an execution."""
        if self.has_ended:
            return
        assert self.under_way is not None
        left = self.under_way.withdraw()
        self.stops.append((left.index, left.is_begun))
        self.left_ahead += [(left.index, at) for at, _ in left.sent]
        self.execution = Execution(
            self.one.mesh,
            peers=range(len(self.native._ranks)),
            rank=self.one.rank,
            group=GROUP,
            sequence=self.sequence,
            signature=self.signature,
            op=self.op or ReduceOp.SUM,
        )
        self.execution.begin([self.part], remainder=left)
        self.under_way.give_back()

    async def finish(self) -> None:
        if self.execution is not None:
            async with asyncio.timeout(PATIENCE):
                await self.execution.completion
        self.one.mesh.finish_calls(GROUP, self.sequence)


class World:
    """Ranks and their native calls."""

    def __init__(self, ranks: list[MeshRank], *, digests: bool = False) -> None:
        """`digests`: the frames of the calls have some."""
        self.ranks = ranks
        self.size = len(ranks)
        self.corruptions: list[tuple[int, MessageKey]] = []
        """Peers of frames that were changed, and of what messages."""
        for one in ranks if digests else ():
            one.mesh.enable_digests(GROUP, self)
        places = range(self.size)
        self.native = [
            NativeCalls(one.links, places, one.rank, GROUP, has_digests=digests) for one in ranks
        ]
        self._sequence = 0

    def on_corrupt_frame(self, peer: int, key: MessageKey) -> None:
        self.corruptions.append((peer, key))

    def on_corruption_report(self, peer: int, key: MessageKey, link: tuple[int, int]) -> None:
        raise AssertionError("no rank reports anything here")

    def make_calls(
        self,
        algorithm: Algorithm,
        values: Sequence[Array],
        op: ReduceOp | None = None,
        signature: int = SIGNATURE,
    ) -> list[Call]:
        self._sequence += 1
        dtype = values[0].dtype
        return [
            Call(
                one,
                native,
                Part(
                    algorithm.build(one.rank, self.size),
                    Buffer(algorithm.inputs(values, one.rank), dtype),
                    Buffer(algorithm.outputs(values, one.rank), dtype),
                ),
                op,
                self._sequence,
                signature,
            )
            for one, native in zip(self.ranks, self.native, strict=True)
        ]


async def hand_over_after(calls: Sequence[Call], steps: int) -> None:
    """Begin calls, let all of them take some steps, and let executions end them."""
    for call in calls:
        call.begin()
    for _ in range(steps):
        for call in calls:
            call.step()
    for call in calls:
        call.hand_over()
    for call in calls:
        await call.finish()


def assert_results(calls: Sequence[Call], algorithm: Algorithm, values: Sequence[Array]) -> None:
    for call in calls:
        found = np.concatenate([values[0][:0], *call.part.output.arrays])
        np.testing.assert_array_equal(found, algorithm.result(values, call.one.rank))


LONG = ("doubling", "halving", "ring", "ordered", "bruck", "pairwise", "van de geijn")
"""Algorithms in which every rank waits in more rounds than the first."""
DTYPES = ("int32", "float32", "complex64", ml_dtypes.bfloat16, "uint8")
CASES = [
    pytest.param(name, size, id=f"{name}, {size} ranks")
    for name, algorithm in ALGORITHMS.items()
    for size in algorithm.sizes
]


DIGESTS = pytest.mark.parametrize("digests", [False, True], ids=["plain", "digests"])


async def wait_digests(ranks: Sequence[MeshRank]) -> None:
    """Wait until as many frames with a digest have been taken in on each link as have left."""

    def are_counted(sender: MeshRank, receiver: MeshRank) -> bool:
        sent, came = sender.links.get_state(receiver.rank), receiver.links.get_state(sender.rank)
        assert sent is not None
        assert came is not None
        return sent.signed_frames == came.verified_frames

    pairs = list(itertools.permutations(ranks, 2))
    await wait_until(lambda: all(are_counted(*pair) for pair in pairs))


@DIGESTS
@pytest.mark.parametrize(("name", "size"), CASES)
async def test_a_call_given_up_after_any_step_ends_with_the_same_numbers(
    name: str, size: int, digests: bool
) -> None:
    """Steps are those of all ranks in turn; some ranks are a step ahead of the others."""
    algorithm = ALGORITHMS[name]
    op = ReduceOp.SUM if algorithm.reduces else None
    stops: set[tuple[int, bool]] = set()
    async with socket_meshes(size) as ranks:
        world = World(ranks, digests=digests)
        for number, dtype in enumerate(DTYPES):
            values = make_values(size, dtype, number)
            for steps, ahead in itertools.product(range(4), range(size)):
                # The signature has the dtype in it.
                calls = world.make_calls(algorithm, values, op, SIGNATURE + number)
                for call in calls:
                    call.begin()
                for _ in range(steps):
                    for call in calls:
                        call.step()
                calls[ahead].step()
                for call in calls[ahead:] + calls[:ahead]:
                    call.hand_over()
                for call in calls:
                    await call.finish()
                    stops.update(call.stops)
                assert_results(calls, algorithm, values)
                await wait_credit(ranks)
        assert not world.corruptions
        await wait_digests(ranks)
        states = [ranks[0].links.get_state(peer) for peer in range(1, size)]
        frames = sum(one.signed_frames + one.verified_frames for one in states if one is not None)
        assert (frames > 0) is digests
    assert {(0, False), (0, True)} <= stops
    if name in LONG and size > 2:
        assert any(index > 0 for index, _ in stops)


async def test_a_barrier_given_up_after_any_step_ends() -> None:
    async with socket_meshes(4) as ranks:
        world = World(ranks)
        barrier = Algorithm(dissemination.barrier, nothing, nothing, lambda values, rank: values[0])
        for steps in range(4):
            calls = world.make_calls(barrier, make_values(4, "uint8"))
            await hand_over_after(calls, steps)


@DIGESTS
@pytest.mark.parametrize("name", ["doubling", "ring", "bruck"])
async def test_what_came_before_the_call_began_is_used(name: str, digests: bool) -> None:
    """Rank 0 is late: the loop has taken in what the others sent."""
    algorithm = ALGORITHMS[name]
    values = make_values(3, "float32")
    async with socket_meshes(3) as ranks:
        world = World(ranks, digests=digests)
        calls = world.make_calls(algorithm, values, ReduceOp.SUM if algorithm.reduces else None)
        for call in calls[1:]:
            call.begin()
            call.step()
            call.hand_over()
        early = ranks[0].mesh._inbox._early
        await wait_until(lambda: any(key.sequence == calls[0].sequence for _, key in early))
        calls[0].begin()
        calls[0].step()
        calls[0].hand_over()
        for call in calls:
            await call.finish()
        assert_results(calls, algorithm, values)


@pytest.mark.parametrize("op", OPS)
async def test_every_operation_has_the_bits_of_an_execution(op: ReduceOp) -> None:
    """Both ways of a call may be taken by different ranks."""
    algorithm = ALGORITHMS["doubling"]
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        for number, name in enumerate(TYPES):
            dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
            try:
                check(op, dtype)
            except TypeError:
                continue
            values = _make_odd_values(dtype)
            found = []
            for gives_up in (False, True):
                calls = world.make_calls(algorithm, values, op, SIGNATURE + number)
                for call in calls:
                    call.begin()
                while not gives_up and not all(call.has_ended for call in calls):
                    for call in calls:
                        call.step()
                for call in calls:
                    call.hand_over()
                for call in calls:
                    await call.finish()
                found += [call.part.output.arrays[0].tobytes() for call in calls]
            assert len(set(found)) == 1, name


def _make_odd_values(dtype: "np.dtype[Any]") -> list[Array]:
    rng = np.random.default_rng(3)
    values: Any = rng.integers(-100, 100, (2, LENGTH))
    if dtype.kind not in "biu":
        values = values / 7
        values[0, :4] = [np.inf, -np.inf, np.nan, -0.0]
        values[1, :5] = [-np.inf, np.nan, 1.0, 0.0, np.nan]
    with np.errstate(all="ignore"):
        return [np.asarray(one).astype(dtype) for one in values]


@DIGESTS
@pytest.mark.parametrize("name", ["doubling", "bruck"])
async def test_messages_longer_than_what_is_read_ahead_come_in_pieces(
    name: str, digests: bool
) -> None:
    """Each is 400 KB, and the connection takes less at a time."""
    length = 100_000
    build = {"doubling": doubling.all_reduce, "bruck": None}[name]
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=digests)
        values = [np.arange(length, dtype=np.float32) + rank for rank in range(2)]
        algorithm = Algorithm(
            (lambda rank, size: build(rank, size, length))
            if build is not None
            else (lambda rank, size: bruck.all_gather(rank, size, (length, length))),
            nothing if build is not None else own,
            own if build is not None else lambda values, rank: [np.zeros_like(x) for x in values],
            total if build is not None else lambda values, rank: np.concatenate(values),
        )
        for turns in range(1, 40, 6):
            calls = world.make_calls(algorithm, values, None if build is None else ReduceOp.SUM)
            await hand_over_after(calls, turns)
            assert_results(calls, algorithm, values)


def in_pieces(length: int, pieces: int) -> Algorithm:
    """A sum of so many float32, of which each piece goes in a round of its own, as two messages."""

    def build(rank: int, size: int) -> Schedule:
        rounds = split_rounds(doubling.all_reduce(rank, size, length), pieces)
        return cut_messages(rounds, length // pieces // 2, length)

    return Algorithm(build, nothing, own, total)


async def test_a_call_gives_credit_back_while_it_is_under_way() -> None:
    """It sends twice what may be with a peer."""
    length, pieces = 2 * EAGER_BUDGET // 4, 8
    values = [np.full(length, rank + 1, np.float32) for rank in range(2)]
    async with socket_meshes(2) as ranks:
        calls = World(ranks).make_calls(in_pieces(length, pieces), values, ReduceOp.SUM)
        for call in calls:
            call.begin()
        until = time.monotonic() + PATIENCE
        while not all(call.has_ended for call in calls) and time.monotonic() < until:
            for call in calls:
                call.step()
        assert all(call.has_ended for call in calls)
        assert_results(calls, in_pieces(length, pieces), values)
        await wait_credit(ranks)


@pytest.mark.parametrize("turns", [3, 5, 8])
async def test_credit_is_given_back_once_where_a_call_goes_on_elsewhere(turns: int) -> None:
    """What it has taken in of the round at hand is put back, and taken in again."""
    length, pieces = EAGER_BUDGET // 4, 8
    values = [np.full(length, rank + 1, np.float32) for rank in range(2)]
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        for _ in range(3):
            calls = world.make_calls(in_pieces(length, pieces), values, ReduceOp.SUM)
            await hand_over_after(calls, turns)
            assert_results(calls, in_pieces(length, pieces), values)
            await wait_credit(ranks)


@DIGESTS
@pytest.mark.parametrize("turns", [1, 2, 4])
async def test_messages_that_have_left_ahead_are_not_sent_again(turns: int, digests: bool) -> None:
    """Rank 0 sends of the round that it waits in and of the next; the last of them in part."""
    length, pieces = 640_000, 32
    values = [np.arange(length, dtype=np.float32) + rank for rank in range(2)]
    algorithm = in_pieces(length, pieces)
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=digests)
        for _ in range(3):
            calls = world.make_calls(algorithm, values, ReduceOp.SUM)
            for call in calls:
                call.begin()
            for _ in range(turns):
                calls[0].step()
                calls[1].step()
            calls[0].step()
            for call in calls:
                call.hand_over()
            for call in calls:
                await call.finish()
            assert any(one > index for call in calls for index, one in call.left_ahead)
            assert_results(calls, algorithm, values)
            await wait_credit(ranks)
        if digests:
            await wait_digests(ranks)
        assert not world.corruptions


# ---------------------------------------------------------------- what does not belong there


def outbound(one: MeshRank, peer: int) -> socket.socket:
    """Return the connection over which a rank sends to a peer."""
    found = one.fabric._links[peer]._raw
    assert isinstance(found, socket.socket)
    return found


def frame(sequence: int, payload: bytes, **other: Any) -> bytes:
    total = other.pop("total", len(payload))
    signature = other.pop("signature", SIGNATURE)
    key = MessageKey(GROUP, sequence, **other)
    return Header(FrameKind.DATA, key, signature, total, 0, len(payload)).pack() + payload


async def begin_pair(world: World) -> tuple[Call, list[Array]]:
    """Begin an all_reduce of rank 0 of two, whose peer is played by the test."""
    values = make_values(2, "float32")
    calls = world.make_calls(ALGORITHMS["doubling"], values, ReduceOp.SUM)
    calls[0].begin()
    calls[0].step()
    assert not calls[0].has_ended
    return calls[0], values


async def test_a_peer_that_dies_within_a_message_ends_its_link_by_name() -> None:
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        call, values = await begin_pair(world)
        sent = outbound(ranks[1], 0)
        sent.send(frame(call.sequence, values[1].tobytes())[:150])
        call.step()
        sent.shutdown(socket.SHUT_WR)
        call.step(PATIENCE)  # the end of the connection, not of the time
        assert not call.has_ended
        assert call.part.output.arrays[0].tolist() == values[0].tolist()
        call.hand_over()
        async with asyncio.timeout(PATIENCE):
            peer, reason = await ranks[0].events.breaks.get()
        assert (peer, "went away" in reason) == (1, True)
        assert call.execution is not None
        assert call.execution.list_awaited() == [1]
        call.execution.stop()


@pytest.mark.parametrize("at", [0, 1, 2, 59], ids=["magic", "magic", "version", "length"])
async def test_a_damaged_header_breaks_the_link_and_touches_nothing(at: int) -> None:
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        call, values = await begin_pair(world)
        damaged = bytearray(frame(call.sequence, values[1].tobytes()))
        damaged[at] ^= 0xFF
        outbound(ranks[1], 0).send(damaged)
        call.step(PATIENCE)
        assert not call.has_ended
        call.hand_over()
        async with asyncio.timeout(PATIENCE):
            peer, reason = await ranks[0].events.breaks.get()
        assert peer == 1
        assert "protocol error" in reason
        assert call.part.output.arrays[0].tolist() == values[0].tolist()
        assert call.execution is not None
        call.execution.stop()


@pytest.mark.parametrize(
    ("other", "nbytes"),
    [
        ({"signature": SIGNATURE + 1}, 4 * LENGTH),
        ({"total": 4 * LENGTH - 4}, 4 * LENGTH - 4),
        ({"total": 8 * LENGTH}, 4 * LENGTH),
    ],
    ids=["signature", "shorter", "longer"],
)
async def test_a_message_of_another_call_is_a_mismatch_and_touches_nothing(
    other: dict[str, int], nbytes: int
) -> None:
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        call, values = await begin_pair(world)
        payload = values[1].tobytes()[:nbytes]
        outbound(ranks[1], 0).send(frame(call.sequence, payload, **other))
        call.step(PATIENCE)
        assert not call.has_ended
        call.hand_over()
        with pytest.raises(MismatchFound):
            await call.finish()
        assert ranks[0].events.mismatches == ([1] if "signature" in other else [])
        assert call.part.output.arrays[0].tolist() == values[0].tolist()


async def test_frames_of_others_are_taken_in_while_the_call_goes_on() -> None:
    """A ping is answered, and messages of the next call wait for it."""
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        call, values = await begin_pair(world)
        ping = Header(FrameKind.PING, MessageKey(0, 0), 0, 0).pack()
        mine = frame(call.sequence, values[1].tobytes())
        following = frame(call.sequence + 1, values[1].tobytes())
        before = len(ranks[1].events.pongs)
        outbound(ranks[1], 0).send(ping + mine + following)
        call.step(PATIENCE)
        assert call.has_ended
        await call.finish()
        assert_results([call], ALGORITHMS["doubling"], values)
        (second, _) = world.make_calls(ALGORITHMS["doubling"], values, ReduceOp.SUM)
        second.begin()
        second.step(PATIENCE)
        assert second.has_ended
        await second.finish()
        assert_results([second], ALGORITHMS["doubling"], values)
        await wait_until(lambda: len(ranks[1].events.pongs) > before)


def in_thirds(length: int) -> Algorithm:
    """Rank 1 of two sends its array to rank 0, in three messages of one round."""
    ends = (0, length // 3, 2 * length // 3, length)

    def build(rank: int, size: int) -> Schedule:
        area = Area.INPUT if rank else Area.OUTPUT
        thirds = [Span(area, start, end) for start, end in itertools.pairwise(ends)]
        if rank:
            return Schedule((Round(sends=tuple(Send(0, span) for span in thirds)),))
        return Schedule((Round(recvs=tuple(Recv(1, span) for span in thirds)),))

    return Algorithm(
        build,
        lambda values, rank: [values[1]] if rank else [],
        lambda values, rank: [] if rank else [np.zeros_like(values[0])],
        lambda values, rank: values[1][: 0 if rank else length],
    )


@pytest.mark.parametrize("given_up", [False, True], ids=["whole", "in part"])
async def test_frames_with_digests_between_those_of_a_call_are_counted_once(given_up: bool) -> None:
    """A call of three messages of one link is given up before the last of them has come whole."""
    values = make_values(2, "float32")
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=True)
        mine, other = world.make_calls(in_thirds(LENGTH), values)
        signer = FrameSigner({GROUP: None}, LinkKey(b"", 1, 0), PlainLinkState(0))
        payload, sent = values[1].tobytes(), []
        for number, one in enumerate(other.part.schedule.rounds[0].sends):
            part = payload[4 * one.span.start : 4 * one.span.stop]
            sent.append(whole(signer.sign([frame(mine.sequence, part, step=number)])))
            key = MessageKey(GROUP, number + 1, part=5, is_p2p=True)
            message = Header(FrameKind.DATA, key, 3, 4, 0, 4).pack() + b"some"
            sent.append(whole(signer.sign([message])))
        mine.begin()
        bytes_sent = b"".join(sent)
        cut = len(bytes_sent) - len(sent[-1]) - 3 if given_up else len(bytes_sent)
        outbound(ranks[1], 0).send(bytes_sent[:cut])
        state = ranks[0].links.get_state(1)
        assert state is not None
        for _ in range(1000):
            mine.step(PATIENCE / 1000)
            if mine.has_ended or state.verified_frames == 4:
                break
        assert mine.has_ended is not given_up
        mine.hand_over()
        outbound(ranks[1], 0).send(bytes_sent[cut:])
        await mine.finish()
        await wait_until(lambda: state.verified_frames == len(sent))
        assert not world.corruptions
        assert_results([mine], in_thirds(LENGTH), values)


async def test_frames_that_have_not_left_are_signed_in_the_order_in_which_they_go() -> None:
    """The first of three messages leaves in part, and two calls follow."""
    length = 700_000
    values = [np.arange(length, dtype=np.float32) + rank for rank in range(2)]
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=True)
        outbound(ranks[1], 0).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(3):
            mine, other = world.make_calls(in_thirds(length), values)
            mine.begin()
            other.begin()
            other.step()
            assert not other.has_ended
            other.hand_over()
            mine.hand_over()
            for call in (mine, other):
                await call.finish()
            assert_results([mine], in_thirds(length), values)
        await wait_digests(ranks)
        assert not world.corruptions
        assert ranks[0].events.breaks.empty()


async def test_a_frame_that_waits_is_signed_again_when_another_goes_before_it() -> None:
    values = make_values(2, "float32")
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=True)
        link, state = outbound(ranks[1], 0), ranks[1].links.get_state(0)
        assert state is not None
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        calls: list[tuple[Call, Call]] = []
        has_room = True
        while has_room:
            mine, last = world.make_calls(in_thirds(LENGTH), values)
            calls.append((mine, last))
            last.begin()
            last.step()
            has_room = last.has_ended
        before = state.signed_frames
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ranks[1].mesh.send_call(0, MessageKey(GROUP, len(calls) + 1), SIGNATURE)
        assert state.signed_frames == before + 1
        last.step(PATIENCE)
        for mine, other in calls:
            mine.begin()
            mine.hand_over()
            for call in (mine, other):
                await call.finish()
            assert_results([mine], in_thirds(LENGTH), values)
        await wait_digests(ranks)
        assert not world.corruptions
        assert ranks[0].events.breaks.empty()


@pytest.mark.parametrize("at", [4, 45, 47, 54, HEADER_BYTES, HEADER_BYTES + 4 * LENGTH - 1])
async def test_a_changed_frame_touches_nothing_and_is_named_once(at: int) -> None:
    """Its epoch, a size, either half of its digest, or its payload."""
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=True)
        call, values = await begin_pair(world)
        signer = FrameSigner({GROUP: None}, LinkKey(b"", 1, 0), PlainLinkState(0))
        changed = bytearray(whole(signer.sign([frame(call.sequence, values[1].tobytes())])))
        changed[at] ^= 0x10
        outbound(ranks[1], 0).send(changed)
        call.step(PATIENCE)
        assert not call.has_ended
        call.hand_over()
        await wait_until(lambda: world.corruptions or not ranks[0].events.breaks.empty())
        if at != 45:  # a size that cannot be: the link is broken off
            assert [peer for peer, _ in world.corruptions] == [1]
            assert world.corruptions[0][1].sequence == call.sequence
        assert call.part.output.arrays[0].tolist() == values[0].tolist()
        assert call.execution is not None
        call.execution.stop()


async def test_a_frame_that_comes_twice_is_no_frame_of_the_next_call() -> None:
    async with socket_meshes(2) as ranks:
        world = World(ranks, digests=True)
        call, values = await begin_pair(world)
        signer = FrameSigner({GROUP: None}, LinkKey(b"", 1, 0), PlainLinkState(0))
        sent = whole(signer.sign([frame(call.sequence, values[1].tobytes())]))
        outbound(ranks[1], 0).send(sent)
        call.step(PATIENCE)
        assert call.has_ended
        await call.finish()
        outbound(ranks[1], 0).send(sent)
        async with asyncio.timeout(PATIENCE):
            peer, reason = await ranks[0].events.breaks.get()
        assert (peer, "frame 1 of those checked came twice" in reason) == (1, True)


async def test_what_a_peer_sent_before_it_closed_the_link_is_used() -> None:
    """The end of its link is read while another peer is waited for."""
    algorithm = ALGORITHMS["together"]
    values = make_values(3, "float32")
    async with socket_meshes(3) as ranks:
        world = World(ranks)
        mine, leaving, late = world.make_calls(algorithm, values)
        leaving.begin()
        leaving.step()
        outbound(ranks[1], 0).send(make_bye(""))
        mine.begin()
        mine.step()
        mine.hand_over()
        late.begin()
        late.step()
        late.hand_over()
        for call in (mine, late):
            await call.finish()
        assert_results([mine, late], algorithm, values)
        leaving.hand_over()
        assert leaving.execution is not None
        leaving.execution.stop()


async def test_an_answer_that_left_in_part_is_not_broken_into() -> None:
    """The last room of the connection is filled by half the answer to a ping."""
    algorithm = ALGORITHMS["ring"]
    values = make_values(2, "float32")
    async with socket_meshes(2) as ranks:
        world = World(ranks)
        mine, theirs = world.make_calls(algorithm, values, ReduceOp.SUM)
        mine.begin()
        mine.step()
        before = len(ranks[1].events.pongs)
        link = ranks[0].fabric._links[1]
        link._write = partial(_write_half, link)  # type: ignore[method-assign]
        outbound(ranks[1], 0).send(Header(FrameKind.PING, MessageKey(0, 0), 0, 0).pack())
        theirs.begin()
        theirs.step()
        mine.step()  # what it sends in the second round comes behind the answer
        for call in (mine, theirs):
            call.hand_over()
        for call in (mine, theirs):
            await call.finish()
        assert_results([mine, theirs], algorithm, values)
        await wait_until(lambda: len(ranks[1].events.pongs) > before)
        assert ranks[1].events.breaks.empty()


def _write_half(link: Any, pieces: Sequence[bytes]) -> bool:
    """Write a frame as if the connection had room for half of its header."""
    whole = b"".join(bytes(piece) for piece in pieces)
    sent = link._socket.send(whole[:32])
    link._unwritten = [memoryview(whole[sent:])]
    link._loop.add_writer(link._raw, link._on_writable)
    return True


# ---------------------------------------------------------------- how long a call is held


class ScriptedCall:
    """A call in the core of which so many rounds have ended after each run, in milliseconds."""

    def __init__(self, rounds: Sequence[int]) -> None:
        self._rounds = iter(rounds)
        self.now = 0
        self.at = 0
        self.runs: list[int] = []

    def run(self, until: int, spin: int) -> int:
        self.runs.append((until - self.now) // 1_000_000)
        self.now = until
        before, self.at = self.at, next(self._rounds)
        return 0 if self.at < before else 1


@pytest.mark.parametrize(
    ("rounds", "has_ended", "runs"),
    [
        ([0], False, [2]),
        ([1, 1], False, [2, 5]),
        ([1, 2, 5, 0], True, [2, 5, 5, 5]),
        (range(1, 99), False, [2, *[5] * 19, 3]),
    ],
)
def test_a_call_is_held_for_longer_while_its_rounds_end(
    monkeypatch: pytest.MonkeyPatch, rounds: Sequence[int], has_ended: bool, runs: list[int]
) -> None:
    scripted: Any = ScriptedCall(rounds)
    clock = SimpleNamespace(monotonic_ns=lambda: scripted.now)
    monkeypatch.setattr(native_calls, "time", clock)
    links: Any = SimpleNamespace(take_back=lambda peers: None)
    call = NativeCall(links, CompiledCall(Schedule(()), scripted, (1,), np.empty(0)))
    assert call.run(lambda: False, 0.002) is has_ended
    assert scripted.runs == runs
