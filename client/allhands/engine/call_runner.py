"""Runner of one group's queued calls: takes each along its route to its end or error."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from allhands.collectives.composite_call import CompositeState
from allhands.collectives.hierarchical_plan import Phase
from allhands.engine.context import EngineContext
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.failures.tracker import cancel_and_wait, wait_first
from allhands.engine.hosts.composite_runner import CompositeRun, CompositeRunner
from allhands.engine.hosts.hierarchical import HierarchicalRunner
from allhands.engine.hosts.two_level import CallIdentity
from allhands.engine.link_calls import LinkCalls, StartedCall, StepsUnderWay
from allhands.engine.operation import MonitoredBarrierCall, Operation
from allhands.engine.result_check import (
    INLINE_DIGEST_BYTES,
    Comparison,
    ResultCheck,
    count_result_bytes,
)
from allhands.engine.routes import (
    Route,
    choose_composite_route,
    choose_route,
    choose_step_route,
)
from allhands.engine.shm.host_group import HostGroup
from allhands.engine.watchdog import Watchdog
from allhands.errors import CoordinatorUnavailable
from allhands.shm.areas import GroupAreas

BARRIER_VERDICT_GRACE = 3.0
"""Seconds after its deadline in which the coordinator must report the outcome of a barrier."""


class CallRunner:
    """Carries out one operation at a time; event loop only."""

    def __init__(
        self,
        context: EngineContext,
        watchdog: Watchdog,
        link_calls: LinkCalls,
        hierarchical_runner: HierarchicalRunner | None,
        result_check: ResultCheck | None,
        open_composite_areas: Callable[[], GroupAreas | None],
    ) -> None:
        self._name = context.name
        self._ranks = context.ranks
        self._rank = context.rank
        self._hash = context.hash
        self._deterministic = context.deterministic
        self._mesh = context.mesh
        self._directory = context.directory
        self._order = context.order
        self._progress = context.progress
        self._failures = context.failures
        self._channel = context.channel
        self._job_thread = context.job_thread
        self._watchdog = watchdog
        self._link_calls = link_calls
        self._hierarchical_runner = hierarchical_runner
        self._result_check = result_check
        self._open_composite_areas = open_composite_areas
        self._composite_runner: CompositeRunner | None = None

    @property
    def verifies(self) -> bool:
        """Whether results are compared between ranks."""
        return self._result_check is not None

    async def run(self, operation: Operation, started: StartedCall | None = None) -> None:
        """Run the current call along the route from `routes`.

        Raises:
            AllhandsError: the call failed, or can no longer succeed.
        """
        if (failure := self.find_failure(operation.work.sequence)) is not None:
            if self._failures.has_mismatch(operation.work.sequence):
                # Ranks that have found it may be gone by now: that says less.
                await self._watchdog.raise_mismatch(operation)
            raise failure(self._watchdog.name_call(operation))
        if operation.monitored_barrier is None:
            if self._channel.is_undecided:
                await self._negotiate(operation)
            if operation.composite_state is not None and started is None:
                route = choose_composite_route(
                    operation.composite_state,
                    has_comm=self._order.comm is not None,
                    verifies=self.verifies,
                )
                if route is Route.SHARED_MEMORY:
                    await self._run_core_call(operation, operation.composite_state)
                    return
                await self._start_composite(operation, operation.composite_state)
        rest = None if started is None else started.rest
        if rest is None:
            await self._run_call(operation, started)
        if operation.composite_state is not None:
            await self._run_remaining_steps(operation, operation.composite_state, rest)

    async def _run_call(self, operation: Operation, started: StartedCall | None) -> None:
        """Run the current call, of a composite call its first step."""
        has_comm = self._order.comm is not None
        phases: Sequence[Phase] = ()
        if (
            self._hierarchical_runner is not None
            and started is None
            and not has_comm
            and not self._link_calls.is_two_level(operation)
        ):
            link_cost = self._link_calls.link_cost
            phases = self._hierarchical_runner.plan_phases(operation.request, link_cost)
        match choose_route(operation, has_comm=has_comm, has_phases=bool(phases)):
            case Route.COORDINATOR:
                assert operation.monitored_barrier is not None
                await self._run_monitored_barrier(operation, operation.monitored_barrier)
                return
            case Route.SHARED_MEMORY:
                await self._run_over_shm(operation)  # where the core compares results
            case Route.LINKS:
                if started is None or not started.has_ended:
                    await self._link_calls.run(operation, started)
            case Route.HOSTS:
                assert self._hierarchical_runner is not None
                await self._run_phases(operation, self._hierarchical_runner, phases)
        if self._result_check is not None and not has_comm:
            comparison = None if started is None else started.comparison
            await self._verify(operation, self._result_check, comparison)

    def close(self, lost_ranks: Collection[int]) -> None:
        """Release shared memory and the result check; every call has ended."""
        if self._result_check is not None:
            self._result_check.close(lost_ranks)
        if self._hierarchical_runner is not None:
            self._hierarchical_runner.close(lost_ranks)
        if self._composite_runner is not None:
            self._composite_runner.close(lost_ranks)

    def find_failure(self, sequence: int) -> ErrorFactory | None:
        """Return the known reason why a call cannot succeed; None: none is known."""
        reason = self._failures.find_failure(sequence)
        if reason is None and self._result_check is not None:
            reason = self._result_check.find_failure(sequence)
        return reason

    async def _start_composite(self, operation: Operation, composite_state: CompositeState) -> None:
        """Start a composite call: its first step is made as if it was the call."""
        step = await self._job_thread.run(composite_state.get_first)
        operation.request, operation.build = step.request, step.build
        assert self._watchdog.interruption is not None
        if (
            self._watchdog.interruption.done()
            and (failure := self._watchdog.interruption.result()) is not None
        ):
            raise failure(self._watchdog.name_call(operation))

    async def _run_core_call(self, operation: Operation, composite_state: CompositeState) -> None:
        """Run a composite call as one call of the native core."""
        comm, core_call = self._order.comm, composite_state.core_call
        assert comm is not None, "chosen only with a communicator"
        assert core_call is not None, "chosen only with a call of the core"
        work = operation.work
        ended, explanation = await self._channel.run(
            comm,
            partial(
                core_call.run,
                comm,
                work.sequence,
                operation.timeout,
                operation.deadline,
                work.label,
            ),
        )
        assert ended is not None, "only calls without a number are declined"
        work.explained(explanation)
        operation.result = ended[0]

    def make_rest(self, operation: Operation, composite_state: CompositeState) -> CompositeRun:
        """Return the later steps of a composite call of which the first has ended."""
        operation.has_touched = False  # only memory of its own
        if self._composite_runner is None:
            self._composite_runner = CompositeRunner(
                self._mesh,
                self._ranks,
                self._rank,
                self._hash,
                self._job_thread,
                self._open_composite_group(),
            )
        return self._composite_runner.make_run(
            composite_state,
            operation.work.sequence,
            operation.signature,
            operation.timeout,
            operation.deadline,
            self._deterministic,
        )

    async def _run_remaining_steps(
        self,
        operation: Operation,
        composite_state: CompositeState,
        rest: StepsUnderWay | None,
    ) -> None:
        """Run the later steps of a composite call, or those that are left, and complete it."""
        if rest is None:
            rest = self.make_rest(operation, composite_state)
        performing = asyncio.create_task(rest.run())
        try:
            await self._watchdog.guard(operation, performing, rest.list_awaited)
        except BaseException:
            # The thread beside may be about to write what the caller gave: then that counts.
            await self._job_thread.run(lambda: None)
            if not composite_state.is_over:
                raise
        operation.result, operation.read_failure = rest.result, rest.failure

    def _open_composite_group(self) -> HostGroup | None:
        """Return where the later steps of chains go; None: over links, as on all ranks."""
        has_comm = self._order.comm is not None
        if choose_step_route(has_comm=has_comm, verifies=self.verifies) is Route.LINKS:
            return None
        places = range(len(self._ranks))
        return HostGroup(
            places, self._rank, self._job_thread, self._open_composite_areas(), self._order.timeout
        )

    async def _run_over_shm(self, operation: Operation) -> None:
        comm, work = self._order.comm, operation.work
        assert comm is not None, "chosen only with a communicator"
        signature = None
        if operation.composite_state is not None:
            # It travels under the signature of the whole call, and is named as that.
            signature = operation.signature
            self._channel.note_composite(work.sequence, operation.call)
        run = partial(
            operation.request.run,
            comm,
            work.sequence,
            operation.timeout,
            operation.deadline,
            work.label,
            signature,
        )
        _, explanation = await self._channel.run(comm, run)
        work.explained(explanation)

    async def _negotiate(self, operation: Operation) -> None:
        """Find out whether the ranks share memory, within the deadline of a call."""
        settling = self._channel.negotiate(lambda: self._progress.last_ended)
        try:
            await self._watchdog.guard(
                operation, asyncio.create_task(settling), self._channel.list_missing
            )
        except BaseException:
            await self._channel.skip(operation.work.sequence)  # a message may have settled it
            raise

    async def _run_monitored_barrier(
        self, operation: Operation, barrier: MonitoredBarrierCall
    ) -> None:
        work = operation.work
        if not self._watchdog.begin_matching(operation):
            await self._watchdog.raise_mismatch(operation)
        remaining = operation.deadline - time.monotonic()
        met = asyncio.ensure_future(
            self._directory.wait_monitored_barrier(self._name, work.sequence, remaining)
        )
        assert self._watchdog.interruption is not None
        try:
            await wait_first(
                met, self._watchdog.interruption, timeout=remaining + BARRIER_VERDICT_GRACE
            )
            if self._watchdog.interruption.done():
                if (failure := self._watchdog.interruption.result()) is not None:
                    raise failure(self._watchdog.name_call(operation))
                await self._watchdog.raise_mismatch(operation)
            if not met.done():
                raise CoordinatorUnavailable(
                    f"{self._watchdog.name_call(operation)}: the coordinator does not say "
                    "who is missing"
                )
            if (found := met.result()) is not None:
                raise self._failures.build_monitored_barrier_error(
                    work, operation.timeout, found, barrier.names_all
                )
        finally:
            await cancel_and_wait(met)
            # Those who look for this rank in memory, in another call, should not do so in vain.
            await self._channel.skip(work.sequence)

    async def _verify(
        self, operation: Operation, result_check: ResultCheck, comparison: Comparison | None
    ) -> None:
        """Compare the result with the other ranks', over links, or go on with a comparison."""
        native = operation.request
        operation.has_touched = True
        if comparison is None:
            mine = (
                result_check.compute_digest(native)
                if count_result_bytes(native) <= INLINE_DIGEST_BYTES
                else await self._job_thread.run(partial(result_check.compute_digest, native))
            )
            if not self._watchdog.begin_matching(operation):
                await self._watchdog.raise_mismatch(operation)
            comparison = result_check.begin_comparison(CallIdentity.of(operation), mine)
        try:
            await self._watchdog.guard(operation, comparison.completion, comparison.list_awaited)
        finally:
            comparison.stop()
        if (failure := comparison.find_difference()) is not None:
            raise failure(self._watchdog.name_call(operation))

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
            link_cost=self._link_calls.link_cost,
        )
        if not self._watchdog.begin_matching(operation):
            await self._watchdog.raise_mismatch(operation)
        performing = asyncio.create_task(performance.run())
        try:
            await self._watchdog.guard(operation, performing, performance.list_awaited)
        finally:
            operation.has_touched = performance.has_touched
        operation.request.finish(len(self._ranks))
        self._link_calls.explanation = runner.describe(phases)
        operation.work.explained(self._link_calls.explanation)
