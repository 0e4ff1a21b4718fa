"""The one place where schedules become messages: a schedule of this rank, over a mesh."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from allhands.engine.buffer import Array, Buffer, octets
from allhands.reduction import ReduceOp, combine, fold
from allhands.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.transport.frame import Key
from allhands.transport.inbox import Incoming, Unlike
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import UNASKED, Outgoing

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
    name: str = ""
    """Of the algorithm, for people."""


class Execution:
    """One call being carried out on one rank.

    It goes on whenever something has come or gone out, within the mesh's own calls: no task waits
    between the rounds.
    """

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
        self.mesh = mesh
        self.peers = peers
        self.rank = rank
        self.group = group
        self.sequence = sequence
        self.signature = signature
        self.reduce = reduce
        self._first = first
        self._queued: deque[_Strand] = deque()
        self._running: set[_Strand] = set()
        self._is_starting = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends as `run` does, once it has begun."""

    async def run(self, parts: Sequence[Part]) -> None:
        """Carry out all parts.

        Cancellable at any time: nothing lands in the buffers afterwards, and nothing more is sent.

        Raises:
            MismatchFound: a peer called something else.
        """
        try:
            await self.begin(parts)
        finally:
            self.stop()

    def begin(self, parts: Sequence[Part]) -> "asyncio.Future[None]":
        """Start to carry out all parts; the future ends as `run` does, and `stop` must follow."""
        # Started in order on every rank, so the first unfinished part is under way everywhere.
        self._queued.extend(
            _Strand(self, number, part) for number, part in enumerate(parts, self._first)
        )
        self._start_more()
        return self.ended

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        self._queued.clear()
        running, self._running = self._running, set()
        for strand in running:
            strand.stop()

    def waiting_for(self) -> list[int]:
        """Return the ranks of the group that this call now waits for."""
        return sorted({peer for strand in self._running for peer in strand.waiting_for()})

    # ------------------------------------------------------------ for the strands

    def fail(self, error: Exception) -> None:
        """End all parts."""
        self.stop()
        if not self.ended.done():
            self.ended.set_exception(error)

    def mismatch(self, peer: int) -> None:
        """Learn that a rank of the group made another call."""
        self.fail(MismatchFound(self.peers[peer], Key(self.group, self.sequence)))

    def part_done(self, strand: "_Strand") -> None:
        self._running.discard(strand)
        self._start_more()

    # ------------------------------------------------------------ inside

    def _start_more(self) -> None:
        if self._is_starting:
            return  # a part that ended as it began: the loop below goes on
        self._is_starting = True
        while self._queued and len(self._running) < CONCURRENT_PARTS:
            strand = self._queued.popleft()
            self._running.add(strand)
            strand.go_on()
        self._is_starting = False
        if not self._queued and not self._running and not self.ended.done():
            self.ended.set_result(None)


