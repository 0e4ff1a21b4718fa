"""Runner of one part: the messages, copies and reductions of its rounds, over a mesh."""

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from allhands.collectives.buffer import Array, Buffer, view_as_bytes
from allhands.collectives.part import Part
from allhands.collectives.reduction import ReduceOp, combine, fold
from allhands.collectives.schedule import Area, Recv, Round, Send, Span, may_copy_ahead
from allhands.engine.links.copies_ahead import CopiesAhead
from allhands.engine.links.native_calls import Remainder
from allhands.transport.frame import MessageKey
from allhands.transport.inbox import MessageMismatch, PostedReceive
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import PendingSend

ARRIVAL_PART = (1 << 32) - 1
"""Number of the part of the arrival check; no slice has this number."""


class PartOwner(Protocol):
    """Call of which a part is run: its identity, and the events reported by the part."""

    mesh: Mesh
    peers: Sequence[int]
    rank: int
    group: int
    sequence: int
    signature: int
    op: ReduceOp
    eager_bytes: int
    may_touch_outputs: bool

    def fail(self, error: Exception) -> None:
        """End all parts with an error."""

    def fail_mismatch(self, peer: int) -> None:
        """End all parts: this rank of the group made a different call."""

    def on_part_done(self, runner: "PartRunner") -> None:
        """Take note of the end of a part."""

    def mark_touched(self) -> None:
        """Mark the outputs as touched, before a part writes them."""


