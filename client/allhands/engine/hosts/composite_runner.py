"""Later steps of composite calls, over links or over a second communicator.

Over links the steps are messages of the call, distinguished by the step's number. In shared memory
they run on a communicator beside the group's, because the group's own counts the group's calls.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from allhands.collectives.composite_call import CompositeState, Step
from allhands.collectives.message_pieces import cut_messages
from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result
from allhands.engine.hosts.subcalls import SubcallMeans, Subcalls
from allhands.engine.links.executor import Execution
from allhands.engine.links.native_calls import NativeCalls
from allhands.engine.shm.host_group import HostGroup
from allhands.runtime.job_thread import JobThread
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import EAGER_BYTES

_LONGEST_CUT_BYTES = 4 << 20
"""Of a message that goes in pieces, each unasked; a longer one waits until it is asked for."""


class CompositeRunner:
    """Runner of one group's composite calls after their first step. Event loop only."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        job_thread: JobThread,
        host_group: HostGroup | None,
    ) -> None:
        """Ranks are those of the world, `rank` is this one's place among them."""
        self._means = SubcallMeans(mesh, ranks, rank, group, host_group)
        self._job_thread = job_thread

    def make_run(
        self,
        composite_state: CompositeState,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        deterministic: bool,
    ) -> "CompositeRun":
        """Return the other steps of a chain of which the first has ended."""
        subcalls = Subcalls(self._means, sequence, signature, timeout, deadline)
        return CompositeRun(subcalls, composite_state, self._job_thread, deterministic)

    def close(self, lost_ranks: Collection[int]) -> None:
        """Release the shared memory; every call must have ended."""
        if self._means.host_group is not None:
            self._means.host_group.close(lost_ranks)


class CompositeRun:
    """The later steps of one composite call."""

    def __init__(
        self,
        subcalls: Subcalls,
        composite_state: CompositeState,
        job_thread: JobThread,
        deterministic: bool,
    ) -> None:
        self._ranks, self._rank = subcalls.means.ranks, subcalls.means.rank
        self._subcalls = subcalls
        self._composite_state = composite_state
        self._job_thread = job_thread
        self._deterministic = deterministic
        self._number = 0
        """Of the step at hand; the first of the call is 0."""
        self._step: Step | None = None
        """The step at hand, where `run_here` has come to it and not to its end."""
        self._execution: Execution | None = None
        self.result: Result = None
        """What the call gives, when `run` has ended."""
        self.failure: Exception | None = None
        """Why that cannot be made here of what has come; the call has ended well then."""

    def run_here(
        self,
        native: NativeCalls | None,
        may_run: Callable[[CollectiveRequest], bool],
        is_interrupted: Callable[[], bool],
        seconds: float,
    ) -> bool:
        """Run the steps over links on this thread, which holds the loop, as far as they go.

        Each may take so many `seconds`. False: what is left is for `run`. True: all have ended, and
        the state of the call is to be finished.
        """
        while (step := self._composite_state.advance()) is not None:
            self._number, self._step = self._number + 1, step
            if not may_run(step.request) or not self._run_step_here(
                step, native, is_interrupted, seconds
            ):
                return False
            self._end_step(step)
            if is_interrupted():
                return False
        return True

    async def run(self) -> None:
        """Run the steps, or those that are left, and finish the call. Cancellable at any time.

        Raises:
            MismatchFound: a peer is in a call of other sizes.
            CallAbandoned: ranks of this host gave the call up.
        """
        if self._step is not None:
            await self._run_over_links(self._step)
        while (step := await self._job_thread.run(self._advance)) is not None:
            self._number += 1
            await self._subcalls.negotiate()
            if self._subcalls.has_memory:
                async with self._subcalls.explain_failures():
                    await self._subcalls.run_in_memory(step.request)
            else:
                await self._run_over_links(step)

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        if self._execution is not None:
            self._execution.stop()

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        found = self._subcalls.list_awaited()
        if self._execution is not None:
            found.update(self._execution.list_awaited())
        return sorted(found)

    def _advance(self) -> Step | None:
        """Return the next step; after the last, finish the call."""
        step = self._composite_state.advance()
        if step is None:
            try:
                self.result = self._composite_state.finish()
            except Exception as error:  # whatever it is belongs to the caller, not to the others
                self.failure = error
        return step

    def _run_step_here(
        self,
        step: Step,
        native: NativeCalls | None,
        is_interrupted: Callable[[], bool],
        seconds: float,
    ) -> bool:
        """Run a step as far as it goes; say whether it has ended well."""
        parts = self._build(step)
        execution = self._make_execution(step)
        call = None
        if native is not None and len(parts) == 1:
            call = native.begin(
                parts[0],
                step.request.op,
                self._subcalls.sequence,
                self._subcalls.signature,
                execution.first_part,
            )
        if call is None:
            execution.begin(parts)
            execution.mesh.pump(lambda: execution.completion.done() or is_interrupted(), seconds)
        elif call.run(is_interrupted, seconds):
            return True
        else:
            execution.begin(parts, remainder=call.withdraw())
            call.give_back()
        self._execution, ended = execution, execution.completion
        return ended.done() and ended.exception() is None

    async def _run_over_links(self, step: Step) -> None:
        try:
            if self._execution is None:
                self._execution = self._make_execution(step)
                self._execution.begin(self._build(step))
            await self._execution.completion
        finally:
            self.stop()
        self._end_step(step)

    def _build(self, step: Step) -> list[Part]:
        """Build the parts of a step, with messages that the core takes, where they are not long."""
        return [_cut_part(part) for part in step.build(self._rank, len(self._ranks))]

    def _make_execution(self, step: Step) -> Execution:
        return self._subcalls.make_execution(
            self._ranks, self._rank, step.request.op, self._number, EAGER_BYTES
        )

    def _end_step(self, step: Step) -> None:
        self._step = self._execution = None
        if not step.request.is_ordered(len(self._ranks), self._deterministic):
            step.request.finish(len(self._ranks))


def _cut_part(part: Part) -> Part:
    itemsize = part.output.dtype.itemsize
    limits = EAGER_BYTES // itemsize, _LONGEST_CUT_BYTES // itemsize
    schedule = cut_messages(part.schedule, *limits)
    return part if schedule is part.schedule else replace(part, schedule=schedule)
