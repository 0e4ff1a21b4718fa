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

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.composite_call import CompositeState
from allhands.collectives.hierarchical_plan import Allocate, HostLayout, Phase, SliceScratch
from allhands.collectives.primitive import BuildParts
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result, hash_group
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory, PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.failures.slow_calls import SlowCall
from allhands.engine.failures.tracker import (
    ASK_AFTER,
    VERDICT_GRACE,
    FailureTracker,
    VerdictReply,
    cancel_and_wait,
    wait_first,
)
from allhands.engine.group_recorder import DEFAULT_SIZE, GroupRecorder
from allhands.engine.hosts.composite_runner import CompositeRunner
from allhands.engine.hosts.hierarchical import HierarchicalRunner
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.links.output_guard import (
    ROOTED,
    ArrivalCondition,
    StagingBuffer,
    guard_outputs,
)
from allhands.engine.links.pings import PING_AFTER
from allhands.engine.numbering import CallNumbering, Clash
from allhands.engine.p2p.over_links import P2POverLinks
from allhands.engine.p2p.router import P2PRouter
from allhands.engine.result_check import (
    INLINE_DIGEST_BYTES,
    ResultCheck,
    compute_digest,
    count_result_bytes,
)
from allhands.engine.shm.deferred_calls import DeferredCalls
from allhands.engine.shm.group_channel import GroupChannel
from allhands.engine.shm.host_group import CallAbandoned, HostGroup
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveMismatch, CoordinatorUnavailable
from allhands.recorder.record import format_source
from allhands.recorder.source import find_caller, locate
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.job_thread import JobThread
from allhands.shm.areas import GroupAreas
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands.verdicts import CallCancellation

logger = logging.getLogger(__name__)

_MAX_AGREED = 256
"""Calls like which were made by all ranks, and are known to be, at most."""
_INLINE_BYTES = 64 << 10
BARRIER_VERDICT_GRACE = 3.0
"""Seconds after its deadline in which the coordinator must say what became of a meeting."""
_INLINE_SECONDS = 0.002
"""How long a call may keep the loop from all else: most small ones end within a tenth of it."""


@dataclass(slots=True)
class Operation:
    """A collective call on its way through the queue."""

    work: Work
    call: CallSignature
    request: CollectiveRequest
    """What the call is over shared memory."""
    build: BuildParts
    """Makes what the call is over links."""
    result: Result
    timeout: float
    deadline: float
    """On the monotonic clock."""
    is_cancelled: bool = False
    """Whether it is to be passed over when it would begin."""
    composite_state: CompositeState | None = None
    """Where it is a chain, its steps; `native` and `build` are the first when it has begun."""
    monitored_barrier: "MonitoredBarrierCall | None" = None
    """Where ranks only meet, and the coordinator sees to it."""
    has_touched: bool = False
    """Whether its outputs may have been touched over links."""
    signature: int = field(init=False)

    def __post_init__(self) -> None:
        self.signature = self.call.signature


@dataclass(frozen=True, slots=True)
class MonitoredBarrierCall:
    """A monitored barrier."""

    names_all: bool
    """Whether its error names every rank that is missing."""


@dataclass(slots=True)
class StartedCall:
    """A call over links that has begun."""

    agrees: bool
    """Whether no peer is known to be in another call."""
    execution: Execution | None = None


@dataclass(slots=True)
class GroupProgress:
    """Where this rank is in the group; what heartbeats carry."""

    sequence: int = 0
    last_ended: int = 0
    """The latest call that is over here, well or not."""
    last_completed: int = 0
    """The latest call that ended well here: what the others need of it has been sent."""
    operation: str = ""
    since: float = field(default_factory=time.monotonic)


@lru_cache(maxsize=64)
def explain_links(algorithm: str, link_cost: LinkCost | None) -> str:
    """Say how a call was carried out; for people."""
    measured = "" if link_cost is None else f", where a message takes {link_cost}"
    return f"{algorithm} over links{measured}"