class PartRunner:
    """Progress of one part through the rounds of its schedule."""

    def __init__(self, execution: PartOwner, number: int, part: Part) -> None:
        self._execution = execution
        self._number = number
        self._rounds = part.schedule.rounds
        self._part = part
        self._areas: dict[Area, Buffer] = {}
        self._index = 0
        self._is_beginning = False
        self._is_over = False
        self._is_begun = False
        """Whether the copies of the round at hand were made elsewhere."""
        self._sent: frozenset[tuple[int, int]] = frozenset()
        """Messages that have left from elsewhere, by their round and their place in that."""
        self._is_held = False
        """Whether the round at hand would touch outputs as it begins, and may not yet."""
        self._is_ending = False
        """Whether all of the round at hand is here, and some of it may not touch outputs yet."""
        self._held_recvs: list[tuple[int, MessageKey, PostedReceive]] = []
        """Receives of the round at hand that would touch outputs, and may not yet."""
        self._held_values: list[_HeldValues] = []
        self._ahead: CopiesAhead | None = None
        """Copies of the next round, as far as they may be made while the round at hand receives."""
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[int, PostedReceive | PendingSend]] = {}
        """What this round waits for, by a number of its own, and the rank at its other end.

        Messages know only their number: one that is settled leaves no cycle with its memory.
        """

    def resume(self, remainder: Remainder) -> None:
        """Go on from a round of the schedule, instead of the first."""
        self._index, self._is_begun = remainder.index, remainder.is_begun
        self._sent = remainder.sent
        self._areas = {
            **self._open_buffers(),
            Area.SCRATCH: Buffer((remainder.scratch,), self._part.output.dtype),
        }

    def advance(self) -> None:
        """Run rounds until a round has to wait."""
        try:
            while not self._is_over and self._index < len(self._rounds):
                self._is_held = not self._may_begin(self._rounds[self._index])
                if self._is_held:
                    return
                self._is_beginning = True
                self._begin(self._index, self._rounds[self._index])
                self._is_beginning = False
                if self._is_over or self._pending or not self._may_end():
                    return
                self._end_round()
        except Exception as error:  # whatever it is belongs to the caller, not to the loop
            self._execution.fail(error)
            return
        if not self._is_over:
            self._is_over = True
            self._execution.on_part_done(self)

    def stop(self) -> None:
        """Cancel the receives and sends of this round."""
        self._is_over = True
        mesh, peers = self._execution.mesh, self._execution.peers
        pending, self._pending = self._pending, {}
        for peer, message in pending.values():
            if isinstance(message, PostedReceive):
                mesh.cancel_receive(message)
            else:
                mesh.cancel_send(peers[peer], message)

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this round now."""
        return [peer for peer, _ in self._pending.values()]

    def release_held(self) -> None:
        """Go on where outputs could not be touched before."""
        unposted, self._held_recvs = self._held_recvs, []
        try:
            for peer, key, posted in unposted:
                if not self._is_over:
                    self._execution.mesh.post(peer, key, posted)
            if self._is_ending and not self._is_over:
                self._end_round()
                self.advance()
            elif self._is_held and not self._is_over:
                self.advance()
        except Exception as error:  # as in go_on
            self._execution.fail(error)

    def _is_output(self, span: Span) -> bool:
        return span.area is Area.OUTPUT and self._number != ARRIVAL_PART

    def _may_begin(self, step: Round) -> bool:
        """Return whether a round that writes at its start may begin."""
        if self._execution.may_touch_outputs:
            return True
        targets = [copy.target for copy in step.copies] + [fold.target for fold in step.folds]
        return not any(self._is_output(target) for target in targets)

    def _may_end(self) -> bool:
        """Return whether held values may be written to their destination."""
        may = self._execution.may_touch_outputs or not any(
            self._is_output(one.span) for one in self._held_values
        )
        self._is_ending = not may
        return may

    def _touch(self, span: Span) -> None:
        if span.area is Area.OUTPUT and self._number != ARRIVAL_PART:
            self._execution.mark_touched()

    def _begin(self, index: int, step: Round) -> None:
        execution, areas = self._execution, self._open_buffers()
        if self._is_begun:
            step, self._is_begun = Round(sends=step.sends, recvs=step.recvs), False
        ahead, self._ahead = self._ahead, None
        for copy in step.copies:
            self._touch(copy.target)
        if step.copies:
            (ahead or CopiesAhead(areas, step.copies)).finish()
        for one in step.folds:
            self._touch(one.target)
            operands = [areas[span.area].view_whole(span.start, span.stop) for span in one.sources]
            target = areas[one.target.area].view_whole(one.target.start, one.target.stop)
            fold(execution.op, operands, target, len(execution.peers))
        nth: dict[tuple[bool, int], int] = {}

        def key(peer: int, receives: bool) -> MessageKey:
            count = nth.get((receives, peer), 0)
            nth[receives, peer] = count + 1
            step_number = index << 12 | count
            return MessageKey(execution.group, execution.sequence, step_number, self._number)

        self._ahead = self._plan_copies_ahead(index)
        keyed = [(send, key(send.peer, False)) for send in step.sends]
        sends = [
            (send, *self._make_outgoing(send, own_key))
            for place, (send, own_key) in enumerate(keyed)
            if (index, place) not in self._sent
        ]
        # Small messages go first: they need no answer, and then their memory may be landed in.
        # Large ones go when they are asked for, so what this rank asks for is said before.
        for send, _, message in sends:
            if message.total <= execution.eager_bytes:
                execution.mesh.send(execution.peers[send.peer], message)
        waits = _share_targets(step)
        for recv in step.recvs:
            unsent = [
                number
                for send, number, _ in sends
                if number in self._pending and send.span.overlaps(recv.span)
            ]
            holds = not execution.may_touch_outputs and self._is_output(recv.span)
            posted = self._make_incoming(recv, waits, unsent, holds)
            where = execution.peers[recv.peer], key(recv.peer, True)
            if (
                holds and posted.total > execution.eager_bytes
            ):  # not before it is asked for will it come
                self._held_recvs.append((*where, posted))
            else:
                execution.mesh.post(*where, posted)
        for send, _, message in sends:
            if message.total > execution.eager_bytes:
                execution.mesh.send(execution.peers[send.peer], message)

    def _end_round(self) -> None:
        self._is_ending = False
        for aside in self._held_values:
            self._touch(aside.span)
            aside.land()
        self._held_values.clear()
        self._index += 1

    def _on_message_done(self, number: int) -> None:
        """Handle the completion of a message."""
        if self._pending.pop(number, None) is None:
            return  # stopped meanwhile
        if not self._pending and not self._is_beginning and self._may_end():
            self._end_round()
            self.advance()

    def _plan_copies_ahead(self, index: int) -> CopiesAhead | None:
        """Return the copies of the round after one, if they may be made while that receives."""
        step, *later = self._rounds[index : index + 2]
        copies = later[0].copies if later else ()
        if not copies or not may_copy_ahead(step, copies):
            return None
        return CopiesAhead(self._areas, copies)

    def _copy_ahead(self, nbytes: int) -> None:
        """Copy for the next round, after that many bytes of a message of this one."""
        if self._ahead is None:
            return
        following = self._rounds[self._index + 1]
        if self._may_begin(following):
            for copy in following.copies:
                self._touch(copy.target)
            self._ahead.advance(nbytes)

    def _open_buffers(self) -> dict[Area, Buffer]:
        """Return the buffers of the part; scratch memory is made when the part begins."""
        if not self._areas:
            part, dtype = self._part, self._part.output.dtype
            scratch = Buffer((), dtype)
            if part.schedule.scratch:
                scratch = Buffer((np.empty(part.schedule.scratch, dtype),), dtype)
            self._areas = {
                Area.INPUT: part.input,
                Area.OUTPUT: part.output,
                Area.SCRATCH: scratch,
            }
        return self._areas

    def _make_outgoing(self, send: Send, key: MessageKey) -> tuple[int, PendingSend]:
        number = next(self._numbers)
        pieces = self._areas[send.span.area].view_pieces(send.span.start, send.span.stop)

        def done(is_like: bool) -> None:
            if is_like:
                self._on_message_done(number)
            else:
                self._execution.fail_mismatch(send.peer)

        views = [view_as_bytes(piece) for piece in pieces]
        execution = self._execution
        message = PendingSend(key, views, execution.signature, done, execution.eager_bytes)
        self._pending[number] = send.peer, message
        return number, message

    def _make_incoming(
        self, recv: Recv, waits: bool, unsent: Sequence[int], holds: bool
    ) -> PostedReceive:
        """Post a receive that is written on arrival, as far as the law of rounds allows.

        With `waits` it is written at the end of the round, else not before the `unsent` sends are
        out. While outputs must not be touched and it `holds`, an eager message is held in a
        separate buffer.
        """
        buffer = self._areas[recv.span.area]
        if not (waits or unsent or recv.reduces):
            pieces = buffer.view_pieces(recv.span.start, recv.span.stop)
            nbytes = sum(piece.nbytes for piece in pieces)
            if not holds or nbytes > self._execution.eager_bytes:
                return self._make_overwriting_recv(recv, pieces, recv.span)
            lander = self._choose_combine(recv)
            asides = [_HeldValues(recv.span, piece, len(piece), lander) for piece in pieces]
            self._held_values += asides
            return self._make_overwriting_recv(recv, [aside.values for aside in asides], None)
        target = buffer.view_whole(recv.span.start, recv.span.stop)
        if waits or not recv.reduces:
            aside = _HeldValues(recv.span, target, len(target), self._choose_combine(recv))
            self._held_values.append(aside)
            return self._make_overwriting_recv(recv, [aside.values], None)
        return self._make_reducing_recv(recv, target, unsent)

    def _make_overwriting_recv(
        self, recv: Recv, pieces: Sequence[Array], written: Span | None
    ) -> PostedReceive:
        """Post a receive into arrays: those of a span, or private ones."""
        views = [view_as_bytes(piece) for piece in pieces]

        def land(offset: int, payload: memoryview) -> None:
            if written is not None:
                self._touch(written)
            _overwrite(views, offset, payload)

        def room(offset: int, length: int) -> memoryview | None:
            if written is not None:
                self._touch(written)
            self._copy_ahead(offset)
            return views[0][offset : offset + length] if len(views) == 1 else None

        total = sum(len(view) for view in views)
        return self._make_recv(recv, total, land, room=room)

    def _make_reducing_recv(
        self, recv: Recv, target: Array, unsent: Sequence[int]
    ) -> PostedReceive:
        combine, itemsize = self._choose_combine(recv), target.itemsize
        late: _HeldValues | None = None

        def land(offset: int, payload: memoryview) -> None:
            nonlocal late
            self._copy_ahead(offset)
            values = np.frombuffer(payload, target.dtype)
            first = offset // itemsize
            stop = first + len(values)
            has_to_wait = unsent and any(number in self._pending for number in unsent)
            if not has_to_wait and (
                self._execution.may_touch_outputs or not self._is_output(recv.span)
            ):
                self._touch(recv.span)
                combine(values, target[first:stop])
                return
            # What comes is in order, so all that has to wait is at the beginning.
            if late is None:
                late = _HeldValues(recv.span, target, 0, combine)
                self._held_values.append(late)
            late.values[first:stop] = values
            late.count = stop

        return self._make_recv(recv, target.nbytes, land, alignment=itemsize)

    def _make_recv(
        self,
        recv: Recv,
        total: int,
        land: Callable[[int, memoryview], None],
        *,
        alignment: int = 1,
        room: Callable[[int, int], memoryview | None] | None = None,
    ) -> PostedReceive:
        number = next(self._numbers)

        def done(unlike: MessageMismatch | None) -> None:
            if unlike is None:
                self._on_message_done(number)
            else:
                self._execution.fail_mismatch(recv.peer)

        message = PostedReceive(
            total,
            self._execution.signature,
            land,
            done,
            alignment=alignment,
            room=room,
            eager_bytes=self._execution.eager_bytes,
        )
        self._pending[number] = recv.peer, message
        return message

    def _choose_combine(self, recv: Recv) -> "Combine":
        """Return the function that writes or reduces received values into the destination."""
        if not recv.reduces:
            return lambda values, target: np.copyto(target, values)
        reduce = self._execution.op
        # The lower rank's contribution is the left operand.
        if recv.peer < self._execution.rank:
            return lambda values, target: combine(reduce, values, target, out=target)
        return lambda values, target: combine(reduce, target, values, out=target)


Combine = Callable[[Array, Array], None]


class _HeldValues:
    """Received values held back from their destination until the round ends."""

    def __init__(self, span: Span, target: Array, count: int, combine: Combine) -> None:
        self.span = span
        self.values = np.empty(len(target), target.dtype)
        self.count = count
        """How many of them, from the first on."""
        self._target = target
        self._combine = combine

    def land(self) -> None:
        self._combine(self.values[: self.count], self._target[: self.count])


def _share_targets(step: Round) -> bool:
    """Return whether two receives target one span, and so must be written in the order listed."""
    if len(step.recvs) < 2:
        return False
    targets = [recv.span for recv in step.recvs]
    return any(
        first.overlaps(second) for at, first in enumerate(targets) for second in targets[:at]
    )


def _overwrite(views: Sequence[memoryview], offset: int, payload: memoryview) -> None:
    """Write bytes at an offset into views, counted end to end."""
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
