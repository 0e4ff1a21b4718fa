"""Execution of one call's parts over a mesh: at most `CONCURRENT_PARTS` at a time."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from allhands.collectives.part import Assembly, Part
from allhands.collectives.reduction import ReduceOp
from allhands.engine.links.native_calls import Remainder
from allhands.engine.links.part_runner import ARRIVAL_PART, PartRunner
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import BULK_EAGER_BYTES

CONCURRENT_PARTS = 4
"""Slices of one call under way at once: enough to overlap network and reduction."""


class MismatchFound(Exception):
    """A peer's message is not the expected message of this call; none of it was used."""

    def __init__(self, world_rank: int, key: MessageKey) -> None:
        super().__init__(f"rank {world_rank} made another call")
        self.world_rank = world_rank
        """As a rank of the world."""
        self.key = key


class SideCondition(Protocol):
    """A condition of a call's completion beside its parts."""

    def start(self, on_done: Callable[[], None]) -> None:
        """Begin; call `done` at the end, which may be at once."""

    def stop(self) -> None:
        """Stop watching the condition. Idempotent."""

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that the condition waits for now."""


class Execution:
    """A call under way on one rank.

    It advances within the mesh's own callbacks whenever a message has arrived or left: no task
    waits between the rounds.
    """

    goes_by_messages = True

    def __init__(
        self,
        mesh: Mesh,
        *,
        peers: Sequence[int],
        rank: int,
        group: int,
        sequence: int,
        signature: int,
        op: ReduceOp = ReduceOp.SUM,
        first_part: int = 0,
        eager_bytes: int | None = None,
    ) -> None:
        """`first_part` is the number of the first part, where a call has several executions.

        Up to `eager_bytes` messages go unasked; None: `BULK_EAGER_BYTES`.
        """
        self.mesh = mesh
        self.peers = peers
        self.rank = rank
        self.group = group
        self.sequence = sequence
        self.signature = signature
        self.op = op
        self.eager_bytes = BULK_EAGER_BYTES if eager_bytes is None else eager_bytes
        self.first_part = first_part
        self._queued: deque[PartRunner] = deque()
        # In their order, not in that of a set: else a history does not repeat itself.
        self._running: dict[PartRunner, None] = {}
        self._conditions: dict[SideCondition, None] = {}
        self._arrival_runner: PartRunner | None = None
        self._conclude: Callable[[], int | None] | None = None
        self._commit: Callable[[], None] | None = None
        self._is_starting = False
        self.may_touch_outputs = True
        """Whether outputs may be touched, as far as is known."""
        self.has_touched = False
        """Whether outputs of the call were touched."""
        self.completion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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

    def begin(
        self,
        parts: Sequence[Part],
        *,
        arrival_check: Assembly | None = None,
        commit: Callable[[], None] | None = None,
        conditions: Sequence[SideCondition] = (),
        remainder: Remainder | None = None,
    ) -> "asyncio.Future[None]":
        """Start to carry out all parts; the future ends as `run` does, and `stop` must follow.

        Outputs are not touched before the `arrival_check` has ended. With `commit` the parts write
        to a staging buffer: `commit` copies the results to the outputs after all parts and
        `conditions` have ended. With `remainder` the `arrival_check`, or else
        the only part, goes on from there.
        """
        # Started in order on every rank, so the first unfinished part is under way everywhere.
        self._queued.extend(
            PartRunner(self, number, part) for number, part in enumerate(parts, self.first_part)
        )
        self._commit = commit
        if remainder is not None and arrival_check is None:
            self.has_touched = remainder.has_touched and commit is None
            self._queued[0].resume(remainder)
        self._conditions.update(dict.fromkeys(conditions))
        self._is_starting = True
        if arrival_check is not None:
            self.may_touch_outputs = False
            self._conclude = arrival_check.conclude
            self._arrival_runner = PartRunner(self, ARRIVAL_PART, arrival_check.part)
            if remainder is not None:
                self._arrival_runner.resume(remainder)
            self._running[self._arrival_runner] = None
            self._arrival_runner.advance()
        for one in conditions:
            one.start(partial(self._on_condition_done, one))
        self._is_starting = False
        self._start_more()
        return self.completion

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        self._queued.clear()
        running, self._running = self._running, {}
        beside, self._conditions = self._conditions, {}
        for strand in running:
            strand.stop()
        for one in beside:
            one.stop()

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        underway: list[PartRunner | SideCondition] = [*self._running, *self._conditions]
        return sorted({peer for one in underway for peer in one.list_awaited()})

    def fail(self, error: Exception) -> None:
        """End all parts."""
        self.stop()
        if not self.completion.done():
            self.completion.set_exception(error)

    def fail_mismatch(self, peer: int) -> None:
        """Handle a different call of a rank of the group."""
        self.fail(MismatchFound(self.peers[peer], MessageKey(self.group, self.sequence)))

    def on_part_done(self, runner: PartRunner) -> None:
        self._running.pop(runner, None)
        if runner is self._arrival_runner:
            self._arrival_runner = None
            if self._conclude is not None:
                if (odd := self._conclude()) is not None:
                    self.fail_mismatch(odd)
                    return
                self.has_touched = True
            self.may_touch_outputs = True
            for held in list(self._running):
                held.release_held()
        self._start_more()

    def mark_touched(self) -> None:
        """Mark the outputs as touched, before a part writes them."""
        self.has_touched |= self._commit is None

    def _on_condition_done(self, one: SideCondition) -> None:
        self._conditions.pop(one, None)
        self._start_more()

    def _start_more(self) -> None:
        if self._is_starting:
            return  # a part that ended as it began: the loop below goes on
        self._is_starting = True
        room = CONCURRENT_PARTS + (self._arrival_runner is not None)
        while self._queued and len(self._running) < room:
            strand = self._queued.popleft()
            self._running[strand] = None
            strand.advance()
        self._is_starting = False
        if self._queued or self._running or self._conditions or self.completion.done():
            return
        if self._commit is not None:
            self.has_touched = True
            self._commit()
        self.completion.set_result(None)
