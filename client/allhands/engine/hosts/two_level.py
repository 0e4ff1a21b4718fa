"""Two-level calls: small calls of a group that spans hosts, where the core does not end them."""

import asyncio
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.hierarchical_plan import HostLayout
from allhands.collectives.part import Part
from allhands.collectives.reduction import ReduceOp, fold
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.collectives.two_level_plan import (
    Allocate,
    TwoLevelPlan,
    is_two_level,
    plan_two_level,
)
from allhands.engine.links.executor import Execution, MismatchFound, SideCondition
from allhands.engine.links.native_calls import Remainder
from allhands.engine.operation import Operation
from allhands.engine.shm.host_group import CallAbandoned, HostMismatch, await_near_deadline
from allhands.engine.shm.local_board import LocalBoard
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands.transport.outbox import EAGER_BYTES
from allhands_proto.quick_dataclass import dataclass

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_UP_PART, _DOWN_PART = 1 << 16, 2 << 16
"""Of messages of ranks of a host that share no memory, behind the first, that of the heads."""


class TwoLevelCalls:
    """Two-level calls of one rank of a group. Event loop only."""

    def __init__(
        self,
        layout: HostLayout,
        board: LocalBoard,
        mesh: Mesh,
        ranks: Sequence[int],
        group: int,
        first_part: int = 0,
    ) -> None:
        self.layout = layout
        self.board = board
        self.mesh = mesh
        self.ranks = tuple(ranks)
        """World rank of each group rank."""
        self.group = group
        self.first_part = first_part
        """Number of the first of their parts within the calls that they belong to."""

    def applies_to(self, request: CollectiveRequest) -> bool:
        """Say whether a call that is no composite one is made so; the same on all ranks."""
        return is_two_level(self.layout, request)

    def plan(
        self, request: CollectiveRequest, allocate: Allocate, link_cost: LinkCost | None
    ) -> TwoLevelPlan:
        """Plan a call to which this applies."""
        return plan_two_level(self.layout, request, allocate, link_cost)

    @property
    def is_in_memory(self) -> bool:
        """Whether the native core can carry calls out: who is on this host shares memory."""
        return self.board.native is not None or len(self.layout.local_ranks) == 1

    @property
    def may_be_in_memory(self) -> bool:
        """Whether that can still come to be so."""
        return self.is_in_memory or self.board.is_undecided

    def explain(self, how: str) -> str:
        """Describe such a call, `how` being how the heads make it; for people."""
        return _explain(str(self.layout), how, self.may_be_in_memory)

    def close(self, lost_ranks: Collection[int]) -> None:
        self.board.close(lost_ranks)


