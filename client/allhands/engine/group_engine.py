"""The calls of one group on one rank: in order, each to its end, whatever that is."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from allhands.arena.grounds import Grounds
from allhands.engine import explain, verdict
from allhands.engine.aside import Aside
from allhands.engine.call import Call, group_hash
from allhands.engine.exchanges import Exchanges
from allhands.engine.executor import Execution, MismatchFound, Part
from allhands.engine.native import OPS, Native, call_of
from allhands.engine.order import Order
from allhands.engine.verdict import Absent, Failure, Registry
from allhands.engine.work import Result, Work
from allhands.errors import AllhandsError
from allhands.reduction import ReduceOp
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh

if TYPE_CHECKING:
    from allhands._native import Lane

logger = logging.getLogger(__name__)

_ASK_AFTER = 1.0
"""Seconds of being blocked after which the coordinator is asked for a verdict at the deadline."""
_MISMATCH_SECONDS = 0.5
"""How long the calls of all ranks are collected before a mismatch is raised."""
_HISTORY = 64
"""Calls that can still be named to a peer that comes late with another one."""
_HEARSAY_SECONDS = 0.5
"""How long what made a peer give a call up may take to be heard of here."""
_JUDGE_SECONDS = 10.0
"""More than any judgement takes: who waits for one should not outlive the loop that makes it."""
_WAIT_SECONDS = 0.1
"""How long the thread that waits for entries looks at one rank's."""


