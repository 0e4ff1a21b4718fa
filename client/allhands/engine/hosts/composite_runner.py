"""Later steps of composite calls, over links or over a second communicator.

Over links the steps are messages of the call, distinguished by the step's number. In shared memory
they run on a communicator beside the group's, because the group's own counts the group's calls.
"""

from collections.abc import Collection, Sequence

from allhands.collectives.composite_call import CompositeState, Step
from allhands.engine.hosts.subcalls import SubcallMeans, Subcalls
from allhands.engine.links.executor import Execution
from allhands.engine.shm.host_group import HostGroup
from allhands.runtime.job_thread import JobThread
from allhands.transport.mesh import Mesh


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
        self._execution: Execution | None = None

    async def run(self) -> None:
        """Run the steps and complete the call. Cancellable at any time.

        Raises:
            MismatchFound: a peer is in a call of other sizes.
            CallAbandoned: ranks of this host gave the call up.
        """
        number = 0
        while (step := await self._job_thread.run(self._composite_state.advance)) is not None:
            number += 1
            await self._subcalls.negotiate()
            if self._subcalls.has_memory:
                async with self._subcalls.explain_failures():
                    await self._subcalls.run_in_memory(step.request)
            else:
                await self._run_over_links(step, number)

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        found = self._subcalls.list_awaited()
        if self._execution is not None:
            found.update(self._execution.list_awaited())
        return sorted(found)

    async def _run_over_links(self, step: Step, number: int) -> None:
        size, request = len(self._ranks), step.request
        self._execution = self._subcalls.make_execution(self._ranks, self._rank, request.op, number)
        try:
            await self._execution.run(step.build(self._rank, size))
        finally:
            self._execution = None
        if not request.is_ordered(size, self._deterministic):
            request.finish(size)
