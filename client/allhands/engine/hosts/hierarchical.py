"""How a group that spans hosts carries out a call: phases within hosts, and phases between them."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from allhands.collectives import plan
from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.buffer import Array
from allhands.collectives.hierarchical_plan import Layout, Phase, Scratch, described, phases
from allhands.collectives.part import Part
from allhands.collectives.reduction import ReduceOp, is_whole
from allhands.collectives.request import Native
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.links.output_guard import roll
from allhands.engine.shm.host_group import Differ, Island, Left, let_end
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh

_PHASE_BITS = 16
"""Each phase numbers its slices from its own number, shifted by so much."""


class Hierarchy:
    """A group that spans hosts, as one rank sees it."""

    def __init__(
        self,
        layout: Layout,
        island: Island,
        scratch: Scratch,
        mesh: Mesh,
        ranks: Sequence[int],
        group: int,
    ) -> None:
        self.layout = layout
        self._island = island
        self._scratch = scratch
        self._mesh = mesh
        self._ranks = tuple(ranks)
        self._group = group

    def phases(self, native: Native) -> list[Phase]:
        """Cut a call into phases; none: it goes over links as a whole."""
        return phases(self.layout, native, self._scratch)

    def performance(
        self,
        phases: Sequence[Phase],
        outputs: Sequence[Array],
        *,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        wire: Wire | None,
    ) -> "Performance":
        """Return a call with these outputs that is to be carried out in these phases."""
        return Performance(
            self._island,
            self._mesh,
            self._ranks,
            self._ranks[self.layout.rank],
            self._group,
            phases,
            outputs,
            sequence,
            signature,
            timeout,
            deadline,
            wire,
        )

    def described(self, phases: Sequence[Phase]) -> str:
        """Say how a call was carried out."""
        return described(self.layout, phases, self._island.has_memory)

    def close(self, gone: Collection[int]) -> None:
        self._island.close(gone)


class Performance:
    """One call being carried out in phases on one rank."""

    def __init__(
        self,
        island: Island,
        mesh: Mesh,
        ranks: Sequence[int],
        rank: int,
        group: int,
        phases: Sequence[Phase],
        outputs: Sequence[Array],
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        wire: Wire | None,
    ) -> None:
        self._island = island
        self._mesh = mesh
        self._ranks = ranks
        self._rank = rank
        self._group = group
        self._phases = phases
        self._outputs = [array for array in outputs if array.nbytes]
        self._sequence = sequence
        self._signature = signature
        self._timeout = timeout
        self._deadline = deadline
        self._wire = wire
        self._underway: dict[int, tuple[Phase, Execution]] = {}
        self._ended: dict[int, asyncio.Event] = {phase.number: asyncio.Event() for phase in phases}
        self._calls = 0
        self._missed: Sequence[int] = ()
        self._assembling: Execution | None = None
        self._assembled = asyncio.Event()
        self.has_touched = False
        """Whether outputs of the call may have been touched."""

    async def run(self) -> None:
        """Carry out all phases.

        Cancellable at any time: nothing lands in the buffers afterwards, and nothing more is sent.

        Raises:
            MismatchFound: a peer called something else.
            Left: ranks of this host gave the call up.
        """
        await self._island.settle()
        try:
            await _together([self._assemble(), self._perform_all()])
        except Differ as error:
            raise MismatchFound(self._rank, Key(self._group, self._sequence)) from error
        except Left as error:
            self._missed = error.ranks
            await let_end(self._deadline)
            raise

    def waiting_for(self) -> list[int]:
        """Return the ranks of the group that this call now waits for."""
        found = {*self._missed, *self._island.waiting_for()}
        for phase, execution in self._underway.values():
            found.update(phase.ranks[place] for place in execution.waiting_for())
        if self._assembling is not None:
            found.update(self._assembling.waiting_for())
        return sorted(found)

    # ------------------------------------------------------------ inside

    async def _assemble(self) -> None:
        """Hear from all ranks of the group; phases that touch outputs wait for that."""
        size, place = len(self._ranks), self._ranks.index(self._rank)
        if self._outputs or self._phases[0].native.kind != "barrier":
            self._assembling = self._execution(self._ranks, place, ReduceOp.SUM, 0)
            self._assembling.begin([], assembly=roll(place, size))
            try:
                await self._assembling.ended
            finally:
                self._assembling.stop()
        self._assembled.set()

    async def _perform_all(self) -> None:
        if _is_chain(self._phases):
            for phase in self._phases:
                await self._perform(phase)
            return
        await _together(
            [
                self._within([phase for phase in self._phases if phase.within]),
                *(self._in_turn(phase) for phase in self._phases if not phase.within),
            ]
        )

    def _execution(
        self, peers: Sequence[int], place: int, reduce: ReduceOp, first: int
    ) -> Execution:
        return Execution(
            self._mesh,
            peers=peers,
            rank=place,
            group=self._group,
            sequence=self._sequence,
            signature=self._signature,
            reduce=reduce,
            first=first,
        )

    async def _within(self, phases: Sequence[Phase]) -> None:
        """Go through the phases on this host, one after the other: as all its ranks do."""
        for phase in phases:
            await self._in_turn(phase)

    async def _in_turn(self, phase: Phase) -> None:
        for number in phase.after:
            await self._ended[number].wait()
        await self._perform(phase)
        self._ended[phase.number].set()

    def _touches_outputs(self, phase: Phase) -> bool:
        return any(
            np.may_share_memory(target, output)
            for target in phase.native.targets
            for output in self._outputs
        )

    async def _perform(self, phase: Phase) -> None:
        if self._touches_outputs(phase):
            await self._assembled.wait()
            self.has_touched = True
        if phase.within and self._island.has_memory:
            index, self._calls = self._calls, self._calls + 1
            await self._island.run(
                phase.native, self._sequence, index, self._signature, self._timeout, self._deadline
            )
            return
        peers = [self._ranks[rank] for rank in phase.ranks]
        place = peers.index(self._rank)
        reduce = phase.native.op or ReduceOp.SUM
        execution = self._execution(peers, place, reduce, phase.number << _PHASE_BITS)
        self._underway[phase.number] = phase, execution
        try:
            wire = None if phase.within else self._wire
            await execution.run(parts(phase.native, place, len(peers), wire))
        finally:
            del self._underway[phase.number]


def parts(native: Native, rank: int, size: int, wire: Wire | None = None) -> list[Part]:
    """Return what a collective is over links, of those that phases are made of."""
    op, dtype = native.op, native.dtype
    ordered = op is not None and dtype is not None and is_whole(op, dtype, size)
    match native.kind:
        case "all_reduce":
            return plan.all_reduce(rank, size, native.targets[0], ordered, wire)
        case "reduce":
            target = native.targets[0] if native.targets else None
            return plan.reduce(rank, size, native.sources[0], target, native.root, ordered)
        case "broadcast":
            return plan.broadcast(rank, size, native.targets[0], native.root, wire)
        case "all_gather":
            return plan.all_gather(rank, size, native.sources[0], native.targets, wire)
        case "reduce_scatter":
            return plan.reduce_scatter(rank, size, native.sources, native.targets[0], ordered)
        case "barrier":
            return plan.barrier(rank, size)
    raise ValueError(f"no phase does {native.kind}")


def _is_chain(phases: Sequence[Phase]) -> bool:
    """Say whether each phase waits for the one before it anyway."""
    return all(
        before.number in phase.after or (before.within and phase.within)
        for before, phase in pairwise(phases)
    )


async def _together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines together; the first failure cancels the others and is raised bare."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