class _Strand:
    """One part on its way through its rounds."""

    def __init__(self, execution: Execution, number: int, part: Part) -> None:
        self._execution = execution
        self._number = number
        self._rounds = part.schedule.rounds
        self._part = part
        self._areas: dict[Area, Buffer] = {}
        self._index = 0
        self._is_beginning = False
        self._is_over = False
        self._asides: list[_Aside] = []
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[int, Incoming | Outgoing]] = {}
        """What this round waits for, by a number of its own, and the rank at its other end.

        Messages know only their number: one that is settled leaves no cycle with its memory.
        """

    def go_on(self) -> None:
        """Go through rounds until one of them has to wait."""
        try:
            while not self._is_over and self._index < len(self._rounds):
                self._is_beginning = True
                self._begin(self._index, self._rounds[self._index])
                self._is_beginning = False
                if self._is_over or self._pending:
                    return
                self._end_round()
        except Exception as error:  # whatever it is belongs to the caller, not to the loop
            self._execution.fail(error)
            return
        if not self._is_over:
            self._is_over = True
            self._execution.part_done(self)

    def stop(self) -> None:
        """Forget what this round waits for."""
        self._is_over = True
        mesh, peers = self._execution.mesh, self._execution.peers
        pending, self._pending = self._pending, {}
        for peer, message in pending.values():
            if isinstance(message, Incoming):
                mesh.retract(message)
            else:
                mesh.withdraw(peers[peer], message)

    def waiting_for(self) -> list[int]:
        """Return the ranks of the group that this round now waits for."""
        return [peer for peer, _ in self._pending.values()]

    # ------------------------------------------------------------ inside

    def _begin(self, index: int, step: Round) -> None:
        execution, areas = self._execution, self._buffers()
        for copy in step.copies:
            _copy(areas, copy.source, copy.target)
        for one in step.folds:
            operands = [areas[span.area].whole(span.start, span.stop) for span in one.sources]
            target = areas[one.target.area].whole(one.target.start, one.target.stop)
            fold(execution.reduce, operands, target, len(execution.peers))
        nth: dict[tuple[bool, int], int] = {}

        def key(peer: int, receives: bool) -> Key:
            count = nth.get((receives, peer), 0)
            nth[receives, peer] = count + 1
            step_number = index << 12 | count
            return Key(execution.group, execution.sequence, step_number, self._number)

        sends = [(send, *self._outgoing(send, key(send.peer, False))) for send in step.sends]
        # Small messages go first: they need no answer, and then their memory may be landed in.
        # Large ones go when they are asked for, so what this rank asks for is said before.
        for send, _, message in sends:
            if message.total <= UNASKED:
                execution.mesh.send(execution.peers[send.peer], message)
        waits = _share_targets(step)
        for recv in step.recvs:
            unsent = [
                number
                for send, number, _ in sends
                if number in self._pending and send.span.overlaps(recv.span)
            ]
            posted = self._incoming(recv, waits, unsent)
            execution.mesh.post(execution.peers[recv.peer], key(recv.peer, True), posted)
        for send, _, message in sends:
            if message.total > UNASKED:
                execution.mesh.send(execution.peers[send.peer], message)

    def _end_round(self) -> None:
        for aside in self._asides:
            aside.land()
        self._asides.clear()
        self._index += 1

    def _settle(self, number: int) -> None:
        """Learn that a message is where it should be."""
        if self._pending.pop(number, None) is None:
            return  # stopped meanwhile
        if not self._pending and not self._is_beginning:
            self._end_round()
            self.go_on()

    def _buffers(self) -> dict[Area, Buffer]:
        """Return the buffers of the part; scratch memory is made when the part begins."""
        if not self._areas:
            part, dtype = self._part, self._part.output.dtype
            scratch = Buffer([np.empty(part.schedule.scratch, dtype)], dtype)
            self._areas = {
                Area.INPUT: part.input,
                Area.OUTPUT: part.output,
                Area.SCRATCH: scratch,
            }
        return self._areas

    def _outgoing(self, send: Send, key: Key) -> tuple[int, Outgoing]:
        number = next(self._numbers)
        pieces = self._areas[send.span.area].pieces(send.span.start, send.span.stop)

        def done(is_like: bool) -> None:
            if is_like:
                self._settle(number)
            else:
                self._execution.mismatch(send.peer)

        views = [octets(piece) for piece in pieces]
        message = Outgoing(key, views, self._execution.signature, done)
        self._pending[number] = send.peer, message
        return number, message

    def _incoming(self, recv: Recv, waits: bool, unsent: Sequence[int]) -> Incoming:
        """Prepare a receive that lands as it comes, as far as the law of rounds lets it.

        With `waits` it lands at the end of the round; else not before the `unsent` are out.
        """
        buffer = self._areas[recv.span.area]
        if not (waits or unsent or recv.reduce):
            return self._overwriting(recv, buffer.pieces(recv.span.start, recv.span.stop))
        target = buffer.whole(recv.span.start, recv.span.stop)
        if waits or not recv.reduce:
            aside = _Aside(target, len(target), self._lander(recv))
            self._asides.append(aside)
            return self._overwriting(recv, [aside.values])
        return self._reducing(recv, target, unsent)

    def _overwriting(self, recv: Recv, pieces: Sequence[Array]) -> Incoming:
        views = [octets(piece) for piece in pieces]

        def land(offset: int, payload: memoryview) -> None:
            _overwrite(views, offset, payload)

        def room(offset: int, length: int) -> memoryview | None:
            return views[0][offset : offset + length] if len(views) == 1 else None

        total = sum(len(view) for view in views)
        return self._posted(recv, total, land, room=room)

    def _reducing(self, recv: Recv, target: Array, unsent: Sequence[int]) -> Incoming:
        combine, itemsize = self._lander(recv), target.itemsize
        late: _Aside | None = None

        def land(offset: int, payload: memoryview) -> None:
            nonlocal late
            values = np.frombuffer(payload, target.dtype)
            first = offset // itemsize
            stop = first + len(values)
            if not unsent or not any(number in self._pending for number in unsent):
                combine(values, target[first:stop])
                return
            # What comes is in order, so all that has to wait is at the beginning.
            if late is None:
                late = _Aside(target, 0, combine)
                self._asides.append(late)
            late.values[first:stop] = values
            late.count = stop

        return self._posted(recv, target.nbytes, land, grain=itemsize)

    def _posted(
        self,
        recv: Recv,
        total: int,
        land: Callable[[int, memoryview], None],
        *,
        grain: int = 1,
        room: Callable[[int, int], memoryview | None] | None = None,
    ) -> Incoming:
        number = next(self._numbers)

        def done(unlike: Unlike | None) -> None:
            if unlike is None:
                self._settle(number)
            else:
                self._execution.mismatch(recv.peer)

        signature = self._execution.signature
        message = Incoming(total, signature, land, done, grain=grain, room=room)
        self._pending[number] = recv.peer, message
        return message

    def _lander(self, recv: Recv) -> "Lander":
        """Return what puts values that came where they belong."""
        if not recv.reduce:
            return lambda values, target: np.copyto(target, values)
        reduce = self._execution.reduce
        # The lower rank's contribution is the left operand.
        if recv.peer < self._execution.rank:
            return lambda values, target: combine(reduce, values, target, out=target)
        return lambda values, target: combine(reduce, target, values, out=target)


Lander = Callable[[Array, Array], None]


class _Aside:
    """Values that have come, and must not be seen in their place before the round ends."""

    def __init__(self, target: Array, count: int, lander: Lander) -> None:
        self.values = np.empty(len(target), target.dtype)
        self.count = count
        """How many of them, from the first on."""
        self._target = target
        self._lander = lander

    def land(self) -> None:
        self._lander(self.values[: self.count], self._target[: self.count])


def _share_targets(step: Round) -> bool:
    """Say whether two receives go into one span: they must land in the order listed, then."""
    if len(step.recvs) < 2:
        return False
    targets = [recv.span for recv in step.recvs]
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