class GroupEngine:
    """Runs the calls of a group one after the other, on the loop; point to point beside them."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        mesh: Mesh,
        directory: PeerDirectory,
        *,
        timeout: float = 30.0,
        deterministic: bool = False,
        areas: GroupAreas | None = None,
        layout: HostLayout | None = None,
        allocate: Allocate = bytearray,
        caller_ranks: Sequence[int] | None = None,
        recorder_size: int = DEFAULT_SIZE,
        verify: bool = False,
        open_composite_areas: Callable[[], GroupAreas | None] = lambda: None,
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
        self.caller_ranks = self.ranks if caller_ranks is None else tuple(caller_ranks)
        """What callers call each rank of the group."""
        self.rank = rank
        self.hash = hash_group(name)
        self.deterministic = deterministic
        self.link_cost: LinkCost | None = None
        """What the links of the world were measured to be, the same on every rank."""
        self.order = CallNumbering(timeout)
        self.recorder = GroupRecorder(name, ranks, self.order, recorder_size)
        self.explanation = ""
        """How the latest call in phases was carried out."""
        self._mesh = mesh
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._progress = GroupProgress()
        self._queue: deque[Operation] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._interrupt: asyncio.Future[ErrorFactory | None] | None = None
        self._current: Operation | None = None
        losses = FailureLog()
        self._failures = FailureTracker(
            name, self.ranks, rank, self.hash, mesh, directory, self._describe_activity, losses
        )
        self._agreed_signatures: dict[int, None] = {}
        """Signatures of rooted calls that all ranks were heard to make; the oldest first."""
        self._staging = StagingBuffer()
        self._failures.find_call_site = self.recorder.find_call_site
        self._deferred_calls: DeferredCalls | None = None
        self._job_thread = JobThread(f"allhands group {name}")
        self._open_composite_areas = open_composite_areas
        self._composite_runner: CompositeRunner | None = None
        self._result_check: ResultCheck | None = None
        if verify:
            self._result_check = ResultCheck(
                mesh,
                ranks,
                rank,
                self.hash,
                lambda: self._progress.last_ended,
                self._interrupt_call,
            )
        self._hierarchical_runner: HierarchicalRunner | None = None
        if layout is not None:
            island = HostGroup(
                layout.local_ranks, layout.local_rank, self._job_thread, areas, timeout
            )
            self._hierarchical_runner = HierarchicalRunner(
                layout, island, SliceScratch(allocate), mesh, ranks, self.hash
            )
            areas = None
        self._channel = GroupChannel(
            name,
            rank,
            self.order,
            self._job_thread,
            self._failures,
            areas,
            self.recorder,
            self._on_clash,
        )
        self.p2p_router = P2PRouter(
            name,
            self.ranks,
            rank,
            self.order,
            self._channel,
            P2POverLinks(self.hash, self.ranks, rank, mesh, directory, losses),
            directory,
            losses,
            lambda: self._progress.last_ended,
            self.caller_ranks,
        )

    @property
    def verifies(self) -> bool:
        """Whether data is checked on its way, and results are compared."""
        return self._result_check is not None

    @property
    def progress(self) -> GroupProgress:
        """Where this rank is in the group."""
        comm = self.order.comm
        if comm is None or (
            self._current is not None and self._current.composite_state is not None
        ):
            return self._progress
        shared = GroupProgress(*comm.progress())
        if shared.sequence >= self._progress.sequence:
            return shared
        # The next one waits for its turn, or was passed over.
        completed = max(shared.last_completed, self._progress.last_completed)
        return replace(self._progress, last_completed=completed)

    @property
    def is_on_loop(self) -> bool:
        """Whether this runs on the loop on which the engine lives."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # ------------------------------------------------------------ calls

    def get_deferred_calls(self, callbacks: Callbacks) -> DeferredCalls:
        """Return where calls wait that need only the communicator; with the order's lock held."""
        if self._deferred_calls is None:

            def notify_skipped(sequence: int) -> None:
                self._loop.call_soon_threadsafe(self._on_skipped, sequence)

            self._deferred_calls = DeferredCalls(
                callbacks, self.order, self.recorder, notify_skipped
            )
        return self._deferred_calls

    def submit(self, operation: Operation) -> None:
        """Queue a call; it runs when those before it have ended."""
        self._queue.append(operation)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queue(), name=f"group {self.name}")

    def can_run_inline(self, request: CollectiveRequest) -> bool:
        """Say whether a call is worth the caller's own thread, if it `is_next`."""
        nbytes = sum(array.nbytes for array in (*request.sources, *request.targets))
        return (
            not self.verifies
            and nbytes <= _INLINE_BYTES
            and (
                self._hierarchical_runner is None
                or not self._hierarchical_runner.plan_phases(request)
            )
        )

    def is_next(self, sequence: int) -> bool:
        """Say whether the call with that number could begin at once, and go over links."""
        return (
            sequence == self._progress.last_ended + 1
            and not self._queue
            and (self._runner is None or self._runner.done())
            and not self._channel.is_undecided
            and self.order.comm is None
        )

    def run_inline(self, operation: Operation) -> bool:
        """Carry out a call that `is_next` where the loop is lent; say whether the loop goes on.

        A call that does not end here within moments, or not well, ends on the loop.
        """
        self._enter(operation)
        begun = StartedCall(self._begin_matching(operation))
        try:
            if begun.agrees and self._find_failure(operation.work.sequence) is None:
                execution = begun.execution = self._start_execution(operation)
                ended, interrupt = execution.completion, self._interrupt
                assert interrupt is not None
                self._mesh.pump(lambda: ended.done() or interrupt.done(), _INLINE_SECONDS)
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

        work, backlog = operation.work, self._deferred_calls
        if operation is self._current:
            self._failures.send_give_up(work.sequence, work.cancel_reason)
            self._interrupt_current(_build_cancelled_error)
        elif operation in self._queue or (backlog is not None and backlog.withdraw(operation)):
            self._failures.send_give_up(work.sequence, work.cancel_reason)
            operation.is_cancelled = True
            error = _build_cancelled_error(repr(work))
            self._mark_outputs(operation, error)
            work.fail(error)
        elif backlog is not None and backlog.is_running(operation):
            self.cancel_shm_call(work)

    def cancel_shm_call(self, work: Work) -> None:
        """End a call early that needs nothing of the loop."""
        self._failures.send_give_up(work.sequence, work.cancel_reason)
        self._channel.interrupt(work.sequence, _build_cancelled_error)

    def skip(self, operation: Operation, reason: str) -> None:
        """Queue a call that is not made: its number is used up, and the others are told why."""
        operation.is_cancelled = True
        self._failures.send_give_up(operation.work.sequence, reason)
        self.submit(operation)

    async def wait_idle(self) -> None:
        """Return when every call submitted so far has ended, point to point included."""
        if self._runner is not None:
            await asyncio.wait([self._runner])
        await self._drain()
        await self._channel.wait_idle()
        await self.p2p_router.wait_idle(self._job_thread.submit)

    def close(self, lost_ranks: Collection[int] = ()) -> None:
        """Give up what the group has of shared memory; every call has ended.

        Ranks of the world that are `gone` do not do the same.
        """
        self._job_thread.close()
        if self._result_check is not None:
            self._result_check.close()
        self.p2p_router.close()
        self._channel.close(lost_ranks)
        if self._hierarchical_runner is not None:
            self._hierarchical_runner.close(lost_ranks)
        if self._composite_runner is not None:
            self._composite_runner.close(lost_ranks)

    # ------------------------------------------------------------ what happens to the group

    def fail(self, failure: ErrorFactory) -> None:
        """End the group: the current call, those queued, and all to come.

        They are told the first failure of the group that is known; see `losses`.
        """
        if self._failures.fail(failure):
            self._end()

    def shut_down(self, failure: ErrorFactory) -> None:
        """End the group because this rank is done with it, unless it has failed before."""
        if self._failures.close(failure):
            self._end()

    def get_next_error(self) -> AllhandsError | None:
        """Return why the next call would fail; None: for nothing that is known yet."""
        reason = self._failures.find_failure(self.order.latest_sequence + 1)
        return None if reason is None else reason(f"a call of group {self.name!r}")

    def replace_failure(self, failure: ErrorFactory) -> None:
        """Let all calls to come say this, also where something else has ended the group before."""
        self._failures.replace_failure(failure)
        self._end()

    def abort(self, reason: str) -> None:
        """End the group on all its ranks."""
        self._directory.abort(self.name, reason)

    def refuse_clash(self, operation: str, clash: Clash) -> NoReturn:
        """End the group because a thread called what another one was in a call of; on any thread.

        Ranks number their calls in the order in which they come: whichever rank has the two the
        other way round would be given the wrong numbers, without being told.
        """
        here = format_source(*locate(*find_caller()))
        there = self.recorder.find_call_site(clash.sequence)
        reason = (
            f"two threads called at the same time: {_name_thread(clash.thread)} was in "
            f"{clash.operation} #{clash.sequence}{there and f' at {there}'} when "
            f"{_name_thread(threading.get_ident())} called {operation}{here and f' at {here}'}; "
            "the "
            "other ranks cannot tell which of the calls belong together: give each thread a group "
            "of its own (new_group), or let them call in turn, in the same order on every rank"
        )
        self._loop.call_soon_threadsafe(self._directory.abort, self.name, reason)
        if (comm := self.order.comm) is not None:
            comm.close()  # so that no call begins before the loop has heard of it
        by = self._directory.describe_rank(self.ranks[self.rank])
        raise call_errors.build_aborted_error(f"{operation} of group {self.name!r}", by, reason)

    def _on_clash(self, operation: str, thread: int, sequence: int, other: str) -> NoReturn:
        self.refuse_clash(operation, Clash(thread, sequence, other))

    def on_given_up(self, sequence: int, give_up: CallCancellation) -> None:
        """Learn that a rank of the group gave a call up on purpose."""
        if sequence <= self.progress.last_ended:
            return
        failure = self._failures.record_give_up(sequence, give_up)
        if self._current is not None and sequence == self._current.work.sequence:
            self._interrupt_current(failure)
        else:
            self._channel.interrupt_next(sequence)

    def on_peer_left(
        self, rank: int, completed: int, failure: ErrorFactory, *, is_fault: bool = False
    ) -> None:
        """Learn that a rank of the world left after call number `completed`.

        What it has completed can still be ended here; nothing after that. `is_fault` says that an
        error made it leave.
        """
        self._failures.record_departure(rank, completed, failure, is_fault=is_fault)
        self.p2p_router.on_peer_left(rank)
        if self._current is not None:
            gone = self._failures.find_failure(self._current.work.sequence)
            if gone is not None:
                self._interrupt_current(gone)
            else:  # it was in the current call, and cannot say so any more
                self._mesh.stop_awaiting(MessageKey(self.hash, self._current.work.sequence), rank)
        self._channel.limit(completed)

    def on_peer_silent(self) -> None:
        """Learn that a rank of the group has fallen silent though it lives."""
        self._failures.on_peer_silent()

    def on_refused(self, peer: int, key: MessageKey, call: str) -> None:
        """Learn that a peer made another call than this rank, under the same number."""
        rank = self.ranks.index(peer)
        if key.is_p2p:
            self.p2p_router.on_refused(peer, key, call)
            return
        if key.sequence > self.progress.last_ended:
            self._failures.record_peer_call(rank, key.sequence, call)
        else:
            logger.warning(
                "call #%d of group %r has ended here as %s, but rank %d called %s",
                key.sequence,
                self.name,
                self._find_own_call(key.sequence) or "a call long ago",
                rank,
                call,
            )
        self.on_mismatch(peer, key)

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        """Learn that a peer is in another call than this rank is, or was, under one number."""
        if (mine := self._find_own_call(key.sequence)) is not None:
            # Also if the call is about to end well here.
            self._failures.send_own_call(peer, key.sequence, mine)
        elif key.sequence > self.progress.sequence:
            self._failures.send_own_call_soon(peer, key.sequence, self._find_own_call)
        if self._current is not None and key.sequence == self._current.work.sequence:
            self._interrupt_current(None)
        else:
            self._channel.interrupt_current(key.sequence)

    # ------------------------------------------------------------ inside

    def _end(self) -> None:
        """End what is under way, as `losses` say."""
        if self._current is not None:
            self._interrupt_current(self._failures.find_failure(self._current.work.sequence))
        self._channel.fail()
        self.p2p_router.fail()

    async def _run_queue(
        self, operation: Operation | None = None, started: "StartedCall | None" = None
    ) -> None:
        """Run what is queued, after a call that has begun elsewhere."""
        if operation is not None:
            await self._run(operation, started)
        while self._queue:
            await self._drain()
            operation = self._queue.popleft()
            if operation.is_cancelled:
                await self._skip(operation)
            else:
                self._enter(operation)
                await self._run(operation)

    async def _skip(self, operation: Operation) -> None:
        """Leave out a call that was cancelled before it began; its number is used up."""
        sequence = operation.work.sequence
        self._on_skipped(sequence)
        await self._channel.skip(sequence)
        self.order.release()

    def _on_skipped(self, sequence: int) -> None:
        """Learn that a call was cancelled before it began, and is this rank's latest."""
        self._failures.record_own_call(sequence, "a call that it gave up before it began")
        self._progress.sequence = self._progress.last_ended = sequence

    async def _drain(self) -> None:
        """Return when the calls in the backlog have ended, which come before those of the queue."""
        if self._deferred_calls is not None and not self._deferred_calls.is_empty:
            await self._job_thread.run(self._deferred_calls.drain)

    def _enter(self, operation: Operation) -> None:
        """Make a call the current one."""
        work, position = operation.work, self._progress
        position.sequence = work.sequence
        position.operation = work.operation
        position.since = time.monotonic()
        self._current = operation
        self._interrupt = asyncio.get_running_loop().create_future()
        self.recorder.record_start(work.entry)
        self._failures.record_own_call(work.sequence, operation.call)

    def _leave(self, operation: Operation, error: BaseException | None) -> None:
        """Settle the work of the current call, which is over."""
        work, position = operation.work, self._progress
        self._current = None
        self._interrupt = None
        self.recorder.list_awaited = tuple
        self._mesh.finish_calls(self.hash, work.sequence)
        self._failures.conclude(work.sequence)
        if self._result_check is not None:
            self._result_check.conclude(work.sequence)
        now = time.monotonic()
        self._failures.durations.append(now - position.since)
        position.last_ended = work.sequence
        position.operation = ""
        position.since = now
        self.order.release()
        if error is None:
            position.last_completed = work.sequence
            work.succeed(operation.result)
        else:
            if isinstance(error, AllhandsError):
                self._mark_outputs(operation, error)
            logger.debug("%s failed: %s", work, error)
            work.fail(error)

    def _mark_outputs(self, operation: Operation, error: AllhandsError) -> None:
        """Let an error say what became of the outputs of a call."""
        say = bool(operation.request.targets) and not isinstance(error, CollectiveMismatch)
        error.add_intact(not operation.has_touched, say)

    async def _run(self, operation: Operation, started: "StartedCall | None" = None) -> None:
        """Carry out the current call and settle its work."""
        work = operation.work
        error: BaseException | None = None
        try:
            if (failure := self._find_failure(work.sequence)) is not None:
                raise failure(self._name_call(operation))
            if operation.monitored_barrier is not None:
                await self._run_monitored_barrier(operation, operation.monitored_barrier)
                return
            if operation.composite_state is not None:
                await self._advance(operation, operation.composite_state)
            if self._channel.is_undecided:
                await self._negotiate(operation)
            if self.order.comm is not None:
                work.explained(
                    await self._channel.run(
                        self.order.comm,
                        operation.request,
                        work.sequence,
                        operation.timeout,
                        operation.deadline,
                        work.label,
                        None if operation.composite_state is None else operation.call,
                    )
                )
            elif started is not None:
                await self._run_over_links(operation, started)
            elif self._hierarchical_runner is None or not (
                phases := self._hierarchical_runner.plan_phases(operation.request)
            ):
                await self._run_over_links(operation, StartedCall(self._begin_matching(operation)))
            else:
                await self._run_phases(operation, self._hierarchical_runner, phases)
            if self._result_check is not None:
                await self._verify(operation, self._result_check)
            if operation.composite_state is not None:
                await self._run_remaining_steps(operation, operation.composite_state)
        except asyncio.CancelledError:
            error = AllhandsError(
                f"{self._name_call(operation)} was cancelled: the worker is closing"
            )
        except Exception as raised:  # whatever it is belongs to the caller, not to the loop
            error = raised
            if operation.composite_state is not None and not isinstance(raised, AllhandsError):
                # As what a chain computes has it on this rank alone: the others need not wait.
                self._failures.send_give_up(work.sequence, f"{type(raised).__name__}: {raised}")
                await self._channel.skip(work.sequence)
        finally:
            if started is not None and started.execution is not None:
                started.execution.stop()
            self._leave(operation, error)

    async def _advance(self, operation: Operation, composite_state: CompositeState) -> None:
        """Let a chain say what its first step is, which is made as if it was the call."""
        step = await self._job_thread.run(composite_state.advance)
        assert step is not None
        operation.request, operation.build = step.request, step.build
        assert self._interrupt is not None
        if self._interrupt.done() and (failure := self._interrupt.result()) is not None:
            raise failure(self._name_call(operation))

    async def _run_remaining_steps(
        self, operation: Operation, composite_state: CompositeState
    ) -> None:
        """Carry out the other steps of a chain, and let it end."""
        operation.has_touched = False  # only memory of its own
        if self._composite_runner is None:
            self._composite_runner = CompositeRunner(
                self._mesh,
                self.ranks,
                self.rank,
                self.hash,
                self._job_thread,
                self._open_composite_group(),
            )
        rest = self._composite_runner.make_run(
            composite_state,
            operation.work.sequence,
            operation.signature,
            operation.timeout,
            operation.deadline,
            self.deterministic,
        )
        performing = asyncio.create_task(rest.run())
        try:
            await self._run_guarded(operation, performing, rest.list_awaited)
        except BaseException:
            # The thread beside may be about to write what the caller gave: then that counts.
            await self._job_thread.run(lambda: None)
            if not composite_state.is_over:
                raise
        operation.result = composite_state.result

    def _open_composite_group(self) -> HostGroup | None:
        """Return where the later steps of chains go; None: over links, as on all ranks."""
        if self.order.comm is None or self.verifies:
            return None
        places = range(len(self.ranks))
        return HostGroup(
            places, self.rank, self._job_thread, self._open_composite_areas(), self.order.timeout
        )

    async def _negotiate(self, operation: Operation) -> None:
        """Find out whether the ranks share memory, within the deadline of a call."""
        settling = self._channel.negotiate(lambda: self._progress.last_ended)
        try:
            await self._run_guarded(
                operation, asyncio.create_task(settling), self._channel.list_missing
            )
        except BaseException:
            await self._channel.skip(operation.work.sequence)  # a message may have settled it
            raise

    async def _run_over_links(self, operation: Operation, started: "StartedCall") -> None:
        if not started.agrees:
            await self._raise_mismatch(operation)
        if started.execution is None:
            started.execution = self._start_execution(operation)
        execution = started.execution
        try:
            await self._run_guarded(operation, execution.completion, execution.list_awaited)
        finally:
            execution.stop()
            operation.has_touched = execution.has_touched
        self._finish(operation)

    async def _run_monitored_barrier(
        self, operation: Operation, barrier: MonitoredBarrierCall
    ) -> None:
        work = operation.work
        if not self._begin_matching(operation):
            await self._raise_mismatch(operation)
        remaining = operation.deadline - time.monotonic()
        met = asyncio.ensure_future(
            self._directory.wait_monitored_barrier(self.name, work.sequence, remaining)
        )
        assert self._interrupt is not None
        try:
            await wait_first(met, self._interrupt, timeout=remaining + BARRIER_VERDICT_GRACE)
            if self._interrupt.done():
                if (failure := self._interrupt.result()) is not None:
                    raise failure(self._name_call(operation))
                await self._raise_mismatch(operation)
            if not met.done():
                raise CoordinatorUnavailable(
                    f"{self._name_call(operation)}: the coordinator does not say who is missing"
                )
            if (found := met.result()) is not None:
                raise self._failures.build_monitored_barrier_error(
                    work, operation.timeout, found, barrier.names_all
                )
        finally:
            await cancel_and_wait(met)
            # Those who look for this rank in memory, in another call, should not do so in vain.
            await self._channel.skip(work.sequence)

    async def _verify(self, operation: Operation, result_check: ResultCheck) -> None:
        """Compare the result with that of the other ranks, over links whatever carried the call."""
        sequence, native = operation.work.sequence, operation.request
        operation.has_touched = True
        mine = (
            compute_digest(native)
            if count_result_bytes(native) <= INLINE_DIGEST_BYTES
            else await self._job_thread.run(partial(compute_digest, native))
        )
        if not self._begin_matching(operation):
            await self._raise_mismatch(operation)
        found = np.zeros(len(self.ranks), np.uint64)
        execution = result_check.make_execution(sequence, operation.call.signature)
        execution.begin(result_check.build_parts(mine, found))
        try:
            await self._run_guarded(operation, execution.completion, execution.list_awaited)
        finally:
            execution.stop()
        if (failure := result_check.find_difference(found.tolist(), sequence)) is not None:
            raise failure(self._name_call(operation))

    def _find_failure(self, sequence: int) -> ErrorFactory | None:
        """Return why a call cannot end well, if that is known."""
        reason = self._failures.find_failure(sequence)
        if reason is None and self._result_check is not None:
            reason = self._result_check.find_failure(sequence)
        return reason

    def _interrupt_call(self, sequence: int, failure: ErrorFactory) -> None:
        """End the call with that number if it is under way."""
        if self._current is not None and self._current.work.sequence == sequence:
            self._interrupt_current(failure)

    def _start_execution(self, operation: Operation) -> Execution:
        """Begin what a call is over links, and note how that is explained."""
        work, native, signature = operation.work, operation.request, operation.signature
        execution = Execution(
            self._mesh,
            peers=self.ranks,
            rank=self.rank,
            group=self.hash,
            sequence=work.sequence,
            signature=signature,
            op=operation.request.op or ReduceOp.SUM,
        )
        parts = operation.build(self.rank, len(self.ranks))
        work.explained(explain_links(parts[0].name, self.link_cost))
        guard = guard_outputs(native, self.rank, len(self.ranks), parts, self._staging)
        beside = []
        if (
            native.kind in ROOTED
            and guard.arrival_check is None
            and signature not in self._agreed_signatures
        ):
            key = MessageKey(self.hash, work.sequence)
            there = [rank for rank in self.ranks if not self._failures.has_left(rank)]
            beside.append(
                ArrivalCondition(self._mesh, self.ranks, self.rank, there, key, signature)
            )
        execution.begin(
            guard.parts, arrival_check=guard.arrival_check, commit=guard.commit, conditions=beside
        )
        return execution

    def _finish(self, operation: Operation) -> None:
        """Do what is left when all has landed."""
        if operation.request.kind in ROOTED:
            self._agreed_signatures[operation.signature] = None
            if len(self._agreed_signatures) > _MAX_AGREED:
                del self._agreed_signatures[next(iter(self._agreed_signatures))]
        if not operation.request.is_ordered(len(self.ranks), self.deterministic):
            operation.request.finish(len(self.ranks))

    async def _run_phases(
        self, operation: Operation, runner: HierarchicalRunner, phases: Sequence[Phase]
    ) -> None:
        performance = runner.make_run(
            phases,
            operation.request.targets,
            sequence=operation.work.sequence,
            signature=operation.signature,
            timeout=operation.timeout,
            deadline=operation.deadline,
            link_cost=self.link_cost,
        )
        if not self._begin_matching(operation):
            await self._raise_mismatch(operation)
        performing = asyncio.create_task(performance.run())
        try:
            await self._run_guarded(operation, performing, performance.list_awaited)
        finally:
            operation.has_touched = performance.has_touched
        operation.request.finish(len(self.ranks))
        self.explanation = runner.describe(phases)
        operation.work.explained(self.explanation)

    def _begin_matching(self, operation: Operation) -> bool:
        """Say that a call begins here that may take messages; False: a peer is in another."""
        sequence, signature = operation.work.sequence, operation.signature
        is_other = self._mesh.begin_call(self.hash, sequence, signature)
        return not (is_other or self._failures.has_mismatch(sequence))

    async def _raise_mismatch(self, operation: Operation) -> NoReturn:
        sequence = operation.work.sequence
        await self._failures.raise_mismatch(self._name_call(operation), sequence, operation.call)

    async def _run_guarded(
        self,
        operation: Operation,
        running: "asyncio.Future[None]",
        list_awaited: Callable[[], Sequence[int]],
    ) -> None:
        """Wait for what a call does until it is done, interrupted, or out of time."""
        work, signature = operation.work, operation.signature
        asking: asyncio.Task[VerdictReply] | None = None
        unwatch: Callable[[], None] | None = None
        stall: SlowCall | None = None
        self.recorder.list_awaited = list_awaited
        assert self._interrupt is not None
        try:
            remaining = operation.deadline - time.monotonic()
            alone, unasked = min(PING_AFTER, remaining / 4), min(ASK_AFTER, remaining / 2)
            if await wait_first(running, self._interrupt, timeout=alone):
                return await self._raise_outcome(operation, running)
            unwatch = self._directory.watch_links(
                lambda: [self.ranks[place] for place in list_awaited()]
            )
            if await wait_first(running, self._interrupt, timeout=unasked - alone):
                return await self._raise_outcome(operation, running)
            for rank in list_awaited():
                # They may wait for this rank as well, in another call that sends nothing either.
                self._mesh.send_call(
                    self.ranks[rank], MessageKey(self.hash, work.sequence), signature
                )
            asking = self._failures.request_verdict(
                work.sequence, work.operation, list_awaited(), operation.deadline
            )
            stall = self._failures.watch(
                work.operation,
                work.sequence,
                work.label,
                list_awaited,
                self._progress.since,
                operation.deadline,
            )
            remaining = operation.deadline - time.monotonic()
            if await wait_first(running, self._interrupt, timeout=remaining):
                return await self._raise_outcome(operation, running)
            # The coordinator's word comes with the deadline, seldom later.
            if await wait_first(running, self._interrupt, asking, timeout=VERDICT_GRACE) and (
                running.done() or self._interrupt.done()
            ):
                return await self._raise_outcome(operation, running)
            raise self._failures.build_timeout_error(
                work.operation, work.sequence, work.label, operation.timeout, asking, list_awaited()
            )
        finally:
            if stall is not None:
                stall.end(has_succeeded=_has_succeeded(running))
            if unwatch is not None:
                unwatch()
            await cancel_and_wait(running)
            if asking is not None:
                await cancel_and_wait(asking)

    async def _raise_outcome(self, operation: Operation, running: "asyncio.Future[None]") -> None:
        """Raise what ended a call, if anything but its success did."""
        work = operation.work
        assert self._interrupt is not None
        if running.done():
            try:
                running.result()
                return
            except MismatchFound:
                await self._raise_mismatch(operation)
            except CallAbandoned as left:
                await self._failures.await_failure_reason()
                if not self._interrupt.done():
                    raise await self._failures.await_abandoned_error(
                        work.operation, work.sequence, work.label, left.ranks
                    ) from left
        failure = self._interrupt.result()
        if failure is not None:
            raise failure(self._name_call(operation))
        await self._raise_mismatch(operation)

    def _find_own_call(self, sequence: int) -> str | None:
        """Return what this rank called under a number, if that is not long ago."""
        return self._channel.find_own_call(sequence) or self._failures.find_own_call(sequence)

    def _describe_activity(self) -> str:
        """Say what this rank does in the group now; for people."""
        position = self.progress
        if position.operation:
            return f"is in {position.operation} #{position.sequence}"
        return (
            f"is outside any call since #{position.last_ended}"
            if position.last_ended
            else "has made none"
        )

    def _interrupt_current(self, failure: ErrorFactory | None) -> None:
        """Wake the call from the queue that runs."""
        if self._interrupt is None or self._interrupt.done():
            return
        self._interrupt.set_result(failure)
        if self._current is not None:
            self._channel.interrupt(self._current.work.sequence, failure)

    def _name_call(self, operation: Operation) -> str:
        work = operation.work
        return self._failures.name_call(work.operation, work.sequence, work.label)


def _name_thread(ident: int) -> str:
    """Name a thread, for people."""
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0]!r}" if names else f"thread {ident}"


def _build_cancelled_error(what: str) -> AllhandsError:
    return AllhandsError(f"{what} was cancelled by this rank")


def _has_succeeded(task: "asyncio.Future[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
