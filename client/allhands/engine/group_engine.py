"""The calls of one group on one rank: in order, each to its end, whatever that is."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from allhands.engine import verdict
from allhands.engine.call import Call, group_hash
from allhands.engine.exchanges import Exchanges
from allhands.engine.executor import Execution, MismatchFound, Part
from allhands.engine.verdict import Absent, Failure, Registry
from allhands.engine.work import Result, Work
from allhands.errors import AllhandsError
from allhands.reduction import ReduceOp
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh

logger = logging.getLogger(__name__)

_ASK_AFTER = 1.0
"""Seconds of being blocked after which the coordinator is asked for a verdict at the deadline."""
_MISMATCH_SECONDS = 0.5
"""How long the calls of all ranks are collected before a mismatch is raised."""
_HISTORY = 64
"""Calls that can still be named to a peer that comes late with another one."""


@dataclass(slots=True)
class Operation:
    """A collective call on its way through the queue."""

    work: Work
    call: Call
    parts: Sequence[Part]
    reduce: ReduceOp
    finish: Callable[[], Result]
    """Runs on the loop once everything has landed; gives the result."""
    timeout: float
    deadline: float
    """On the monotonic clock."""


@dataclass(slots=True)
class Position:
    """Where this rank is in the group; what heartbeats carry."""

    sequence: int = 0
    ended: int = 0
    """The latest call that is over here, well or not."""
    completed: int = 0
    """The latest call that ended well here: what the others need of it has been sent."""
    operation: str = ""
    since: float = field(default_factory=time.monotonic)


class GroupEngine:
    """Runs the calls of a group one after the other, on the loop; point to point beside them."""

    def __init__(
        self, name: str, ranks: Sequence[int], rank: int, mesh: Mesh, registry: Registry
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        """The world's rank of each rank of the group."""
        self.rank = rank
        self.hash = group_hash(name)
        self.position = Position()
        self.exchanges = Exchanges(self.hash, self.ranks, rank, mesh, registry)
        self._mesh = mesh
        self._registry = registry
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._failure: Failure | None = None
        self._left: dict[int, tuple[int, str]] = {}
        self._history: dict[int, str] = {}
        self._answered: set[tuple[int, int]] = set()
        self._refusals: dict[int, dict[int, str]] = {}
        self._interrupt: asyncio.Future[Failure | None] | None = None
        self._current: Operation | None = None

    # ------------------------------------------------------------ calls

    def submit(self, operation: Operation) -> None:
        """Queue a call; it runs when those before it have ended."""
        self._queue.append(operation)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queue(), name=f"group {self.name}")

    def cancel(self, operation: Operation) -> None:
        """End a call early."""

        def cancelled(what: str) -> AllhandsError:
            return AllhandsError(f"{what} was cancelled by this rank")

        if operation is self._current:
            self._wake(cancelled)
        elif operation in self._queue:
            self._queue.remove(operation)
            self._history[operation.work.sequence] = "a call that it cancelled"
            operation.work.fail(cancelled(repr(operation.work)))

    async def idle(self) -> None:
        """Return when every call submitted so far has ended, point to point included."""
        if self._runner is not None:
            await asyncio.wait([self._runner])
        await self.exchanges.idle()

    # ------------------------------------------------------------ what happens to the group

    def fail(self, failure: Failure) -> None:
        """End the group: the current call, those queued, and all to come. The first one counts."""
        if self._failure is None:
            self._failure = failure
            self._wake(failure)
            self.exchanges.fail(failure)

    def peer_left(self, rank: int, completed: int, reason: str) -> None:
        """Learn that a rank of the world left after call number `completed`.

        What it has completed can still be ended here; nothing after that.
        """
        self._left[rank] = (completed, reason)
        self.exchanges.peer_left(rank, reason)
        if self._current is not None and (gone := self._gone(self._current)) is not None:
            self._wake(gone)

    def refused(self, peer: int, key: Key, call: str) -> None:
        """Learn that a peer made another call than this rank, under the same number."""
        rank = self.ranks.index(peer)
        if key.point_to_point:
            self.exchanges.refused(peer, key, call)
            return
        if key.sequence > self.position.ended:
            self._refusals.setdefault(key.sequence, {})[rank] = call
        else:
            logger.warning(
                "call #%d of group %r has ended here as %s, but rank %d called %s",
                key.sequence,
                self.name,
                self._history.get(key.sequence, "a call long ago"),
                rank,
                call,
            )
        self.unlike(peer, key)

    def unlike(self, peer: int, key: Key) -> None:
        """Learn that a peer is in another call than this rank is, or was, under one number."""
        if (mine := self._history.get(key.sequence)) is not None:
            self._answer(peer, key.sequence, mine)  # also if the call is about to end well here
        if self._current is not None and key.sequence == self._current.work.sequence:
            self._wake(None)

    # ------------------------------------------------------------ inside

    async def _run_queue(self) -> None:
        while self._queue:
            operation = self._queue.popleft()
            await self._run(operation)

    async def _run(self, operation: Operation) -> None:
        """Carry out one call and settle its work."""
        work = operation.work
        self.position.sequence = work.sequence
        self.position.operation = work.operation
        self.position.since = time.monotonic()
        self._current = operation
        self._interrupt = asyncio.get_running_loop().create_future()
        self._history[work.sequence] = str(operation.call)
        self._history.pop(work.sequence - _HISTORY, None)
        execution = Execution(
            self._mesh,
            peers=self.ranks,
            rank=self.rank,
            group=self.hash,
            sequence=work.sequence,
            signature=operation.call.signature,
            reduce=operation.reduce,
        )
        error: BaseException | None = None
        result: Result = None
        try:
            if (failure := self._failure or self._gone(operation)) is not None:
                raise failure(self._what(operation))
            await self._carry_out(operation, execution)
            result = operation.finish()
        except asyncio.CancelledError:
            error = AllhandsError(f"{self._what(operation)} was cancelled: the worker is closing")
        except Exception as raised:  # whatever it is belongs to the caller, not to the loop
            error = raised
        finally:
            self._current = None
            self._interrupt = None
            self._mesh.conclude(self.hash, work.sequence)
            self._refusals = {at: it for at, it in self._refusals.items() if at > work.sequence}
            self.position.ended = work.sequence
            self.position.operation = ""
            self.position.since = time.monotonic()
        if error is None:
            self.position.completed = work.sequence
            work.succeed(result)
        else:
            logger.debug("%s failed: %s", work, error)
            work.fail(error)

    async def _carry_out(self, operation: Operation, execution: Execution) -> None:
        """Run the schedules until done, interrupted, or out of time."""
        sequence, signature = operation.work.sequence, operation.call.signature
        if self._mesh.begin(self.hash, sequence, signature) or sequence in self._refusals:
            await self._disagree(operation)
        if not any(part.schedule.rounds for part in operation.parts):
            return None
        carrying = asyncio.create_task(execution.run(operation.parts))
        asking: asyncio.Task[Sequence[Absent] | None] | None = None
        assert self._interrupt is not None
        try:
            remaining = operation.deadline - time.monotonic()
            if await _first(carrying, self._interrupt, timeout=min(_ASK_AFTER, remaining / 2)):
                return await self._ended(operation, carrying)
            for rank in execution.waiting_for():
                # They may wait for this rank as well, in another call that sends nothing either.
                self._mesh.declare(self.ranks[rank], Key(self.hash, sequence), signature)
            asking = asyncio.create_task(self._ask(operation, execution))
            remaining = operation.deadline - time.monotonic()
            if await _first(carrying, self._interrupt, timeout=remaining):
                return await self._ended(operation, carrying)
            # The coordinator's word comes with the deadline, seldom later.
            if await _first(carrying, self._interrupt, asking, timeout=_ASK_AFTER) and (
                carrying.done() or self._interrupt.done()
            ):
                return await self._ended(operation, carrying)
            raise verdict.timed_out(
                what=self._what(operation),
                operation=operation.work.operation,
                sequence=operation.work.sequence,
                label=operation.work.label,
                timeout=operation.timeout,
                absent=asking.result() if asking.done() else None,
                waiting_on=[self.ranks[rank] for rank in execution.waiting_for()],
                registry=self._registry,
            )
        finally:
            await _stop(carrying)
            if asking is not None:
                await _stop(asking)

    async def _ended(self, operation: Operation, carrying: "asyncio.Task[None]") -> None:
        """Raise what ended a call, if anything but its success did."""
        if carrying.done():
            try:
                carrying.result()
                return
            except MismatchFound:
                await self._disagree(operation)
        assert self._interrupt is not None
        failure = self._interrupt.result()
        if failure is not None:
            raise failure(self._what(operation))
        await self._disagree(operation)

    async def _ask(self, operation: Operation, execution: Execution) -> Sequence[Absent] | None:
        return await self._registry.absent(
            self.name,
            operation.work.sequence,
            operation.work.operation,
            [self.ranks[rank] for rank in execution.waiting_for()],
            operation.deadline - time.monotonic(),
        )

    async def _disagree(self, operation: Operation) -> None:
        """Tell all ranks what this one called, collect what they called, and raise."""
        sequence = operation.work.sequence
        mine = str(operation.call)
        for peer in self.ranks:
            if peer != self.ranks[self.rank]:
                self._answer(peer, sequence, mine)
        table = self._refusals.setdefault(sequence, {})
        until = time.monotonic() + _MISMATCH_SECONDS
        while len(table) < len(self.ranks) - 1:
            self._interrupt = asyncio.get_running_loop().create_future()
            if not await _first(self._interrupt, timeout=until - time.monotonic()):
                break
        raise verdict.mismatch(self._what(operation), self.rank, {**table, self.rank: mine})

    def _answer(self, peer: int, sequence: int, call: str) -> None:
        """Say once to a peer what this rank called."""
        if (peer, sequence) not in self._answered:
            self._answered.add((peer, sequence))
            self._mesh.refuse(peer, Key(self.hash, sequence), call)

    def _gone(self, operation: Operation) -> Failure | None:
        """Return the failure of a call that needs a rank which has left before it."""
        for rank, (completed, reason) in self._left.items():
            if operation.work.sequence > completed:
                return partial(
                    verdict.peer_failed,
                    name=self._registry.name(rank),
                    rank=rank,
                    reason=reason,
                )
        return None

    def _wake(self, failure: Failure | None) -> None:
        if self._interrupt is not None and not self._interrupt.done():
            self._interrupt.set_result(failure)

    def _what(self, operation: Operation) -> str:
        label = f" ({operation.work.label})" if operation.work.label else ""
        return (
            f"{operation.work.operation} #{operation.work.sequence}{label} of group {self.name!r}"
        )


async def _first(*awaited: Awaitable[object], timeout: float) -> bool:
    """Wait until one of them is done; say whether that happened in time."""
    futures = [asyncio.ensure_future(one) for one in awaited]
    done, _ = await asyncio.wait(
        futures, timeout=max(timeout, 0), return_when=asyncio.FIRST_COMPLETED
    )
    return bool(done)


async def _stop(task: "asyncio.Task[object]") -> None:
    """End a task and see its outcome."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
