"""The steps of a chain after its first one, over links, or over shared memory of their own.

They are messages of the chain's call, told apart by the step. In memory they are calls of a
communicator beside the group's, because that one counts the group's calls.
"""

from collections.abc import Collection, Sequence

from allhands.collectives.composite_call import Movement, Running
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import Native
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.shm.host_group import Differ, Island, Left, let_end
from allhands.runtime.job_thread import Aside
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh

_STEP_BITS = 16
"""Each step numbers its messages from its own number, shifted by so much."""


class Steps:
    """Where the chains of one group go on; lives on the loop."""

    def __init__(
        self,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        aside: Aside,
        island: Island | None,
    ) -> None:
        """Ranks are those of the world, `rank` is this one's place among them."""
        self._mesh = mesh
        self._ranks = ranks
        self._rank = rank
        self._group = group
        self._aside = aside
        self._island = island

    def rest(
        self,
        running: Running,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        deterministic: bool,
    ) -> "Rest":
        """Return the other steps of a chain of which the first has ended."""
        return Rest(self, running, sequence, signature, timeout, deadline, deterministic)

    def close(self, gone: Collection[int]) -> None:
        """Give up what there is of shared memory; every call has ended."""
        if self._island is not None:
            self._island.close(gone)


class Rest:
    """The later steps of one chain."""

    def __init__(
        self,
        steps: Steps,
        running: Running,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        deterministic: bool,
    ) -> None:
        self._steps = steps
        self._running = running
        self._sequence = sequence
        self._signature = signature
        self._timeout = timeout
        self._deadline = deadline
        self._deterministic = deterministic
        self._execution: Execution | None = None
        self._missed: Sequence[int] = ()

    async def run(self) -> None:
        """Carry them out and let the chain end. Cancellable at any time.

        Raises:
            MismatchFound: a peer is in a call of other sizes.
            Left: ranks of this host gave the call up.
        """
        steps = self._steps
        number = 0
        while (step := await steps._aside.run(self._running.advance)) is not None:
            number += 1
            if steps._island is not None:
                await steps._island.settle()
            if steps._island is not None and steps._island.has_memory:
                await self._in_memory(steps._island, step.native, number - 1)
            else:
                await self._over_links(step, number)

    def waiting_for(self) -> list[int]:
        """Return the ranks of the group that this call now waits for."""
        island = self._steps._island
        found = {*self._missed, *(() if island is None else island.waiting_for())}
        if self._execution is not None:
            found.update(self._execution.waiting_for())
        return sorted(found)

    async def _in_memory(self, island: Island, native: Native, index: int) -> None:
        try:
            await island.run(
                native, self._sequence, index, self._signature, self._timeout, self._deadline
            )
        except Differ as error:
            steps = self._steps
            peer = steps._ranks[steps._rank]
            raise MismatchFound(peer, Key(steps._group, self._sequence)) from error
        except Left as left:
            self._missed = left.ranks
            await let_end(self._deadline)
            raise

    async def _over_links(self, step: Movement, number: int) -> None:
        steps, native = self._steps, step.native
        self._execution = Execution(
            steps._mesh,
            peers=steps._ranks,
            rank=steps._rank,
            group=steps._group,
            sequence=self._sequence,
            signature=self._signature,
            reduce=native.op or ReduceOp.SUM,
            first=number << _STEP_BITS,
        )
        try:
            await self._execution.run(step.build(steps._rank, len(steps._ranks)))
        finally:
            self._execution = None
        if not native.is_ordered(len(steps._ranks), self._deterministic):
            native.finish(len(steps._ranks))
