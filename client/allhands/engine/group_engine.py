"""The calls of one group on one rank: in order, each to its end, whatever that is."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NoReturn

import numpy as np

from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.composite_call import Running
from allhands.collectives.hierarchical_plan import Allocate, Layout, Phase, Scratch
from allhands.collectives.primitive import Build
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import Native
from allhands.collectives.signature import Call, Result, group_hash
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure, Registry
from allhands.engine.failures.losses import Losses
from allhands.engine.failures.slow_calls import Stall
from allhands.engine.failures.tracker import ASK_AFTER, LATE, Endings, Found, first, stop
from allhands.engine.group_recorder import SIZE, Recording
from allhands.engine.hosts.composite_runner import Steps
from allhands.engine.hosts.hierarchical import Hierarchy
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.links.output_guard import ROOTED, Hearing, Stage, guarded
from allhands.engine.links.pings import PING_AFTER
from allhands.engine.numbering import Clash, Order
from allhands.engine.p2p.over_links import Exchanges
from allhands.engine.p2p.router import Messages
from allhands.engine.result_check import HERE_BYTES, Verification, digest, result_bytes
from allhands.engine.shm.deferred_calls import Backlog
from allhands.engine.shm.group_channel import Shared
from allhands.engine.shm.host_group import Island, Left
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveMismatch, CoordinatorUnavailable
from allhands.recorder.record import worded
from allhands.recorder.source import caller, place
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.job_thread import Aside
from allhands.shm.areas import Grounds
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh
from allhands.verdicts import CallCancellation

logger = logging.getLogger(__name__)

_AGREED = 256
"""Calls like which were made by all ranks, and are known to be, at most."""
_HERE_BYTES = 64 << 10
MEETING_LATE = 3.0
"""Seconds after its deadline in which the coordinator must say what became of a meeting."""
_HERE_SECONDS = 0.002
"""How long a call may keep the loop from all else: most small ones end within a tenth of it."""


@dataclass(slots=True)
class Operation:
    """A collective call on its way through the queue."""

    work: Work
    call: Call
    native: Native
    """What the call is over shared memory."""
    build: Build
    """Makes what the call is over links."""
    result: Result
    timeout: float
    deadline: float
    """On the monotonic clock."""
    cancelled: bool = False
    """Whether it is to be passed over when it would begin."""
    running: Running | None = None
    """Where it is a chain, its steps; `native` and `build` are the first when it has begun."""
    meeting: "Meeting | None" = None
    """Where ranks only meet, and the coordinator sees to it."""
    has_touched: bool = False
    """Whether its outputs may have been touched over links."""
    signature: int = field(init=False)

    def __post_init__(self) -> None:
        self.signature = self.call.signature


@dataclass(frozen=True, slots=True)
class Meeting:
    """A monitored barrier."""

    names_all: bool
    """Whether its error names every rank that is missing."""


@dataclass(slots=True)
class Begun:
    """A call over links that has begun."""

    agrees: bool
    """Whether no peer is known to be in another call."""
    execution: Execution | None = None


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


@lru_cache(maxsize=64)
def over_links(algorithm: str, wire: Wire | None) -> str:
    """Say how a call was carried out; for people."""
    measured = "" if wire is None else f", where a message takes {wire}"
    return f"{algorithm} over links{measured}"


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
        layout: Layout | None = None,
        allocate: Allocate = bytearray,
        named: Sequence[int] | None = None,
        recorder_size: int = SIZE,
        verify: bool = False,
        more_grounds: Callable[[], Grounds | None] = lambda: None,
    ) -> None:
        """Make the engine of a group: on `grounds` that are those of all its ranks.

        `more_grounds` gives another share of memory to the same ranks, once.

        Callers name its ranks as `named` says, by default as ranks of the world.

        Where it spans hosts there is a `layout`, and the grounds are those of this host's ranks;
        `allocate` gives memory for its slices, best such that they can read one another's.
        """
        self.name = name
        self.ranks = tuple(ranks)
        """The world's rank of each rank of the group."""
        self.named = self.ranks if named is None else tuple(named)
        """What callers call each rank of the group."""
        self.rank = rank
        self.hash = group_hash(name)
        self.deterministic = deterministic
        self.wire: Wire | None = None
        """What the links of the world were measured to be, the same on every rank."""
        self.order = Order(timeout)
        self.recording = Recording(name, ranks, self.order, recorder_size)
        self.explanation = ""
        """How the latest call in phases was carried out."""
        self._mesh = mesh
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._position = Position()
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._interrupt: asyncio.Future[Failure | None] | None = None
        self._current: Operation | None = None
        losses = Losses()
        self._endings = Endings(
            name, self.ranks, rank, self.hash, mesh, registry, self._doing, losses
        )
        self._agreed: dict[int, None] = {}
        """Signatures of rooted calls that all ranks were heard to make; the oldest first."""
        self._stage = Stage()
        self._endings.where = self.recording.where
        self._backlog: Backlog | None = None
        self._aside = Aside(f"allhands group {name}")
        self._more_grounds = more_grounds
        self._steps: Steps | None = None
        self._verification: Verification | None = None
        if verify:
            self._verification = Verification(
                mesh, ranks, rank, self.hash, lambda: self._position.ended, self._spoil
            )
        self._hierarchy: Hierarchy | None = None
        if layout is not None:
            island = Island(layout.mine, layout.place, self._aside, grounds, timeout)
            self._hierarchy = Hierarchy(layout, island, Scratch(allocate), mesh, ranks, self.hash)
            grounds = None
        self._shared = Shared(
            name,
            rank,
            self.order,
            self._aside,
            self._endings,
            grounds,
            self.recording,
            self._refuse,
        )
        self.messages = Messages(
            name,
            self.ranks,
            rank,
            self.order,
            self._shared,
            Exchanges(self.hash, self.ranks, rank, mesh, registry, losses),
            registry,
            losses,
            lambda: self._position.ended,
            self.named,
        )

    @property
    def verifies(self) -> bool:
        """Whether data is checked on its way, and results are compared."""
        return self._verification is not None

    @property
    def position(self) -> Position:
        """Where this rank is in the group."""
        comm = self.order.comm
        if comm is None or (self._current is not None and self._current.running is not None):
            return self._position
        shared = Position(*comm.progress())
        if shared.sequence >= self._position.sequence:
            return shared
        # The next one waits for its turn, or was passed over.
        completed = max(shared.completed, self._position.completed)
        return replace(self._position, completed=completed)

    @property
    def is_at_home(self) -> bool:
        """Whether this runs on the loop on which the engine lives."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # ------------------------------------------------------------ calls

    def backlog(self, callbacks: Callbacks) -> Backlog:
        """Return where calls wait that need only the communicator; with the order's lock held."""
        if self._backlog is None:

            def skipped(sequence: int) -> None:
                self._loop.call_soon_threadsafe(self._skipped, sequence)

            self._backlog = Backlog(callbacks, self.order, self.recording, skipped)
        return self._backlog

    def submit(self, operation: Operation) -> None:
        """Queue a call; it runs when those before it have ended."""
        self._queue.append(operation)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queue(), name=f"group {self.name}")

    def goes_here(self, native: Native) -> bool:
        """Say whether a call is worth the caller's own thread, if it `is_next`."""
        nbytes = sum(array.nbytes for array in (*native.sources, *native.targets))
        return (
            not self.verifies
            and nbytes <= _HERE_BYTES
            and (self._hierarchy is None or not self._hierarchy.phases(native))
        )

    def is_next(self, sequence: int) -> bool:
        """Say whether the call with that number could begin at once, and go over links."""
        return (
            sequence == self._position.ended + 1
            and not self._queue
            and (self._runner is None or self._runner.done())
            and not self._shared.is_open
            and self.order.comm is None
        )

    def run_here(self, operation: Operation) -> bool:
        """Carry out a call that `is_next` where the loop is lent; say whether the loop goes on.

        A call that does not end here within moments, or not well, ends on the loop.
        """
        self._enter(operation)
        begun = Begun(self._agrees(operation))
        try:
            if begun.agrees and self._reason(operation.work.sequence) is None:
                execution = begun.execution = self._begin(operation)
                ended, interrupt = execution.ended, self._interrupt
                assert interrupt is not None
                self._mesh.pump(lambda: ended.done() or interrupt.done(), _HERE_SECONDS)
                if ended.done() and not interrupt.done() and ended.exception() is None:
                    self._finish(operation)
                    self._leave(operation, None)
                    return False
        except BaseException as error:  # whatever it is belongs to the caller
            if begun.execution is not None:
                begun.execution.stop()
                operation.has_touched = begun.execution.has_touched
            self._leave(operation, error)
            if not isinstance(error, Exception):
                raise
            return False
        self._runner = asyncio.create_task(
            self._run_queue(operation, begun), name=f"group {self.name}"
        )
        return True

    def cancel(self, operation: Operation) -> None:
        """End a call early."""

        work, backlog = operation.work, self._backlog
        if operation is self._current:
            self._endings.tell(work.sequence, work.why)
            self._wake(_cancelled)
        elif operation in self._queue or (backlog is not None and backlog.withdraw(operation)):
            self._endings.tell(work.sequence, work.why)
            operation.cancelled = True
            error = _cancelled(repr(work))
            self._mark(operation, error)
            work.fail(error)
        elif backlog is not None and backlog.runs(operation):
            self.give_up(work)

    def give_up(self, work: Work) -> None:
        """End a call early that needs nothing of the loop."""
        self._endings.tell(work.sequence, work.why)
        self._shared.interrupt(work.sequence, _cancelled)

    def pass_over(self, operation: Operation, reason: str) -> None:
        """Queue a call that is not made: its number is used up, and the others are told why."""
        operation.cancelled = True
        self._endings.tell(operation.work.sequence, reason)
        self.submit(operation)

    async def idle(self) -> None:
        """Return when every call submitted so far has ended, point to point included."""
        if self._runner is not None:
            await asyncio.wait([self._runner])
        await self._drain()
        await self._shared.idle()
        await self.messages.idle(self._aside.begin)

    def close(self, gone: Collection[int] = ()) -> None:
        """Give up what the group has of shared memory; every call has ended.

        Ranks of the world that are `gone` do not do the same.
        """
        self._aside.close()
        if self._verification is not None:
            self._verification.close()
        self.messages.close()
        self._shared.close(gone)
        if self._hierarchy is not None:
            self._hierarchy.close(gone)
        if self._steps is not None:
            self._steps.close(gone)

    # ------------------------------------------------------------ what happens to the group

    def fail(self, failure: Failure) -> None:
        """End the group: the current call, those queued, and all to come.

        They are told the first failure of the group that is known; see `losses`.
        """
        if self._endings.fail(failure):
            self._end()

    def shut(self, failure: Failure) -> None:
        """End the group because this rank is done with it, unless it has failed before."""
        if self._endings.close(failure):
            self._end()

    def failure(self) -> AllhandsError | None:
        """Return why the next call would fail; None: for nothing that is known yet."""
        reason = self._endings.reason(self.order.taken + 1)
        return None if reason is None else reason(f"a call of group {self.name!r}")

    def end(self, failure: Failure) -> None:
        """Let all calls to come say this, also where something else has ended the group before."""
        self._endings.end(failure)
        self._end()

    def abort(self, reason: str) -> None:
        """End the group on all its ranks."""
        self._registry.abort(self.name, reason)

    def refuse_clash(self, operation: str, clash: Clash) -> NoReturn:
        """End the group because a thread called what another one was in a call of; on any thread.

        Ranks number their calls in the order in which they come: whichever rank has the two the
        other way round would be given the wrong numbers, without being told.
        """
        here = worded(*place(*caller()))
        there = self.recording.where(clash.sequence)
        reason = (
            f"two threads called at the same time: {_thread(clash.thread)} was in "
            f"{clash.operation} #{clash.sequence}{there and f' at {there}'} when "
            f"{_thread(threading.get_ident())} called {operation}{here and f' at {here}'}; the "
            "other ranks cannot tell which of the calls belong together: give each thread a group "
            "of its own (new_group), or let them call in turn, in the same order on every rank"
        )
        self._loop.call_soon_threadsafe(self._registry.abort, self.name, reason)
        if (comm := self.order.comm) is not None:
            comm.close()  # so that no call begins before the loop has heard of it
        by = self._registry.name(self.ranks[self.rank])
        raise call_errors.aborted(f"{operation} of group {self.name!r}", by, reason)

    def _refuse(self, operation: str, thread: int, sequence: int, other: str) -> NoReturn:
        self.refuse_clash(operation, Clash(thread, sequence, other))

    def given_up(self, sequence: int, given: CallCancellation) -> None:
        """Learn that a rank of the group gave a call up on purpose."""
        if sequence <= self.position.ended:
            return
        failure = self._endings.give_up(sequence, given)
        if self._current is not None and sequence == self._current.work.sequence:
            self._wake(failure)
        else:
            self._shared.give_up(sequence)

    def peer_left(
        self, rank: int, completed: int, failure: Failure, *, is_fault: bool = False
    ) -> None:
        """Learn that a rank of the world left after call number `completed`.

        What it has completed can still be ended here; nothing after that. `is_fault` says that an
        error made it leave.
        """
        self._endings.leave(rank, completed, failure, is_fault=is_fault)
        self.messages.peer_left(rank)
        if self._current is not None:
            gone = self._endings.reason(self._current.work.sequence)
            if gone is not None:
                self._wake(gone)
            else:  # it was in the current call, and cannot say so any more
                self._mesh.excuse(Key(self.hash, self._current.work.sequence), rank)
        self._shared.limit(completed)

    def learn(self) -> None:
        """Learn that a rank of the group has fallen silent though it lives."""
        self._endings.learn()

    def refused(self, peer: int, key: Key, call: str) -> None:
        """Learn that a peer made another call than this rank, under the same number."""
        rank = self.ranks.index(peer)
        if key.point_to_point:
            self.messages.refused(peer, key, call)
            return
        if key.sequence > self.position.ended:
            self._endings.refused(rank, key.sequence, call)
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
            # Also if the call is about to end well here.
            self._endings.answer(peer, key.sequence, mine)
        elif key.sequence > self.position.sequence:
            self._endings.answer_soon(peer, key.sequence, self._said)
        if self._current is not None and key.sequence == self._current.work.sequence:
            self._wake(None)
        else:
            self._shared.interrupt_current(key.sequence)

    # ------------------------------------------------------------ inside

    def _end(self) -> None:
        """End what is under way, as `losses` say."""
        if self._current is not None:
            self._wake(self._endings.reason(self._current.work.sequence))
        self._shared.fail()
        self.messages.fail()

    async def _run_queue(
        self, operation: Operation | None = None, begun: "Begun | None" = None
    ) -> None:
        """Run what is queued, after a call that has begun elsewhere."""
        if operation is not None:
            await self._run(operation, begun)
        while self._queue:
            await self._drain()
            operation = self._queue.popleft()
            if operation.cancelled:
                await self._pass_over(operation)
            else:
                self._enter(operation)
                await self._run(operation)

    async def _pass_over(self, operation: Operation) -> None:
        """Leave out a call that was cancelled before it began; its number is used up."""
        sequence = operation.work.sequence
        self._skipped(sequence)
        await self._shared.pass_over(sequence)
        self.order.give_back()

    def _skipped(self, sequence: int) -> None:
        """Learn that a call was cancelled before it began, and is this rank's latest."""
        self._endings.begin(sequence, "a call that it gave up before it began")
        self._position.sequence = self._position.ended = sequence

    async def _drain(self) -> None:
        """Return when the calls in the backlog have ended, which come before those of the queue."""
        if self._backlog is not None and not self._backlog.is_empty:
            await self._aside.run(self._backlog.drain)

    def _enter(self, operation: Operation) -> None:
        """Make a call the current one."""
        work, position = operation.work, self._position
        position.sequence = work.sequence
        position.operation = work.operation
        position.since = time.monotonic()
        self._current = operation
        self._interrupt = asyncio.get_running_loop().create_future()
        self.recording.began(work.entry)
        self._endings.begin(work.sequence, operation.call)

    def _leave(self, operation: Operation, error: BaseException | None) -> None:
        """Settle the work of the current call, which is over."""
        work, position = operation.work, self._position
        self._current = None
        self._interrupt = None
        self.recording.waiting_for = tuple
        self._mesh.conclude(self.hash, work.sequence)
        self._endings.conclude(work.sequence)
        if self._verification is not None:
            self._verification.conclude(work.sequence)
        now = time.monotonic()
        self._endings.waits.append(now - position.since)
        position.ended = work.sequence
        position.operation = ""
        position.since = now
        self.order.give_back()
        if error is None:
            position.completed = work.sequence
            work.succeed(operation.result)
        else:
            if isinstance(error, AllhandsError):
                self._mark(operation, error)
            logger.debug("%s failed: %s", work, error)
            work.fail(error)

    def _mark(self, operation: Operation, error: AllhandsError) -> None:
        """Let an error say what became of the outputs of a call."""
        say = bool(operation.native.targets) and not isinstance(error, CollectiveMismatch)
        error.add_intact(not operation.has_touched, say)

    async def _run(self, operation: Operation, begun: "Begun | None" = None) -> None:
        """Carry out the current call and settle its work."""
        work = operation.work
        error: BaseException | None = None
        try:
            if (failure := self._reason(work.sequence)) is not None:
                raise failure(self._what(operation))
            if operation.meeting is not None:
                await self._run_meeting(operation, operation.meeting)
                return
            if operation.running is not None:
                await self._advance(operation, operation.running)
            if self._shared.is_open:
                await self._settle(operation)
            if self.order.comm is not None:
                work.explained(
                    await self._shared.run(
                        self.order.comm,
                        operation.native,
                        work.sequence,
                        operation.timeout,
                        operation.deadline,
                        work.label,
                        None if operation.running is None else operation.call,
                    )
                )
            elif begun is not None:
                await self._run_linked(operation, begun)
            elif self._hierarchy is None or not (
                phases := self._hierarchy.phases(operation.native)
            ):
                await self._run_linked(operation, Begun(self._agrees(operation)))
            else:
                await self._run_phases(operation, self._hierarchy, phases)
            if self._verification is not None:
                await self._verify(operation, self._verification)
            if operation.running is not None:
                await self._run_rest(operation, operation.running)
        except asyncio.CancelledError:
            error = AllhandsError(f"{self._what(operation)} was cancelled: the worker is closing")
        except Exception as raised:  # whatever it is belongs to the caller, not to the loop
            error = raised
            if operation.running is not None and not isinstance(raised, AllhandsError):
                # As what a chain computes has it on this rank alone: the others need not wait.
                self._endings.tell(work.sequence, f"{type(raised).__name__}: {raised}")
                await self._shared.pass_over(work.sequence)
        finally:
            if begun is not None and begun.execution is not None:
                begun.execution.stop()
            self._leave(operation, error)

    async def _advance(self, operation: Operation, running: Running) -> None:
        """Let a chain say what its first step is, which is made as if it was the call."""
        step = await self._aside.run(running.advance)
        assert step is not None
        operation.native, operation.build = step.native, step.build
        assert self._interrupt is not None
        if self._interrupt.done() and (failure := self._interrupt.result()) is not None:
            raise failure(self._what(operation))

    async def _run_rest(self, operation: Operation, running: Running) -> None:
        """Carry out the other steps of a chain, and let it end."""
        operation.has_touched = False  # only memory of its own
        if self._steps is None:
            self._steps = Steps(
                self._mesh, self.ranks, self.rank, self.hash, self._aside, self._open_steps()
            )
        rest = self._steps.rest(
            running,
            operation.work.sequence,
            operation.signature,
            operation.timeout,
            operation.deadline,
            self.deterministic,
        )
        performing = asyncio.create_task(rest.run())
        try:
            await self._carry_out(operation, performing, rest.waiting_for)
        except BaseException:
            # The thread beside may be about to write what the caller gave: then that counts.
            await self._aside.run(lambda: None)
            if not running.is_over:
                raise
        operation.result = running.result

    def _open_steps(self) -> Island | None:
        """Return where the later steps of chains go; None: over links, as on all ranks."""
        if self.order.comm is None or self.verifies:
            return None
        places = range(len(self.ranks))
        return Island(places, self.rank, self._aside, self._more_grounds(), self.order.timeout)

    async def _settle(self, operation: Operation) -> None:
        """Find out whether the ranks share memory, within the deadline of a call."""
        settling = self._shared.settle(lambda: self._position.ended)
        try:
            await self._carry_out(operation, asyncio.create_task(settling), self._shared.missing)
        except BaseException:
            await self._shared.pass_over(operation.work.sequence)  # a message may have settled it
            raise

    async def _run_linked(self, operation: Operation, begun: "Begun") -> None:
        if not begun.agrees:
            await self._disagree(operation)
        if begun.execution is None:
            begun.execution = self._begin(operation)
        execution = begun.execution
        try:
            await self._carry_out(operation, execution.ended, execution.waiting_for)
        finally:
            execution.stop()
            operation.has_touched = execution.has_touched
        self._finish(operation)

    async def _run_meeting(self, operation: Operation, meeting: Meeting) -> None:
        work = operation.work
        if not self._agrees(operation):
            await self._disagree(operation)
        remaining = operation.deadline - time.monotonic()
        met = asyncio.ensure_future(self._registry.meet(self.name, work.sequence, remaining))
        assert self._interrupt is not None
        try:
            await first(met, self._interrupt, timeout=remaining + MEETING_LATE)
            if self._interrupt.done():
                if (failure := self._interrupt.result()) is not None:
                    raise failure(self._what(operation))
                await self._disagree(operation)
            if not met.done():
                raise CoordinatorUnavailable(
                    f"{self._what(operation)}: the coordinator does not say who is missing"
                )
            if (found := met.result()) is not None:
                raise self._endings.not_passed(work, operation.timeout, found, meeting.names_all)
        finally:
            await stop(met)
            # Those who look for this rank in memory, in another call, should not do so in vain.
            await self._shared.pass_over(work.sequence)

    async def _verify(self, operation: Operation, verification: Verification) -> None:
        """Compare the result with that of the other ranks, over links whatever carried the call."""
        sequence, native = operation.work.sequence, operation.native
        operation.has_touched = True
        mine = (
            digest(native)
            if result_bytes(native) <= HERE_BYTES
            else await self._aside.run(partial(digest, native))
        )
        if not self._agrees(operation):
            await self._disagree(operation)
        found = np.zeros(len(self.ranks), np.uint64)
        execution = verification.execution(sequence, operation.call.signature)
        execution.begin(verification.parts(mine, found))
        try:
            await self._carry_out(operation, execution.ended, execution.waiting_for)
        finally:
            execution.stop()
        if (failure := verification.difference(found.tolist(), sequence)) is not None:
            raise failure(self._what(operation))

    def _reason(self, sequence: int) -> Failure | None:
        """Return why a call cannot end well, if that is known."""
        reason = self._endings.reason(sequence)
        if reason is None and self._verification is not None:
            reason = self._verification.reason(sequence)
        return reason

    def _spoil(self, sequence: int, failure: Failure) -> None:
        """End the call with that number if it is under way."""
        if self._current is not None and self._current.work.sequence == sequence:
            self._wake(failure)

    def _begin(self, operation: Operation) -> Execution:
        """Begin what a call is over links, and note how that is explained."""
        work, native, signature = operation.work, operation.native, operation.signature
        execution = Execution(
            self._mesh,
            peers=self.ranks,
            rank=self.rank,
            group=self.hash,
            sequence=work.sequence,
            signature=signature,
            reduce=operation.native.op or ReduceOp.SUM,
        )
        parts = operation.build(self.rank, len(self.ranks))
        work.explained(over_links(parts[0].name, self.wire))
        guard = guarded(native, self.rank, len(self.ranks), parts, self._stage)
        beside = []
        if native.kind in ROOTED and guard.assembly is None and signature not in self._agreed:
            key = Key(self.hash, work.sequence)
            there = [rank for rank in self.ranks if not self._endings.has_left(rank)]
            beside.append(Hearing(self._mesh, self.ranks, self.rank, there, key, signature))
        execution.begin(guard.parts, assembly=guard.assembly, commit=guard.commit, beside=beside)
        return execution

    def _finish(self, operation: Operation) -> None:
        """Do what is left when all has landed."""
        if operation.native.kind in ROOTED:
            self._agreed[operation.signature] = None
            if len(self._agreed) > _AGREED:
                del self._agreed[next(iter(self._agreed))]
        if not operation.native.is_ordered(len(self.ranks), self.deterministic):
            operation.native.finish(len(self.ranks))

    async def _run_phases(
        self, operation: Operation, hierarchy: Hierarchy, phases: Sequence[Phase]
    ) -> None:
        performance = hierarchy.performance(
            phases,
            operation.native.targets,
            sequence=operation.work.sequence,
            signature=operation.signature,
            timeout=operation.timeout,
            deadline=operation.deadline,
            wire=self.wire,
        )
        if not self._agrees(operation):
            await self._disagree(operation)
        performing = asyncio.create_task(performance.run())
        try:
            await self._carry_out(operation, performing, performance.waiting_for)
        finally:
            operation.has_touched = performance.has_touched
        operation.native.finish(len(self.ranks))
        self.explanation = hierarchy.described(phases)
        operation.work.explained(self.explanation)

    def _agrees(self, operation: Operation) -> bool:
        """Say that a call begins here that may take messages; False: a peer is in another."""
        sequence, signature = operation.work.sequence, operation.signature
        is_other = self._mesh.begin(self.hash, sequence, signature)
        return not (is_other or self._endings.is_refused(sequence))

    async def _disagree(self, operation: Operation) -> NoReturn:
        sequence = operation.work.sequence
        await self._endings.disagree(self._what(operation), sequence, operation.call)

    async def _carry_out(
        self,
        operation: Operation,
        carrying: "asyncio.Future[None]",
        waiting_for: Callable[[], Sequence[int]],
    ) -> None:
        """Wait for what a call does until it is done, interrupted, or out of time."""
        work, signature = operation.work, operation.signature
        asking: asyncio.Task[Found] | None = None
        unwatch: Callable[[], None] | None = None
        stall: Stall | None = None
        self.recording.waiting_for = waiting_for
        assert self._interrupt is not None
        try:
            remaining = operation.deadline - time.monotonic()
            alone, unasked = min(PING_AFTER, remaining / 4), min(ASK_AFTER, remaining / 2)
            if await first(carrying, self._interrupt, timeout=alone):
                return await self._ended(operation, carrying)
            unwatch = self._registry.watch_links(
                lambda: [self.ranks[place] for place in waiting_for()]
            )
            if await first(carrying, self._interrupt, timeout=unasked - alone):
                return await self._ended(operation, carrying)
            for rank in waiting_for():
                # They may wait for this rank as well, in another call that sends nothing either.
                self._mesh.declare(self.ranks[rank], Key(self.hash, work.sequence), signature)
            asking = self._endings.ask(
                work.sequence, work.operation, waiting_for(), operation.deadline
            )
            stall = self._endings.watch(
                work.operation,
                work.sequence,
                work.label,
                waiting_for,
                self._position.since,
                operation.deadline,
            )
            remaining = operation.deadline - time.monotonic()
            if await first(carrying, self._interrupt, timeout=remaining):
                return await self._ended(operation, carrying)
            # The coordinator's word comes with the deadline, seldom later.
            if await first(carrying, self._interrupt, asking, timeout=LATE) and (
                carrying.done() or self._interrupt.done()
            ):
                return await self._ended(operation, carrying)
            raise self._endings.timed_out(
                work.operation, work.sequence, work.label, operation.timeout, asking, waiting_for()
            )
        finally:
            if stall is not None:
                stall.end(well=_is_well(carrying))
            if unwatch is not None:
                unwatch()
            await stop(carrying)
            if asking is not None:
                await stop(asking)

    async def _ended(self, operation: Operation, carrying: "asyncio.Future[None]") -> None:
        """Raise what ended a call, if anything but its success did."""
        work = operation.work
        assert self._interrupt is not None
        if carrying.done():
            try:
                carrying.result()
                return
            except MismatchFound:
                await self._disagree(operation)
            except Left as left:
                await self._endings.hear_why()
                if not self._interrupt.done():
                    raise await self._endings.given_up(
                        work.operation, work.sequence, work.label, left.ranks
                    ) from left
        failure = self._interrupt.result()
        if failure is not None:
            raise failure(self._what(operation))
        await self._disagree(operation)

    def _said(self, sequence: int) -> str | None:
        """Return what this rank called under a number, if that is not long ago."""
        return self._shared.said(sequence) or self._endings.said(sequence)

    def _doing(self) -> str:
        """Say what this rank does in the group now; for people."""
        position = self.position
        if position.operation:
            return f"is in {position.operation} #{position.sequence}"
        return f"is outside any call since #{position.ended}" if position.ended else "has made none"

    def _wake(self, failure: Failure | None) -> None:
        """Wake the call from the queue that runs."""
        if self._interrupt is None or self._interrupt.done():
            return
        self._interrupt.set_result(failure)
        if self._current is not None:
            self._shared.interrupt(self._current.work.sequence, failure)

    def _what(self, operation: Operation) -> str:
        work = operation.work
        return self._endings.named(work.operation, work.sequence, work.label)


def _thread(ident: int) -> str:
    """Name a thread, for people."""
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0]!r}" if names else f"thread {ident}"


def _cancelled(what: str) -> AllhandsError:
    return AllhandsError(f"{what} was cancelled by this rank")


def _is_well(task: "asyncio.Future[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
