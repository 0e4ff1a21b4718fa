"""Queue of one group's calls on the event loop: one runs at a time, in call order."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.composite_call import CompositeState
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.staging import INLINE_COPY_BYTES, Staging
from allhands.engine.call_runner import CallRunner
from allhands.engine.context import EngineContext
from allhands.engine.hosts.two_level import CallIdentity
from allhands.engine.link_calls import LinkCalls, StartedCall
from allhands.engine.links.native_calls import NativeCall
from allhands.engine.operation import Operation
from allhands.engine.result_check import Comparison, ResultCheck
from allhands.engine.watchdog import Watchdog
from allhands.errors import AllhandsError, CollectiveMismatch

if TYPE_CHECKING:
    from allhands.engine.work.shm_work import ShmWork

logger = logging.getLogger(__name__)


class CallQueue:
    """Queue and its task. Event loop only, except for `on_skipped`."""

    def __init__(
        self,
        context: EngineContext,
        watchdog: Watchdog,
        link_calls: LinkCalls,
        runner: CallRunner,
        result_check: ResultCheck | None,
    ) -> None:
        self._name = context.name
        self._hash = context.hash
        self._mesh = context.mesh
        self._order = context.order
        self._recorder = context.recorder
        self._progress = context.progress
        self._failures = context.failures
        self._channel = context.channel
        self._job_thread = context.job_thread
        self._watchdog = watchdog
        self._link_calls = link_calls
        self._runner = runner
        self._result_check = result_check
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Operation] = deque()
        self._task: asyncio.Task[None] | None = None

    def on_skipped(self, sequence: int) -> None:
        """Learn, on any thread, that the turn of a call cancelled before it has passed."""
        self._loop.call_soon_threadsafe(self._on_skipped, sequence)

    def submit(self, operation: Operation) -> None:
        """Queue a call; runs after all calls before it have ended."""
        self._queue.append(operation)
        if self._task is None or self._task.done():
            self._run_task()

    def is_next(self, sequence: int) -> bool:
        """Say whether the call with that number could begin at once, and go over links."""
        return (
            sequence == self._progress.last_ended + 1
            and self.is_idle
            and not self._channel.is_undecided
            and self._order.comm is None
        )

    def run_inline(
        self, operation: Operation, can_run: Callable[[CollectiveRequest], bool], seconds: float
    ) -> bool:
        """Carry out a call that `is_next` where the loop is lent; say whether the loop goes on.

        It may take so many `seconds`, each of several steps likewise. A call that does not end here
        in that time, or not well, ends on the loop; so does one of several steps where a step is
        none that `can_run` here. Where all steps have ended here, the caller is to finish the state
        of the call and to complete its work.
        """
        self._enter(operation)
        begun: StartedCall | None = None
        try:
            if self._take_first_step(operation, can_run):
                # Not before: peers that are heard from then on are those that it waits for.
                begun = StartedCall(self._watchdog.begin_matching(operation))
                if (
                    begun.agrees
                    and self._runner.find_failure(operation.work.sequence) is None
                    and self._run_begun(operation, begun, can_run, seconds)
                ):
                    operation.awaits_finish = operation.composite_state is not None
                    self._leave(operation, None)
                    return False
        except BaseException as error:  # whatever it is belongs to the caller
            self._end_failed(operation, begun, error)
            return False
        self._run_task(operation, begun)
        return True

    def _end_failed(
        self, operation: Operation, begun: StartedCall | None, error: BaseException
    ) -> None:
        """End the current call where the loop is lent; raise what is no error of the call's."""
        if begun is not None:
            begun.stop()
            operation.has_touched |= begun.has_touched
        self._tell_of_own_failure(operation, error)
        self._leave(operation, error)
        if not isinstance(error, Exception):
            raise error

    def _take_first_step(
        self, operation: Operation, can_run: Callable[[CollectiveRequest], bool]
    ) -> bool:
        """Have a composite call begin as its first step; say whether a call can run here."""
        if (state := operation.composite_state) is None:
            return True
        step = state.get_first()
        operation.request, operation.build = step.request, step.build
        return can_run(step.request)

    def _run_begun(
        self,
        operation: Operation,
        begun: StartedCall,
        can_run: Callable[[CollectiveRequest], bool],
        seconds: float,
    ) -> bool:
        """Run the current call where the loop is lent; say whether it has ended well."""
        begun.has_ended = self._run_one(operation, begun, seconds)
        if not begun.has_ended:
            return False
        if self._result_check is not None:
            return self._compare(operation, begun, self._result_check, seconds)
        if (state := operation.composite_state) is None:
            return True
        return self._run_rest(operation, begun, state, can_run, seconds)

    def _run_rest(
        self,
        operation: Operation,
        begun: StartedCall,
        state: CompositeState,
        can_run: Callable[[CollectiveRequest], bool],
        seconds: float,
    ) -> bool:
        """Run the later steps of the current call likewise."""
        interrupt = self._watchdog.interruption
        assert interrupt is not None
        begun.rest = rest = self._runner.make_rest(operation, state)
        native = self._link_calls.get_native_calls()
        return rest.run_here(native, can_run, interrupt.done, seconds)

    def _run_one(self, operation: Operation, begun: StartedCall, seconds: float) -> bool:
        """Run the request of the current call likewise."""
        interrupt = self._watchdog.interruption
        assert interrupt is not None
        execution = begun.execution = self._link_calls.run_here(operation, interrupt.done, seconds)
        if execution is None:
            return True
        if not execution.goes_by_messages or not self._read_until(execution.completion, seconds):
            return False
        self._link_calls.finish(operation)
        return True

    def _read_until(self, ended: "asyncio.Future[None]", seconds: float) -> bool:
        """Read the links until something of the current call ends; say whether it ended well."""
        interrupt = self._watchdog.interruption
        assert interrupt is not None
        self._mesh.pump(lambda: ended.done() or interrupt.done(), seconds)
        return ended.done() and not interrupt.done() and ended.exception() is None

    def _compare(
        self,
        operation: Operation,
        begun: StartedCall,
        result_check: ResultCheck,
        seconds: float,
    ) -> bool:
        """Compare the results of the current call likewise; say whether they are the same."""
        operation.has_touched = True
        if not self._watchdog.begin_matching(operation):
            return False
        comparison = begun.comparison = result_check.begin_comparison(
            CallIdentity.of(operation), result_check.compute_digest(operation.request)
        )
        return (
            comparison.goes_by_messages
            and self._read_until(comparison.completion, seconds)
            and comparison.find_difference() is None
        )

    @property
    def is_idle(self) -> bool:
        """Whether no call is in the queue, or runs from there."""
        return not self._queue and (self._task is None or self._task.done())

    def go_on(self, operation: Operation, call: NativeCall, staged: bytes) -> None:
        """Go on with a call that the native core began; see `LinkCalls.go_on`."""
        self._enter(operation)
        begun = StartedCall(self._watchdog.begin_matching(operation))
        begun.execution = self._link_calls.go_on(operation, call, staged)
        self._run_task(operation, begun)

    def run_later_steps(
        self, operation: Operation, can_run: Callable[[CollectiveRequest], bool], seconds: float
    ) -> None:
        """Go on as `run_inline` with a composite call whose first step has ended in the core."""
        state = operation.composite_state
        assert state is not None, "other calls have no steps"
        self._enter(operation)
        begun = StartedCall(self._watchdog.begin_matching(operation), has_ended=True)
        try:
            if (
                begun.agrees
                and self._runner.find_failure(operation.work.sequence) is None
                and self._run_rest(operation, begun, state, can_run, seconds)
            ):
                operation.awaits_finish = True
                self._leave(operation, None)
                return
        except BaseException as error:  # whatever it is belongs to the caller
            self._end_failed(operation, begun, error)
            return
        self._run_task(operation, begun)

    def compare(self, operation: Operation) -> None:
        """Go on with a call that has ended in the native core, with its comparison to come."""
        self._go_on_computed(operation, None)

    def go_on_comparing(
        self,
        operation: Operation,
        mine: NDArray[np.uint64],
        digests: NDArray[np.uint64],
        call: NativeCall | None,
    ) -> None:
        """Go on with a comparison that the native core began, or with what it has found."""
        assert self._result_check is not None, "else nothing is compared"
        comparison = self._result_check.go_on_comparing(
            CallIdentity.of(operation), mine, digests, call
        )
        self._go_on_computed(operation, comparison)
        if call is not None:
            call.give_back()

    def _go_on_computed(self, operation: Operation, comparison: Comparison | None) -> None:
        self._enter(operation)
        begun = StartedCall(self._watchdog.begin_matching(operation), has_ended=True)
        begun.comparison = comparison
        operation.has_touched = True
        self._run_task(operation, begun)

    def cancel(self, operation: Operation) -> None:
        """End a call early."""
        work = operation.work
        if operation is self._watchdog.current:
            self._failures.send_give_up(work.sequence, work.cancel_reason)
            self._watchdog.interrupt_current(_build_cancelled_error)
        elif operation in self._queue:
            self._failures.send_give_up(work.sequence, work.cancel_reason)
            operation.is_cancelled = True
            error = _build_cancelled_error(repr(work))
            self._mark_outputs(operation, error)
            work.fail(error)

    def cancel_shm_call(self, work: "ShmWork") -> None:
        """Cancel a call over shared memory that is not waited for."""
        if work.has_ended:
            return
        error = _build_cancelled_error(repr(work))
        error.add_intact(True, work.writes)
        self._failures.send_give_up(work.sequence, work.cancel_reason)
        if not work.refuse(error):
            self._channel.interrupt(work.sequence, _build_cancelled_error)

    def skip(self, operation: Operation, reason: str) -> None:
        """Queue a skipped call: its number is used up, and the peers get the reason."""
        operation.is_cancelled = True
        self._failures.send_give_up(operation.work.sequence, reason)
        self.submit(operation)

    async def wait_idle(self) -> None:
        """Return when every collective call submitted so far has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._drain()
        await self._channel.wait_idle()

    def _run_task(
        self, operation: Operation | None = None, started: StartedCall | None = None
    ) -> None:
        """Run the queue beside, from a call already started elsewhere, if any."""
        self._task = asyncio.create_task(
            self._run_queue(operation, started), name=f"group {self._name}"
        )

    async def _run_queue(
        self, operation: Operation | None = None, started: StartedCall | None = None
    ) -> None:
        """Run the queue, first a call already started elsewhere, if any."""
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
        """Skip a call cancelled before its start; its number is used up."""
        sequence = operation.work.sequence
        self._on_skipped(sequence)
        await self._channel.skip(sequence)
        self._order.release()

    def _on_skipped(self, sequence: int) -> None:
        """Handle the cancellation of a call before its start, this rank's latest."""
        self._failures.record_own_call(sequence, "a call that it gave up before it began")
        self._progress.sequence = self._progress.last_ended = sequence

    async def _drain(self) -> None:
        """Return when the communicator's queued calls have ended, which come before those here."""
        if (comm := self._order.comm) is not None and comm.has_queued:
            await self._job_thread.run(comm.wait_idle)

    def _enter(self, operation: Operation) -> None:
        """Make a call the current one."""
        work, position = operation.work, self._progress
        position.sequence = work.sequence
        position.operation = work.operation
        position.since = time.monotonic()
        self._watchdog.current = operation
        self._watchdog.interruption = asyncio.get_running_loop().create_future()
        self._recorder.record_start(work.entry)
        self._failures.record_own_call(work.sequence, operation.call)

    def _leave(self, operation: Operation, error: BaseException | None) -> None:
        """Settle the current call, which is over, and its work, if that is not for its caller."""
        work, position = operation.work, self._progress
        self._watchdog.current = None
        self._watchdog.interruption = None
        self._recorder.list_awaited = tuple
        self._mesh.finish_calls(self._hash, work.sequence)
        self._failures.conclude(work.sequence)
        if self._result_check is not None:
            if error is not None:
                self._result_check.give_up(work.sequence)
            self._result_check.conclude(work.sequence)
        now = time.monotonic()
        self._failures.durations.append(now - position.since)
        position.last_ended = work.sequence
        position.operation = ""
        position.since = now
        self._order.release()
        if error is None:
            position.last_completed = work.sequence
            if operation.read_failure is not None:
                work.fail(operation.read_failure)
            elif not operation.awaits_finish:
                work.succeed(operation.result)
        else:
            if isinstance(error, AllhandsError):
                self._mark_outputs(operation, error)
            logger.debug("%s failed: %s", work, error)
            work.fail(error)

    def _mark_outputs(self, operation: Operation, error: AllhandsError) -> None:
        """Record in an error whether the call's outputs are intact."""
        say = bool(operation.request.targets) and not isinstance(error, CollectiveMismatch)
        error.add_intact(not operation.has_touched, say)

    async def _run(self, operation: Operation, started: StartedCall | None = None) -> None:
        """Run the current call and complete its work."""
        work = operation.work
        error: BaseException | None = None
        try:
            if work.staging is not None and started is None:
                await self._load(work.staging)
            await self._runner.run(operation, started)
            if work.staging is not None and work.staging.nbytes > INLINE_COPY_BYTES:
                await self._store(work.staging)
                work.staging = None
        except asyncio.CancelledError:
            error = AllhandsError(
                f"{self._watchdog.name_call(operation)} was cancelled: the worker is closing"
            )
        except Exception as raised:  # whatever it is belongs to the caller, not to the loop
            error = raised
            if self._tell_of_own_failure(operation, raised):
                await self._channel.skip(work.sequence)
        finally:
            if started is not None:
                started.stop()
                operation.has_touched |= started.has_touched
            self._leave(operation, error)

    def _tell_of_own_failure(self, operation: Operation, error: BaseException) -> bool:
        """Tell the others of an error in what a composite call computes, on this rank alone.

        They need not wait for it. False: it is no such error.
        """
        is_own = operation.composite_state is not None and not isinstance(error, AllhandsError)
        if is_own:
            text = f"{type(error).__name__}: {error}"
            self._failures.send_give_up(operation.work.sequence, text)
        return is_own

    async def _load(self, staging: Staging) -> None:
        """Load staged outputs: large ones off the loop, which has heartbeats to send."""
        if staging.nbytes > INLINE_COPY_BYTES:
            await self._job_thread.run(staging.load)
        else:
            staging.load()

    async def _store(self, staging: Staging) -> None:
        """Store staged outputs off the loop."""
        storing = self._job_thread.submit(staging.store)
        try:
            await asyncio.shield(storing)
        except asyncio.CancelledError:
            await storing  # the thread is writing what the caller gave: then that counts


def _build_cancelled_error(what: str) -> AllhandsError:
    return AllhandsError(f"{what} was cancelled by this rank")
