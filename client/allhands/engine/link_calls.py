"""Calls over links: the execution of one operation's schedules, and its end."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result
from allhands.collectives.two_level_plan import TwoLevelPlan
from allhands.engine.context import EngineContext
from allhands.engine.hosts.two_level import CallIdentity, TwoLevelCalls, TwoLevelRun
from allhands.engine.links.executor import Execution, SideCondition
from allhands.engine.links.native_calls import (
    NativeCall,
    NativeCalls,
    Remainder,
)
from allhands.engine.links.output_guard import (
    ArrivalCondition,
    GuardedParts,
    StagingBuffer,
    goes_unasked,
    guard_outputs,
)
from allhands.engine.operation import Operation
from allhands.engine.result_check import Comparison
from allhands.engine.watchdog import Watchdog
from allhands.transport.frame import MessageKey
from allhands.transport.outbox import EAGER_BYTES
from allhands_proto.quick_dataclass import dataclass

_LOOP_SECONDS, _BYTE_SECONDS, _HELD_BYTES = 0.0003, 2e-9, 1 << 20
"""How long a queued call holds the loop's thread for peers that are about to come, and for so many
of the bytes that it moves; longer while they move."""
_MEETING_PERIOD = 4
_MAX_AGREED = 256
"""Most signatures remembered of rooted calls that all ranks are known to have made."""


class CallUnderWay(Protocol):
    """A call that goes on on the loop."""

    completion: "asyncio.Future[None]"
    """Ends as the call does."""
    has_touched: bool
    """Whether outputs of the call were touched."""
    goes_by_messages: bool
    """Whether it goes on when the links are read, without the loop."""

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""


@dataclass(slots=True)
class StartedCall:
    """State of a call started over links."""

    agrees: bool
    """Whether no peer is known to have made a different call."""
    execution: CallUnderWay | None = None
    has_ended: bool = False
    """Whether the call itself, of several steps the first, has ended well and is finished."""
    rest: "StepsUnderWay | None" = None
    """Later steps of a composite call."""
    comparison: Comparison | None = None
    """Of the results of a group that verifies."""

    @property
    def has_touched(self) -> bool:
        """Whether outputs of the call were touched; those of a first step are its own memory."""
        if self.rest is not None or self.execution is None:
            return False
        return self.execution.has_touched

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        for one in (self.execution, self.rest, self.comparison):
            if one is not None:
                one.stop()


class StepsUnderWay(Protocol):
    """Later steps of a composite call, which go on on the loop."""

    result: Result
    """What the call gives, when `run` has ended."""
    failure: Exception | None
    """Why that cannot be made here of what has come; the call has ended well then."""

    async def run(self) -> None:
        """Run what is left of the steps."""

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""


@lru_cache(maxsize=64)
def explain_links(algorithm: str, link_cost: LinkCost | None) -> str:
    """Describe the algorithm of a call over links, for logs and explanations."""
    measured = "" if link_cost is None else f", where a message takes {link_cost}"
    return f"{algorithm} over links{measured}"


class LinkCalls:
    """Starts and finishes the executions of one group's calls over links; event loop only."""

    def __init__(
        self, context: EngineContext, watchdog: Watchdog, two_level: TwoLevelCalls | None
    ) -> None:
        self._ranks = context.ranks
        self._rank = context.rank
        self._hash = context.hash
        self._deterministic = context.deterministic
        self._mesh = context.mesh
        self._failures = context.failures
        self._watchdog = watchdog
        self.two_level = two_level
        """Calls in which the ranks of a host meet in memory; None: a host has one rank."""
        self.link_cost: LinkCost | None = None
        """Measured cost of the world's links, the same on every rank."""
        self.agreed_signatures: dict[int, None] = {}
        """Signatures of rooted calls that all ranks are known to have made, oldest first."""
        self.explanation = ""
        """Description of the latest hierarchical call, in phases or of two levels."""
        self._staging = StagingBuffer()
        self._native_calls: NativeCalls | None = None
        self._ends_on_loop = True
        """Whether the latest queued call has ended where it was tried on the loop's thread."""
        self.has_lent = False
        """Whether the links are such as the native core takes, by the latest call."""

    def run_here(
        self, operation: Operation, is_interrupted: Callable[[], bool], seconds: float
    ) -> CallUnderWay | None:
        """Carry out a call on this thread, which holds the loop, as far as it goes.

        None: it has ended, and has been finished. Else the execution goes on with what is left.
        """
        if self.is_two_level(operation):
            return self._run_two_level_here(operation, is_interrupted, seconds)
        guard = self._guard(operation)
        if (
            not self.goes_unasked(operation.request)
            or guard.arrival_check is not None
            or len(guard.parts) != 1
            or not self.is_agreed(operation.request, operation.signature)
            or (native := self.get_native_calls()) is None
        ):
            return self._begin(operation, guard)
        call = native.begin(
            guard.parts[0], operation.request.op, operation.work.sequence, operation.signature
        )
        self.has_lent = call is not None
        if call is None:
            return self._begin(operation, guard)
        if not call.run(is_interrupted, seconds):
            execution = self._begin(operation, guard, call.withdraw())
            call.give_back()
            return execution
        if guard.commit is not None:
            guard.commit()
        self.finish(operation)
        return None

    def _run_on_loop(self, operation: Operation) -> CallUnderWay | None:
        """Carry out a call as `run_here`, on the loop's own thread, and hold that for moments.

        Where the latest such call has waited in vain it is not held, but goes as far as it can; but
        all ranks hold for some calls, by number, so that they meet again.
        """
        interrupt = self._watchdog.interruption
        assert interrupt is not None
        seconds = 0.0
        if self._ends_on_loop or operation.work.sequence % _MEETING_PERIOD == 0:
            held_bytes = min(operation.request.nbytes, _HELD_BYTES)
            seconds = _LOOP_SECONDS + held_bytes * _BYTE_SECONDS
        execution = self.run_here(operation, interrupt.done, seconds)
        self._ends_on_loop = execution is None
        return execution

    def go_on(self, operation: Operation, call: NativeCall, staged: bytes) -> CallUnderWay:
        """Go on with a call that the native core began, whose outputs are `staged`, if not empty.

        This thread holds the loop.
        """
        if self.is_two_level(operation):
            plan = self._plan_two_level(operation)
            self._restore(staged)
            return self._go_on_two_level(operation, plan, call)
        guard, left = self._guard(operation), call.withdraw()
        if guard.arrival_check is not None:
            self._restore(staged)
        elif guard.commit is not None:
            view = guard.parts[0].output.arrays[0].view(np.uint8)
            view[...] = np.frombuffer(staged, np.uint8, view.size)
        execution = self._begin(operation, guard, left)
        call.give_back()
        return execution

    def _restore(self, staged: bytes) -> None:
        """Restore the staging memory of a call; inputs that were joined behind it are not read."""
        memory = self._staging.memory[: len(staged)]
        memory[:] = np.frombuffer(staged, np.uint8, len(memory))

    # ------------------------------------------------------------ calls of two levels

    def is_two_level(self, operation: Operation) -> bool:
        """Say whether the ranks of a host meet in memory; the same on all ranks of the call."""
        return self.two_level is not None and self.two_level.applies_to(operation.request)

    def _plan_two_level(self, operation: Operation) -> TwoLevelPlan:
        """Plan a call, and record its explanation."""
        assert self.two_level is not None
        plan = self.two_level.plan(operation.request, self._staging.allocate_views, self.link_cost)
        self.explanation = self.explain_two_level(plan)
        operation.work.explained(self.explanation)
        return plan

    def explain_two_level(self, plan: TwoLevelPlan) -> str:
        """Describe a call, for people."""
        assert self.two_level is not None
        return self.two_level.explain(self.explain(plan.algorithm))

    def _run_two_level_here(
        self, operation: Operation, is_interrupted: Callable[[], bool], seconds: float
    ) -> CallUnderWay | None:
        plan, native, calls = (
            self._plan_two_level(operation),
            self.get_native_calls(),
            self.two_level,
        )
        assert calls is not None
        call = None
        if (
            native is not None
            and self.is_agreed(operation.request, operation.signature)
            and calls.is_in_memory
        ):
            call = native.begin_two_level(
                plan, calls.board.native, operation.work.sequence, operation.signature
            )
            self.has_lent = call is not None
        if call is None:
            return self._begin_two_level(operation, plan)
        if not call.run(is_interrupted, seconds):
            return self._go_on_two_level(operation, plan, call)
        plan.commit()
        self.finish(operation)
        return None

    def _go_on_two_level(
        self, operation: Operation, plan: TwoLevelPlan, call: NativeCall
    ) -> TwoLevelRun:
        is_across = plan.is_head and call.is_across
        left = call.withdraw()
        run = self._begin_two_level(operation, plan, left if is_across else None)
        call.give_back()
        return run

    def _begin_two_level(
        self, operation: Operation, plan: TwoLevelPlan, left: Remainder | None = None
    ) -> TwoLevelRun:
        assert self.two_level is not None
        call = CallIdentity.of(operation)
        beside = self._list_conditions(operation) if left is None else []
        return TwoLevelRun(self.two_level, plan, call, beside, left)

    # ------------------------------------------------------------ one level

    def get_native_calls(self) -> NativeCalls | None:
        """Return the compiled calls of the group; None: there are no links to lend."""
        if self._native_calls is None and (links := self._mesh.lent_links) is not None:
            self._native_calls = NativeCalls(
                links,
                self._ranks,
                self._rank,
                self._hash,
                has_digests=self._mesh.has_digests(self._hash),
            )
        return self._native_calls

    def _guard(self, operation: Operation) -> GuardedParts:
        """Build the parts of a call, and record its explanation."""
        parts = operation.build(self._rank, len(self._ranks))
        operation.work.explained(self.explain(parts[0].name))
        size, request = len(self._ranks), operation.request
        return guard_outputs(request, self._rank, size, parts, self._staging, self.link_cost)

    def goes_unasked(self, request: CollectiveRequest) -> bool:
        """Say whether no message of a call has to be asked for: the same on every rank."""
        return goes_unasked(request, len(self._ranks), self.link_cost)

    def explain(self, algorithm: str) -> str:
        """Describe the algorithm of a call, for people."""
        return explain_links(algorithm, self.link_cost)

    def is_agreed(self, request: CollectiveRequest, signature: int) -> bool:
        """Say whether a small call need not hear from all ranks beside its messages."""
        return not request.primitive.is_rooted or signature in self.agreed_signatures

    def _begin(
        self, operation: Operation, guard: GuardedParts, left: Remainder | None = None
    ) -> Execution:
        """Begin the execution of a call, or of what is left of it."""
        sequence, signature = operation.work.sequence, operation.signature
        execution = Execution(
            self._mesh,
            peers=self._ranks,
            rank=self._rank,
            group=self._hash,
            sequence=sequence,
            signature=signature,
            op=operation.request.op or ReduceOp.SUM,
            eager_bytes=EAGER_BYTES if self.goes_unasked(operation.request) else None,
        )
        beside: list[SideCondition] = []
        if left is None and guard.arrival_check is None:
            beside = self._list_conditions(operation)
        execution.begin(
            guard.parts,
            arrival_check=guard.arrival_check,
            commit=guard.commit,
            conditions=beside,
            remainder=left,
        )
        return execution

    def _list_conditions(self, operation: Operation) -> list[SideCondition]:
        """Return what a small call waits for beside its messages."""
        if self.is_agreed(operation.request, operation.signature):
            return []
        key = MessageKey(self._hash, operation.work.sequence)
        there = [rank for rank in self._ranks if not self._failures.has_left(rank)]
        signature = operation.signature
        return [ArrivalCondition(self._mesh, self._ranks, self._rank, there, key, signature)]

    def finish(self, operation: Operation) -> None:
        """Finish a call after all its data has arrived."""
        if not self.has_lent and (native := self.get_native_calls()) is not None:
            self.has_lent = native.could_lend()
        if operation.request.primitive.is_rooted:
            self.agreed_signatures[operation.signature] = None
            if len(self.agreed_signatures) > _MAX_AGREED:
                del self.agreed_signatures[next(iter(self.agreed_signatures))]
        if self.is_two_level(operation) or not operation.request.is_ordered(
            len(self._ranks), self._deterministic
        ):
            operation.request.finish(len(self._ranks))

    async def run(self, operation: Operation, started: StartedCall | None = None) -> None:
        """Carry out the current call over links; continue the execution if one was started."""
        if started is None:
            started = StartedCall(self._watchdog.begin_matching(operation))
        if not started.agrees:
            await self._watchdog.raise_mismatch(operation)
        if started.execution is None:
            started.execution = self._run_on_loop(operation)
            if started.execution is None:
                return
        execution = started.execution
        try:
            await self._watchdog.guard(operation, execution.completion, execution.list_awaited)
        finally:
            execution.stop()
            operation.has_touched = execution.has_touched
        self.finish(operation)
