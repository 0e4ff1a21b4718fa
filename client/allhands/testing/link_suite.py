"""Conformance tests of fabrics and links; see `conformance`.

Each test has an event loop of its own, so that no plugin is needed.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from allhands.transport.frame import (
    MAX_PAYLOAD_BYTES,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    unpack_header,
)
from allhands.transport.link import Fabric, Gathering, LinkBroken, Receiver

_PATIENCE = 10.0

S = TypeVar("S")


def run_in_loop(test: Callable[[S], Coroutine[None, None, None]]) -> Callable[[S], None]:
    """Turn a coroutine test method into a plain method with an event loop."""

    @functools.wraps(test)
    def run(self: S) -> None:
        asyncio.run(test(self))

    return run


def make_frame(number: int, payload: bytes = b"") -> bytes:
    """Make a frame, identified by its sequence number."""
    header = Header(FrameKind.DATA, MessageKey(1, number), 0, len(payload), 0, len(payload))
    return header.pack() + payload


class RecordingReceiver:
    """Receiver that records frames and wakes waiters."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.breaks: list[tuple[int, str]] = []
        self.poison: bytes | None = None
        self._changed = asyncio.Event()

    def accept(self, peer: int, frame: bytes | memoryview) -> None:
        if frame == self.poison:
            raise FrameError("poison")
        self.frames.append((peer, bytes(frame)))
        self._changed.set()

    def open(self, peer: int, header: bytes) -> Gathering:
        nbytes = unpack_header(header).length
        return Gathering(header, nbytes, lambda frame: self.accept(peer, frame))

    def broken(self, peer: int, reason: str) -> None:
        self.breaks.append((peer, reason))
        self._changed.set()

    async def wait_counts(self, *, frames: int = 0, breaks: int = 0) -> None:
        """Wait until the numbers of received frames and breaks are reached."""
        async with asyncio.timeout(_PATIENCE):
            while len(self.frames) < frames or len(self.breaks) < breaks:
                self._changed.clear()
                await self._changed.wait()


class LinkSuite:
    """The contract of `transport.link`, as tests."""

    def fabrics(
        self, receivers: Sequence[Receiver]
    ) -> AbstractAsyncContextManager[Sequence[Fabric]]:
        """Yield a fabric for each receiver, by rank, all of one world."""
        raise NotImplementedError

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[list[Fabric], list[RecordingReceiver]]]:
        recorders = [RecordingReceiver(), RecordingReceiver()]
        async with self.fabrics(recorders) as fabrics:
            yield list(fabrics), recorders

    @run_in_loop
    async def test_frames_arrive_whole_and_in_the_order_sent(self) -> None:
        async with self.pair() as (fabrics, recorders):
            link = await fabrics[0].dial(1)
            sent = [make_frame(number, b"x" * (number * 1000)) for number in range(100)]
            for one in sent:
                await link.send([one])
            await recorders[1].wait_counts(frames=len(sent))
            assert recorders[1].frames == [(0, one) for one in sent]

    @run_in_loop
    async def test_the_largest_frame_passes(self) -> None:
        async with self.pair() as (fabrics, recorders):
            link = await fabrics[0].dial(1)
            largest = make_frame(1, b"y" * MAX_PAYLOAD_BYTES)
            await link.send([largest])
            await recorders[1].wait_counts(frames=1)
            assert recorders[1].frames == [(0, largest)]

    @run_in_loop
    async def test_both_directions_are_links_of_their_own(self) -> None:
        async with self.pair() as (fabrics, recorders):
            there, back = await fabrics[0].dial(1), await fabrics[1].dial(0)
            await there.send([make_frame(1)])
            await back.send([make_frame(2)])
            await recorders[0].wait_counts(frames=1)
            await recorders[1].wait_counts(frames=1)
            assert recorders[0].frames == [(1, make_frame(2))]
            assert recorders[1].frames == [(0, make_frame(1))]

    @run_in_loop
    async def test_close_returns_when_everything_has_been_taken_in(self) -> None:
        async with self.pair() as (fabrics, recorders):
            link = await fabrics[0].dial(1)
            for number in range(20):
                await link.send([make_frame(number, b"z" * MAX_PAYLOAD_BYTES)])
            await link.close()
            assert len(recorders[1].frames) == 20
            assert recorders[1].breaks == []
            await link.close()

    @run_in_loop
    async def test_nothing_can_be_sent_after_close(self) -> None:
        async with self.pair() as (fabrics, _):
            link = await fabrics[0].dial(1)
            await link.close()
            await _assert_breaks(link.send([make_frame(1)]))

    @run_in_loop
    async def test_a_dropped_link_is_told_to_the_receiver(self) -> None:
        async with self.pair() as (fabrics, recorders):
            link = await fabrics[0].dial(1)
            await link.send([make_frame(1)])
            await recorders[1].wait_counts(frames=1)
            link.abort()
            await recorders[1].wait_counts(breaks=1)
            assert [peer for peer, _ in recorders[1].breaks] == [0]
            link.abort()

    @run_in_loop
    async def test_a_peer_that_goes_away_breaks_the_links_to_it(self) -> None:
        async with self.pair() as (fabrics, recorders):
            link = await fabrics[0].dial(1)
            await link.send([make_frame(1)])
            await recorders[1].wait_counts(frames=1)
            await fabrics[1].aclose()
            await recorders[0].wait_counts(breaks=1)
            assert recorders[0].breaks[0][0] == 1
            await _assert_breaks(link.send([make_frame(2)]))

    @run_in_loop
    async def test_a_peer_that_is_not_there_cannot_be_dialled(self) -> None:
        async with self.pair() as (fabrics, _):
            await fabrics[1].aclose()
            await _assert_breaks(fabrics[0].dial(1))

    @run_in_loop
    async def test_a_frame_that_is_none_breaks_the_link_at_both_ends(self) -> None:
        async with self.pair() as (fabrics, recorders):
            recorders[1].poison = make_frame(666)
            link = await fabrics[0].dial(1)
            await link.send([make_frame(666)])
            await recorders[0].wait_counts(breaks=1)
            await recorders[1].wait_counts(breaks=1)
            assert "protocol error" in recorders[1].breaks[0][1]
            assert recorders[1].frames == []


async def _assert_breaks(attempt: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            await attempt
    except LinkBroken:
        return
    raise AssertionError("the link should have been broken")
