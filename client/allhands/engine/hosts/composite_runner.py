"""Later steps of composite calls, over links or over a second communicator.

Over links the steps are messages of the call, distinguished by the step's number. In shared memory
they run on a communicator beside the group's, because the group's own counts the group's calls.
"""

from collections.abc import Collection, Sequence

from allhands.collectives.composite_call import CompositeState, Step
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.shm.host_group import (
    CallAbandoned,
    HostGroup,
    HostMismatch,
    await_near_deadline,
)
from allhands.runtime.job_thread import JobThread
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh

_STEP_BITS = 16
"""Each step numbers its messages from its own number, shifted by so much."""


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
        self._mesh = mesh
        self._ranks = ranks
        self._rank = rank
        self._group = group
        self._job_thread = job_thread
        self._host_group = host_group

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
        return CompositeRun(
            self, composite_state, sequence, signature, timeout, deadline, deterministic
        )

    def close(self, lost_ranks: Collection[int]) -> None:
        """Release the shared memory; every call must have ended."""
        if self._host_group is not None:
            self._host_group.close(lost_ranks)


class CompositeRun:
    """The later steps of one composite call."""

    def __init__(
        self,
        runner: CompositeRunner,
        composite_state: CompositeState,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        deterministic: bool,
    ) -> None:
        self._runner = runner
        self._composite_state = composite_state
        self._sequence = sequence
        self._signature = signature
        self._timeout = timeout
        self._deadline = deadline
        self._deterministic = deterministic
        self._execution: Execution | None = None
        self._abandoned_by: Sequence[int] = ()

    async def run(self) -> None:
        """Run the steps and complete the call. Cancellable at any time.

        Raises:
            MismatchFound: a peer is in a call of other sizes.
            CallAbandoned: ranks of this host gave the call up.
        """
        steps = self._runner
        number = 0
        while (step := await steps._job_thread.run(self._composite_state.advance)) is not None:
            number += 1
            if steps._host_group is not None:
                await steps._host_group.negotiate()
            if steps._host_group is not None and steps._host_group.has_memory:
                await self._run_in_memory(steps._host_group, step.request, number - 1)
            else:
                await self._run_over_links(step, number)

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        island = self._runner._host_group
        found = {*self._abandoned_by, *(() if island is None else island.list_awaited())}
        if self._execution is not None:
            found.update(self._execution.list_awaited())
        return sorted(found)

    async def _run_in_memory(
        self, host_group: HostGroup, request: CollectiveRequest, index: int
    ) -> None:
        try:
            await host_group.run(
                request, self._sequence, index, self._signature, self._timeout, self._deadline
            )
        except HostMismatch as error:
            steps = self._runner
            peer = steps._ranks[steps._rank]
            raise MismatchFound(peer, MessageKey(steps._group, self._sequence)) from error
        except CallAbandoned as left:
            self._abandoned_by = left.ranks
            await await_near_deadline(self._deadline)
            raise

    async def _run_over_links(self, step: Step, number: int) -> None:
        steps, native = self._runner, step.request
        self._execution = Execution(
            steps._mesh,
            peers=steps._ranks,
            rank=steps._rank,
            group=steps._group,
            sequence=self._sequence,
            signature=self._signature,
            op=native.op or ReduceOp.SUM,
            first_part=number << _STEP_BITS,
        )
        try:
            await self._execution.run(step.build(steps._rank, len(steps._ranks)))
        finally:
            self._execution = None
        if not native.is_ordered(len(steps._ranks), self._deterministic):
            native.finish(len(steps._ranks))