@dataclass(slots=True)
class Operation:
    """A collective call on its way through the queue."""

    work: Work
    call: Call
    native: Native
    """What the call is over shared memory."""
    parts: Callable[[], Sequence[Part]]
    """Makes what the call is over links."""
    reduce: ReduceOp
    finish: Callable[[], None]
    """Runs on the loop once everything has landed over links."""
    result: Result
    timeout: float
    deadline: float
    """On the monotonic clock."""
    cancelled: bool = False
    """Whether it is to be passed over when it would begin."""


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
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        mesh: Mesh,
        registry: Registry,
        *,
        timeout: float = 30.0,
        deterministic: bool = False,
        grounds: Grounds | None = None,
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        """The world's rank of each rank of the group."""
        self.rank = rank
        self.hash = group_hash(name)
        self.timeout = timeout
        self.deterministic = deterministic
        self.order = Order()
        self.exchanges = Exchanges(self.hash, self.ranks, rank, mesh, registry)
        self._mesh = mesh
        self._registry = registry
        self._position = Position()
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._failure: Failure | None = None
        self._heard = asyncio.Event()
        """Set once the group has failed, or a rank has left it."""
        self._left: dict[int, tuple[int, str]] = {}
        self._history: dict[int, str] = {}
        self._answered: set[tuple[int, int]] = set()
        self._refusals: dict[int, dict[int, str]] = {}
        self._refused = asyncio.Event()
        self._interrupt: asyncio.Future[Failure | None] | None = None
        self._current: Operation | None = None
        # Over shared memory.
        self._grounds = grounds
        self._aside = Aside(f"allhands group {name}")
        self._loop = asyncio.get_running_loop()
        self._reasons: dict[int, Failure] = {}
        self._asking: dict[int, asyncio.Task[Sequence[Absent] | None]] = {}

    @property
    def position(self) -> Position:
        """Where this rank is in the group."""
        lane = self.order.lane
        if lane is None:
            return self._position
        shared = Position(*lane.progress())
        if shared.sequence >= self._position.sequence:
            return shared
        # The next one waits for its turn, or was passed over.
        completed = max(shared.completed, self._position.completed)
        return replace(self._position, completed=completed)

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
            operation.cancelled = True
            operation.work.fail(cancelled(repr(operation.work)))

    async def idle(self) -> None:
        """Return when every call submitted so far has ended, point to point included."""
        if self._runner is not None:
            await asyncio.wait([self._runner])
        if (lane := self.order.lane) is not None:
            await self._aside.run(lane.idle)
        await self.exchanges.idle()

    def close(self) -> None:
        """Give up what the group has of shared memory; every call has ended."""
        self._aside.close()
        for asking in self._asking.values():
            asking.cancel()
        self.order.lane = None  # it says goodbye in the memory that is given back next
        if self._grounds is not None:
            self._grounds.close()

    # ------------------------------------------------------------ what happens to the group

    def fail(self, failure: Failure) -> None:
        """End the group: the current call, those queued, and all to come. The first one counts."""
        if self._failure is None:
            self._failure = failure
            self._heard.set()
            self._wake(failure)
            if self.order.lane is not None:
                self.order.lane.close()
            self.exchanges.fail(failure)

    def peer_left(self, rank: int, completed: int, reason: str) -> None:
        """Learn that a rank of the world left after call number `completed`.

        What it has completed can still be ended here; nothing after that.
        """
        self._left[rank] = (completed, reason)
        self._heard.set()
        self.exchanges.peer_left(rank, reason)
        if self._current is not None:
            gone = self._gone(self._current.work.sequence)
            if gone is not None:
                self._wake(gone)
        if (lane := self.order.lane) is not None:
            lane.limit(completed)
            self._interrupt_above(completed)

    def refused(self, peer: int, key: Key, call: str) -> None:
        """Learn that a peer made another call than this rank, under the same number."""
        rank = self.ranks.index(peer)
        if key.point_to_point:
            self.exchanges.refused(peer, key, call)
            return
        if key.sequence > self.position.ended:
            self._refusals.setdefault(key.sequence, {})[rank] = call
            self._refused.set()
        else:
            logger.warning(
                "call #%d of group %r has ended here as %s, but rank %d called %s",
                key.sequence,
                self.name,
                self._said(key.sequence) or "a call long ago",
                rank,
                call,
            )
        self.unlike(peer, key)

    def unlike(self, peer: int, key: Key) -> None:
        """Learn that a peer is in another call than this rank is, or was, under one number."""
        if (mine := self._said(key.sequence)) is not None:
            self._answer(peer, key.sequence, mine)  # also if the call is about to end well here
        if self._current is not None and key.sequence == self._current.work.sequence:
            self._wake(None)
        elif (lane := self.order.lane) is not None and key.sequence == lane.progress()[0]:
            lane.interrupt(key.sequence)

    # ------------------------------------------------------------ inside

    async def _run_queue(self) -> None:
        while self._queue:
            operation = self._queue.popleft()
            if operation.cancelled:
                await self._pass_over(operation)
            else:
                await self._run(operation)

    async def _pass_over(self, operation: Operation) -> None:
        """Leave out a call that was cancelled before it began; its number is used up."""
        sequence = operation.work.sequence
        self._history[sequence] = "a call that it cancelled"
        self._history.pop(sequence - _HISTORY, None)
        if (lane := self.order.lane) is not None:
            await self._aside.run(partial(lane.give_up, sequence))
        self._position.sequence = self._position.ended = sequence
        self.order.give_back()

    async def _run(self, operation: Operation) -> None:
        """Carry out one call and settle its work."""
        work = operation.work
        position = self._position
        position.sequence = work.sequence
        position.operation = work.operation
        position.since = time.monotonic()
        self._current = operation
        self._interrupt = asyncio.get_running_loop().create_future()
        self._history[work.sequence] = str(operation.call)
        self._history.pop(work.sequence - _HISTORY, None)
        error: BaseException | None = None
        try:
            if (failure := self._failure or self._gone(work.sequence)) is not None:
                raise failure(self._what(operation))
            if self._grounds is not None and self.order.lane is None:
                grounds = self._grounds
                await self._carry_out(operation, self._settle(grounds), grounds.missing)
            if self.order.lane is not None:
                await self._run_shared(operation, self.order.lane)
            else:
                await self._run_linked(operation)
        except asyncio.CancelledError:
            error = AllhandsError(f"{self._what(operation)} was cancelled: the worker is closing")
        except Exception as raised:  # whatever it is belongs to the caller, not to the loop
            error = raised
        finally:
            self._current = None
            self._interrupt = None
            self._mesh.conclude(self.hash, work.sequence)
            self._refusals = {at: it for at, it in self._refusals.items() if at > work.sequence}
            position.ended = work.sequence
            position.operation = ""
            position.since = time.monotonic()
            self.order.give_back()
        if error is None:
            position.completed = work.sequence
            work.succeed(operation.result)
        else:
            logger.debug("%s failed: %s", work, error)
            work.fail(error)

    async def _run_linked(self, operation: Operation) -> None:
        sequence, signature = operation.work.sequence, operation.call.signature
        execution = Execution(
            self._mesh,
            peers=self.ranks,
            rank=self.rank,
            group=self.hash,
            sequence=sequence,
            signature=signature,
            reduce=operation.reduce,
        )
        if self._mesh.begin(self.hash, sequence, signature) or sequence in self._refusals:
            await self._disagree(self._what(operation), sequence, operation.call)
        parts = operation.parts()
        if any(part.schedule.rounds for part in parts):
            await self._carry_out(operation, execution.run(parts), execution.waiting_for)
        operation.finish()

    async def _carry_out(
        self,
        operation: Operation,
        work: Coroutine[Any, Any, None],
        waiting_for: Callable[[], Sequence[int]],
    ) -> None:
        """Wait for what a call does until it is done, interrupted, or out of time."""
        sequence, signature = operation.work.sequence, operation.call.signature
        carrying = asyncio.create_task(work)
        asking: asyncio.Task[Sequence[Absent] | None] | None = None
        assert self._interrupt is not None
        try:
            remaining = operation.deadline - time.monotonic()
            if await _first(carrying, self._interrupt, timeout=min(_ASK_AFTER, remaining / 2)):
                return await self._ended(operation, carrying)
            for rank in waiting_for():
                # They may wait for this rank as well, in another call that sends nothing either.
                self._mesh.declare(self.ranks[rank], Key(self.hash, sequence), signature)
            asking = asyncio.create_task(
                self._ask(sequence, operation.work.operation, waiting_for(), operation.deadline)
            )
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
                waiting_on=[self.ranks[rank] for rank in waiting_for()],
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
                await self._disagree(self._what(operation), operation.work.sequence, operation.call)
        assert self._interrupt is not None
        failure = self._interrupt.result()
        if failure is not None:
            raise failure(self._what(operation))
        await self._disagree(self._what(operation), operation.work.sequence, operation.call)

    async def _ask(
        self, sequence: int, operation: str, waiting_for: Sequence[int], deadline: float
    ) -> Sequence[Absent] | None:
        absent = await self._registry.absent(
            self.name,
            sequence,
            operation,
            [self.ranks[rank] for rank in waiting_for],
            deadline - time.monotonic(),
        )
        # The coordinator may not have heard yet that this rank has begun, or another; who waits
        # knows of some that they have not.
        found = [one for one in absent or () if one.rank != self.ranks[self.rank]]
        awaited = {self.ranks[rank] for rank in waiting_for}
        certain = [one for one in found if one.rank in awaited]
        return None if absent is None else certain or found

    async def _disagree(self, what: str, sequence: int, call: Call) -> NoReturn:
        """Tell all ranks what this one called, collect what they called, and raise."""
        mine = str(call)
        for peer in self.ranks:
            if peer != self.ranks[self.rank]:
                self._answer(peer, sequence, mine)
        table = self._refusals.setdefault(sequence, {})
        until = time.monotonic() + _MISMATCH_SECONDS
        while len(table) < len(self.ranks) - 1:
            self._refused.clear()
            if not await _happens(self._refused, until - time.monotonic()):
                break
        raise verdict.mismatch(what, self.rank, {**table, self.rank: mine})

    def _answer(self, peer: int, sequence: int, call: str) -> None:
        """Say once to a peer what this rank called."""
        if (peer, sequence) not in self._answered:
            self._answered.add((peer, sequence))
            self._mesh.refuse(peer, Key(self.hash, sequence), call)

    def _said(self, sequence: int) -> str | None:
        """Return what this rank called under a number, if that is not long ago."""
        lane = self.order.lane
        if lane is not None and (record := lane.record(sequence)) is not None:
            return str(call_of(*record))
        return self._history.get(sequence)

    def _gone(self, sequence: int) -> Failure | None:
        """Return the failure of a call that needs a rank which has left before it."""
        for rank, (completed, reason) in self._left.items():
            if sequence > completed:
                return partial(
                    verdict.peer_failed,
                    name=self._registry.name(rank),
                    rank=rank,
                    reason=reason,
                )
        return None

    def _wake(self, failure: Failure | None) -> None:
        """Wake the call from the queue that runs."""
        if self._interrupt is None or self._interrupt.done():
            return
        self._interrupt.set_result(failure)
        if self.order.lane is not None and self._current is not None:
            sequence = self._current.work.sequence
            if failure is not None:
                self._reasons[sequence] = failure
            self.order.lane.interrupt(sequence)

    def _what(self, operation: Operation) -> str:
        return self._named(operation.work.operation, operation.work.sequence, operation.work.label)

    def _named(self, operation: str, sequence: int, label: str | None) -> str:
        shown = f" ({label})" if label else ""
        return f"{operation} #{sequence}{shown} of group {self.name!r}"

    # ------------------------------------------------------------ over shared memory

    async def _settle(self, grounds: Grounds) -> None:
        """Find out, as all ranks will, whether the group has shared memory; make its lane."""
        while missing := grounds.missing():
            await self._aside.run(partial(grounds.wait, missing[0], _WAIT_SECONDS))
        if refusal := grounds.refusal():
            logger.warning("group %r talks over links: %s", self.name, refusal)
            self._grounds = None
            return
        with self.order.lock:
            taken, queued = self.order.counted()
            self.order.lane = grounds.lane(
                rank=self.rank,
                timeout=self.timeout,
                ops=OPS,
                on_failure=self._on_failure,
                on_slow=self._on_slow,
                taken=taken,
                queued=queued,
            )
        for completed, _ in self._left.values():
            self.order.lane.limit(completed)
        if ended := self._position.ended:  # before there was a lane in which others could see it
            await self._aside.run(partial(self.order.lane.give_up, ended))

    async def _run_shared(self, operation: Operation, lane: "Lane") -> None:
        run = partial(
            operation.native.run,
            lane,
            operation.work.sequence,
            operation.timeout,
            operation.deadline,
            operation.work.label,
        )
        await self._aside.run(run)
        if (last := lane.last()) is not None:
            operation.work.explained(explain.shared(last))

    def _interrupt_above(self, completed: int) -> None:
        lane = self.order.lane
        if lane is not None and (begun := lane.progress()[0]) > completed:
            lane.interrupt(begun)

    def _on_slow(self, sequence: int, operation: str, waiting: int, deadline: float) -> None:
        """Learn, on the thread of a call, that it has been blocked for a while, or has ended."""
        self._loop.call_soon_threadsafe(self._watch, sequence, operation, waiting, deadline)

    def _watch(self, sequence: int, operation: str, waiting: int, deadline: float) -> None:
        if waiting:
            asking = self._ask(sequence, operation, _places(waiting), deadline)
            self._asking[sequence] = asyncio.create_task(asking)
        elif (asked := self._asking.pop(sequence, None)) is not None:
            asked.cancel()

    def _on_failure(
        self,
        status: str,
        sequence: int,
        operation: str,
        dtype: "np.dtype[np.generic] | None",
        count: int,
        op: int,
        root: int,
        shares: list[int] | None,
        waiting: int,
        culprits: int,
        timeout: float,
        label: str | None,
    ) -> None:
        """Raise, on the thread of a call, what its failure means."""
        call = call_of(operation, dtype, count, op, root, shares)
        judging = self._judge(
            status, sequence, call, _places(waiting), _places(culprits), timeout, label
        )
        asyncio.run_coroutine_threadsafe(judging, self._loop).result(_JUDGE_SECONDS)

    async def _judge(
        self,
        status: str,
        sequence: int,
        call: Call,
        waiting: Sequence[int],
        culprits: Sequence[int],
        timeout: float,
        label: str | None,
    ) -> NoReturn:
        what = self._named(call.operation, sequence, label)
        asking = self._asking.pop(sequence, None)
        try:
            if status == "abandoned" and not await self._registry.all_present(self.ranks):
                # Because of a loss, probably, which this rank will hear of as well. It must not be
                # waited for in vain: others may wait for this rank meanwhile, in their next call.
                await _happens(self._heard, _HEARSAY_SECONDS)
            reason = self._failure or self._gone(sequence) or self._reasons.pop(sequence, None)
            if reason is not None:
                raise reason(what)
            if status == "mismatch" or sequence in self._refusals:
                await self._disagree(what, sequence, call)
            if status == "abandoned":
                names = [self._registry.name(self.ranks[rank]) for rank in culprits]
                raise verdict.given_up(
                    what,
                    call.operation,
                    sequence,
                    label,
                    names,
                    [self.ranks[at] for at in culprits],
                )
            if status == "interrupted":
                raise AllhandsError(f"{what} was interrupted")
            if asking is not None:
                await _first(asking, timeout=_ASK_AFTER)
            raise verdict.timed_out(
                what=what,
                operation=call.operation,
                sequence=sequence,
                label=label,
                timeout=timeout,
                absent=asking.result() if asking is not None and asking.done() else None,
                waiting_on=[self.ranks[rank] for rank in waiting],
                registry=self._registry,
            )
        finally:
            if asking is not None:
                await _stop(asking)
            self._refusals = {at: it for at, it in self._refusals.items() if at > sequence}


async def _first(*awaited: Awaitable[object], timeout: float) -> bool:
    """Wait until one of them is done; say whether that happened in time."""
    futures = [asyncio.ensure_future(one) for one in awaited]
    done, _ = await asyncio.wait(
        futures, timeout=max(timeout, 0), return_when=asyncio.FIRST_COMPLETED
    )
    return bool(done)


def _places(bits: int) -> list[int]:
    """Return the ranks of a set."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; say whether it came in time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(seconds, 0))
    return event.is_set()


async def _stop(task: "asyncio.Task[object]") -> None:
    """End a task and see its outcome."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
