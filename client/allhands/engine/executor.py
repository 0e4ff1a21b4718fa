"""The one place where schedules become messages: a schedule of this rank, over a mesh."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allhands.engine.buffer import Array, Buffer, octets
from allhands.reduction import ReduceOp, combine, fold
from allhands.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.transport.frame import Key
from allhands.transport.inbox import Incoming, Unlike
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import Outgoing

CONCURRENT_PARTS = 4
"""Slices of one call under way at once: enough to overlap network and reduction."""


class MismatchFound(Exception):
    """A peer's message is not the one that this call expects; nothing of it was used."""

    def __init__(self, peer: int, key: Key) -> None:
        super().__init__(f"rank {peer} made another call")
        self.peer = peer
        """As a rank of the world."""
        self.key = key


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of a call: a schedule and the buffers that its spans name."""

    schedule: Schedule
    input: Buffer
    output: Buffer


class Execution:
    """One call being carried out on one rank."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        peers: Sequence[int],
        rank: int,
        group: int,
        sequence: int,
        signature: int,
        reduce: ReduceOp = ReduceOp.SUM,
        first: int = 0,
    ) -> None:
        """`first` is the number of the first part, where a call has several executions."""
        self._mesh = mesh
        self._peers = peers
        self._rank = rank
        self._group = group
        self._sequence = sequence
        self._signature = signature
        self._reduce = reduce
        self._first = first
        self._awaited: dict[asyncio.Future[None], int] = {}

    async def run(self, parts: Sequence[Part]) -> None:
        """Carry out all parts.

        Cancellable at any time: nothing lands in the buffers afterwards, and nothing more is sent.

        Raises:
            MismatchFound: a peer called something else.
        """
        if len(parts) == 1:
            await self._run_part(self._first, parts[0])
            return
        # Started in order on every rank, so the first unfinished part is under way everywhere.
        gate = asyncio.Semaphore(CONCURRENT_PARTS)

        async def run_one(number: int, part: Part) -> None:
            async with gate:
                await self._run_part(number, part)

        await together(run_one(number, part) for number, part in enumerate(parts, self._first))

    def waiting_for(self) -> list[int]:
        """Return the ranks of the group that this call now waits for."""
        return sorted({peer for future, peer in self._awaited.items() if not future.done()})

    # ------------------------------------------------------------ inside

    async def _run_part(self, number: int, part: Part) -> None:
        scratch = Buffer([np.empty(part.schedule.scratch, part.output.dtype)], part.output.dtype)
        areas = {Area.INPUT: part.input, Area.OUTPUT: part.output, Area.SCRATCH: scratch}
        for index, step in enumerate(part.schedule.rounds):
            await self._run_round(number, index, step, areas)

    async def _run_round(
        self, number: int, index: int, step: Round, areas: dict[Area, Buffer]
    ) -> None:
        for copy in step.copies:
            _copy(areas, copy.source, copy.target)
        for one in step.folds:
            operands = [areas[span.area].whole(span.start, span.stop) for span in one.sources]
            target = areas[one.target.area].whole(one.target.start, one.target.stop)
            fold(self._reduce, operands, target, len(self._peers))
        aside = _must_wait(step)
        outgoing: list[tuple[int, Outgoing]] = []
        incoming: list[Incoming] = []
        landed: list[tuple[Recv, Array]] = []
        futures: list[asyncio.Future[None]] = []
        nth: dict[tuple[bool, int], int] = {}

        def key(peer: int, receives: bool) -> Key:
            count = nth.get((receives, peer), 0)
            nth[receives, peer] = count + 1
            return Key(self._group, self._sequence, index << 12 | count, number)

        try:
            for recv in step.recvs:
                if aside:
                    target = np.empty(len(recv.span), areas[Area.OUTPUT].dtype)
                    landed.append((recv, target))
                    posted, future = self._incoming(recv.peer, [target], None)
                else:
                    area = areas[recv.span.area]
                    pieces = area.pieces(recv.span.start, recv.span.stop)
                    posted, future = self._incoming(
                        recv.peer, pieces, recv.peer if recv.reduce else None
                    )
                incoming.append(posted)
                futures.append(future)
                self._mesh.post(self._peers[recv.peer], key(recv.peer, True), posted)
            for send in step.sends:
                message, future = self._outgoing(send, key(send.peer, False), areas)
                outgoing.append((self._peers[send.peer], message))
                futures.append(future)
                self._mesh.send(self._peers[send.peer], message)
            for future in futures:
                if not future.done():
                    await _first_failure(futures)
                    break
            for future in futures:
                if future.done():  # all are, unless one has failed
                    future.result()
        except BaseException:
            for posted in incoming:
                self._mesh.retract(posted)
            for peer, message in outgoing:
                self._mesh.withdraw(peer, message)
            for future in futures:
                future.cancel()
            raise
        finally:
            for future in futures:
                self._awaited.pop(future, None)
                if future.done() and not future.cancelled():
                    future.exception()  # seen, even where another one is raised
        for recv, values in landed:
            target = areas[recv.span.area].whole(recv.span.start, recv.span.stop)
            self._land(values, target, recv.peer if recv.reduce else None)

    def _incoming(
        self, peer: int, pieces: Sequence[Array], reduced_from: int | None
    ) -> tuple[Incoming, "asyncio.Future[None]"]:
        future = self._await(peer)
        total = sum(piece.nbytes for piece in pieces)
        grain = 1
        if reduced_from is None:
            views = [octets(piece) for piece in pieces]

            def land(offset: int, payload: memoryview) -> None:
                _overwrite(views, offset, payload)

            def room(offset: int, length: int) -> memoryview | None:
                return views[0][offset : offset + length] if len(views) == 1 else None

        else:
            grain = pieces[0].itemsize if pieces else 1
            assert len(pieces) <= 1, "a span that is reduced lies in one array"

            def land(offset: int, payload: memoryview) -> None:
                target = pieces[0]
                first = offset // target.itemsize
                values = np.frombuffer(payload, target.dtype)
                self._land(values, target[first : first + len(values)], reduced_from)

            def room(offset: int, length: int) -> memoryview | None:
                return None

        def done(unlike: Unlike | None) -> None:
            if future.done():
                return
            if unlike is None:
                future.set_result(None)
            else:
                key = Key(self._group, self._sequence)
                future.set_exception(MismatchFound(self._peers[peer], key))

        return Incoming(total, self._signature, land, done, grain=grain, room=room), future

    def _outgoing(
        self, send: Send, key: Key, areas: dict[Area, Buffer]
    ) -> tuple[Outgoing, "asyncio.Future[None]"]:
        future = self._await(send.peer)
        pieces = areas[send.span.area].pieces(send.span.start, send.span.stop)

        def done(is_like: bool) -> None:
            if future.done():
                return
            if is_like:
                future.set_result(None)
            else:
                place = Key(self._group, self._sequence)
                future.set_exception(MismatchFound(self._peers[send.peer], place))

        return Outgoing(key, [octets(piece) for piece in pieces], self._signature, done), future

    def _await(self, peer: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited[future] = peer
        return future

    def _land(self, values: Array, target: Array, reduced_from: int | None) -> None:
        """Put what came into its place; the lower rank's contribution is the left operand."""
        if reduced_from is None:
            np.copyto(target, values)
        elif reduced_from < self._rank:
            combine(self._reduce, values, target, out=target)
        else:
            combine(self._reduce, target, values, out=target)


def _must_wait(step: Round) -> bool:
    """Say whether what is received could be seen in what is still being sent.

    Two receives into one span wait as well: they must land in the order listed.
    """
    targets = [recv.span for recv in step.recvs]
    if any(send.span.overlaps(target) for send in step.sends for target in targets):
        return True
    return any(
        first.overlaps(second) for at, first in enumerate(targets) for second in targets[:at]
    )


def _copy(areas: dict[Area, Buffer], source: Span, target: Span) -> None:
    data = areas[source.area].pieces(source.start, source.stop)
    room = areas[target.area].pieces(target.start, target.stop)
    if len(data) == len(room) == 1:
        np.copyto(room[0], data[0])
        return
    views = [octets(piece) for piece in room]
    offset = 0
    for piece in data:
        _overwrite(views, offset, octets(piece))
        offset += piece.nbytes


def _overwrite(views: Sequence[memoryview], offset: int, payload: memoryview) -> None:
    """Write bytes at an offset into views that count end to end."""
    for view in views:
        if offset >= len(view):
            offset -= len(view)
            continue
        room = min(len(view) - offset, len(payload))
        view[offset : offset + room] = payload[:room]
        payload = payload[room:]
        offset = 0
        if not payload:
            return


async def _first_failure(futures: Sequence["asyncio.Future[None]"]) -> None:
    """Wait until all are done, or one has failed."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines together; the first failure cancels the others and is raised bare."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
