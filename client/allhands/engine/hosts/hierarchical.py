"""Hierarchical calls of a group that spans hosts: phases within hosts and between hosts."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from allhands.collectives import plan
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array
from allhands.collectives.hierarchical_plan import (
    HostLayout,
    Phase,
    SliceScratch,
    describe_phases,
    overlaps_phases,
    plan_phases,
)
from allhands.collectives.request import CollectiveRequest
from allhands.engine.hosts.subcalls import SubcallMeans, Subcalls
from allhands.engine.links.executor import Execution
from allhands.engine.links.output_guard import make_arrival_check
from allhands.engine.shm.host_group import HostGroup
from allhands.transport.mesh import Mesh


class HierarchicalRunner:
    """Runner of hierarchical calls for one rank of a group that spans hosts."""

    def __init__(
        self,
        layout: HostLayout,
        host_group: HostGroup,
        scratch: SliceScratch,
        mesh: Mesh,
        ranks: Sequence[int],
        group: int,
    ) -> None:
        self.layout = layout
        self._host_group = host_group
        self._scratch = scratch
        self._means = SubcallMeans(mesh, tuple(ranks), layout.rank, group, host_group)

    def plan_phases(self, request: CollectiveRequest, link_cost: LinkCost | None) -> list[Phase]:
        """Cut a call into phases; none: it goes over links as a whole."""
        overlaps = overlaps_phases(link_cost)
        return plan_phases(self.layout, request, self._scratch, overlaps=overlaps)

    def make_run(
        self,
        phases: Sequence[Phase],
        outputs: Sequence[Array],
        *,
        sequence: int,
        signature: int,
        timeout: float,
        deadline: float,
        link_cost: LinkCost | None,
    ) -> "HierarchicalRun":
        """Return a call with these outputs that is to be carried out in these phases."""
        subcalls = Subcalls(self._means, sequence, signature, timeout, deadline)
        return HierarchicalRun(subcalls, phases, outputs, link_cost)

    def describe(self, phases: Sequence[Phase]) -> str:
        """Say how a call was carried out."""
        return describe_phases(self.layout, phases, self._host_group.has_memory)

    def close(self, lost_ranks: Collection[int]) -> None:
        self._host_group.close(lost_ranks)


class HierarchicalRun:
    """A call under way, in phases, on one rank."""

    def __init__(
        self,
        subcalls: Subcalls,
        phases: Sequence[Phase],
        outputs: Sequence[Array],
        link_cost: LinkCost | None,
    ) -> None:
        self._ranks, self._rank = subcalls.means.ranks, subcalls.means.rank
        self._subcalls = subcalls
        self._phases = phases
        self._outputs = [array for array in outputs if array.nbytes]
        self._link_cost = link_cost
        self._underway: dict[int, tuple[Phase, Execution]] = {}
        self._phase_ended: dict[int, asyncio.Event] = {
            phase.number: asyncio.Event() for phase in phases
        }
        self._arrival_execution: Execution | None = None
        self._all_arrived = asyncio.Event()
        self.has_touched = False
        """Whether outputs of the call may have been touched."""

    async def run(self) -> None:
        """Carry out all phases.

        Cancellable at any time: nothing lands in the buffers afterwards, and nothing more is sent.

        Raises:
            MismatchFound: a peer called something else.
            Left: ranks of this host gave the call up.
        """
        await self._subcalls.negotiate()
        async with self._subcalls.explain_failures():
            await _run_together([self._check_arrivals(), self._run_phases()])

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        found = self._subcalls.list_awaited()
        for phase, execution in self._underway.values():
            found.update(phase.ranks[place] for place in execution.list_awaited())
        if self._arrival_execution is not None:
            found.update(self._arrival_execution.list_awaited())
        return sorted(found)

    # ------------------------------------------------------------ inside

    async def _check_arrivals(self) -> None:
        """Exchange arrivals with all ranks of the group, before a phase touches outputs."""
        size, place = len(self._ranks), self._rank
        if self._outputs or self._phases[0].request.primitive.has_data:
            self._arrival_execution = self._subcalls.make_execution(self._ranks, place, None, 0)
            self._arrival_execution.begin([], arrival_check=make_arrival_check(place, size))
            try:
                await self._arrival_execution.completion
            finally:
                self._arrival_execution.stop()
        self._all_arrived.set()

    async def _run_phases(self) -> None:
        if not overlaps_phases(self._link_cost) or _is_sequential(self._phases):
            for phase in self._phases:
                await self._run_phase(phase)
            return
        await _run_together(
            [
                self._run_local_phases([phase for phase in self._phases if phase.is_local]),
                *(self._run_in_order(phase) for phase in self._phases if not phase.is_local),
            ]
        )

    async def _run_local_phases(self, phases: Sequence[Phase]) -> None:
        """Run the phases within this host, in the order common to all its ranks."""
        for phase in phases:
            await self._run_in_order(phase)

    async def _run_in_order(self, phase: Phase) -> None:
        for number in phase.depends_on:
            await self._phase_ended[number].wait()
        await self._run_phase(phase)
        self._phase_ended[phase.number].set()

    def _touches_outputs(self, phase: Phase) -> bool:
        return any(
            np.may_share_memory(target, output)
            for target in phase.request.targets
            for output in self._outputs
        )

    async def _run_phase(self, phase: Phase) -> None:
        if self._touches_outputs(phase):
            await self._all_arrived.wait()
            self.has_touched = True
        if phase.is_local and self._subcalls.has_memory:
            await self._subcalls.run_in_memory(phase.request)
            return
        place = phase.ranks.index(self._rank)
        peers = [self._ranks[rank] for rank in phase.ranks]
        execution = self._subcalls.make_execution(peers, place, phase.request.op, phase.number)
        self._underway[phase.number] = phase, execution
        try:
            wire = None if phase.is_local else self._link_cost
            ordered = phase.request.is_ordered(len(peers), deterministic=False)
            await execution.run(plan.build_parts(phase.request, place, len(peers), ordered, wire))
        finally:
            del self._underway[phase.number]


def _is_sequential(phases: Sequence[Phase]) -> bool:
    """Return whether each phase depends on the phase before."""
    return all(
        before.number in phase.depends_on or (before.is_local and phase.is_local)
        for before, phase in pairwise(phases)
    )


async def _run_together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
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