@lru_cache(maxsize=64)
def _explain(layout: str, how: str, in_memory: bool) -> str:
    inside = "shared memory" if in_memory else "links"
    return f"{layout}: {inside} within hosts, between them {how}"


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Number and signature of a call, and the end of its time on the monotonic clock."""

    sequence: int
    signature: int
    deadline: float

    @classmethod
    def of(cls, operation: Operation) -> "CallIdentity":
        """Return that of a call under way."""
        return cls(operation.work.sequence, operation.signature, operation.deadline)


class TwoLevelRun:
    """A call under way on one rank; takes the place of an `Execution`."""

    goes_by_messages = False

    def __init__(
        self,
        calls: TwoLevelCalls,
        plan: TwoLevelPlan,
        call: CallIdentity,
        conditions: Sequence[SideCondition],
        remainder: Remainder | None,
    ) -> None:
        """With `remainder` the call among heads goes on from there, on its staging memory."""
        self._calls = calls
        self._plan = plan
        self._call = call
        self._rank = calls.layout.rank
        self._conditions = dict.fromkeys(conditions)
        self._met = asyncio.Event()
        self._across: Execution | None = None
        self._messages: Execution | None = None
        self._abandoned_by: Sequence[int] = ()
        self.has_touched = False
        """Whether outputs of the call were touched."""
        for one in conditions:
            one.start(lambda one=one: self._on_condition_done(one))  # type: ignore[misc]
        if not self._conditions:
            self._met.set()
        self.completion: asyncio.Future[None] = asyncio.create_task(self._run(remainder))

    def stop(self) -> None:
        """Let nothing land from now on, and nothing more be sent. Idempotent."""
        has_ended = self.completion.done() and not self.completion.cancelled()
        if not has_ended or self.completion.exception() is not None:
            self._calls.board.give_up(self._call.sequence)
        self.completion.cancel()
        for one in self._conditions:
            one.stop()
        for execution in (self._across, self._messages):
            if execution is not None:
                execution.stop()
        self._calls.board.over(self._call.sequence)

    def list_awaited(self) -> list[int]:
        """Return the group's ranks that block this call now."""
        found = {*self._calls.board.list_awaited(), *self._abandoned_by}
        for one in self._conditions:
            found.update(one.list_awaited())
        if self._across is not None:
            found.update(self._plan.heads[place] for place in self._across.list_awaited())
        if self._messages is not None:
            found.update(self._messages.list_awaited())
        return sorted(found)

    # ------------------------------------------------------------ inside

    def _on_condition_done(self, one: SideCondition) -> None:
        self._conditions.pop(one, None)
        if not self._conditions:
            self._met.set()

    async def _run(self, remainder: Remainder | None) -> None:
        calls, plan = self._calls, self._plan
        await calls.board.negotiate()
        calls.board.over(self._call.sequence - 1)
        try:
            if plan.is_head:
                if remainder is None:
                    await self._collect()
                await self._cross(remainder)
                await self._met.wait()
                if plan.gives:
                    result = () if plan.given is None else (plan.given,)
                    await self._leave(self._others, result, _DOWN_PART)
                self.has_touched = bool(plan.staged)
                plan.commit()
            else:
                if plan.brings:
                    await self._leave([plan.head], plan.own, _UP_PART)
                given = None
                if plan.gives:
                    given = await self._fetch(plan.head, plan.given_bytes, _DOWN_PART)
                await self._met.wait()
                self._take(given)
                plan.commit()
        except HostMismatch as error:
            key = MessageKey(calls.group, self._call.sequence)
            raise MismatchFound(calls.ranks[self._rank], key) from error
        except CallAbandoned as error:
            self._abandoned_by = error.ranks
            await await_near_deadline(self._call.deadline)
            raise

    @property
    def _others(self) -> list[int]:
        return [rank for rank in self._plan.members if rank != self._rank]

    async def _collect(self) -> None:
        """Put together what the ranks of this host bring."""
        plan = self._plan
        blocks: list[Sequence[Array]] = []
        for rank in plan.members if plan.brings else [self._rank]:
            if rank == self._rank:
                blocks.append(plan.own)
            else:
                blocks.append([await self._fetch(rank, plan.own_bytes, _UP_PART)])
        if plan.into is None:
            return
        joined = [_join(one) for one in blocks]
        if plan.op is None:
            plan.into.view(np.uint8)[...] = np.concatenate(joined)
        else:
            operands = [one.view(plan.into.dtype) for one in joined]
            fold(plan.op, operands, plan.into, 1)

    async def _cross(self, remainder: Remainder | None) -> None:
        """Make the call among heads."""
        plan = self._plan
        self._across = self._make_execution(plan.heads, plan.op, 0)
        self._across.begin(plan.parts, remainder=remainder)
        try:
            await self._across.completion
        finally:
            self._across.stop()
            self._across = None

    def _take(self, given: Bytes | None) -> None:
        for at, output in self._plan.taken:
            assert given is not None
            self.has_touched = True
            output.view(np.uint8)[...] = given[at : at + output.nbytes]

    # ------------------------------------------------------------ within the host

    async def _leave(self, ranks: Sequence[int], arrays: Sequence[Array], part: int) -> None:
        """Leave arrays for ranks of this host."""
        board, call = self._calls.board, self._call
        if board.native is not None:
            if ranks:
                await board.post(call.sequence, call.signature, arrays)
            return
        data = _join(arrays)
        span = Span(Area.INPUT, 0, len(data))
        sends = tuple(Send(rank, span) for rank in ranks)
        await self._exchange(Round(sends=sends), data, np.empty(0, np.uint8), part)

    async def _fetch(self, rank: int, nbytes: int, part: int) -> Bytes:
        """Return what a rank of this host leaves."""
        board, call = self._calls.board, self._call
        if board.native is not None:
            return await board.fetch(rank, call.sequence, call.signature, nbytes)
        data = np.empty(nbytes, np.uint8)
        recvs = (Recv(rank, Span(Area.OUTPUT, 0, nbytes)),)
        await self._exchange(Round(recvs=recvs), np.empty(0, np.uint8), data, part)
        return data

    async def _exchange(self, step: Round, given: Bytes, taken: Bytes, part: int) -> None:
        """Carry out a round over links of this host, whose ranks share no memory."""
        dtype = np.dtype(np.uint8)
        self._messages = self._make_execution(range(len(self._calls.ranks)), None, part)
        self._messages.begin(
            [Part(Schedule((step,)), Buffer([given], dtype), Buffer([taken], dtype))]
        )
        try:
            await self._messages.completion
        finally:
            self._messages.stop()
            self._messages = None

    def _make_execution(
        self, ranks: Sequence[int], op: ReduceOp | None, first_part: int
    ) -> Execution:
        """Make a call over links among ranks of the group."""
        calls = self._calls
        return Execution(
            calls.mesh,
            peers=[calls.ranks[rank] for rank in ranks],
            rank=ranks.index(self._rank),
            group=calls.group,
            sequence=self._call.sequence,
            signature=self._call.signature,
            op=op or ReduceOp.SUM,
            first_part=calls.first_part + first_part,
            eager_bytes=EAGER_BYTES,
        )


def _join(arrays: Sequence[Array]) -> Bytes:
    """Return the bytes of arrays end to end."""
    if len(arrays) == 1:
        return arrays[0].view(np.uint8)
    return np.concatenate([np.empty(0, np.uint8), *(array.view(np.uint8) for array in arrays)])
