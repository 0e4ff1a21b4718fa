"""Sub-calls: the steps or phases of one call of a group, over links or in this host's memory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field

from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.engine.links.executor import Execution, MismatchFound
from allhands.engine.shm.host_group import (
    CallAbandoned,
    HostGroup,
    HostMismatch,
    await_near_deadline,
)
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands_proto.quick_dataclass import dataclass

_PART_BITS = 16
"""Each sub-call numbers its messages from its own number, shifted by so much."""


@dataclass(frozen=True, slots=True)
class SubcallMeans:
    """Links and memory for the sub-calls of one group's calls. Event loop only."""

    mesh: Mesh
    ranks: Sequence[int]
    """World rank of each group rank."""
    rank: int
    """This rank's place among them."""
    group: int
    host_group: HostGroup | None
    """None: all sub-calls go over links."""


@dataclass(slots=True)
class Subcalls:
    """The sub-calls of one call, under its number and signature, until its deadline."""

    means: SubcallMeans
    sequence: int
    signature: int
    timeout: float
    deadline: float
    _count_in_memory: int = field(default=0, init=False)
    _abandoned_by: Sequence[int] = field(default=(), init=False)

    @property
    def has_memory(self) -> bool:
        """Whether the ranks of the host group share memory, as far as is known."""
        host_group = self.means.host_group
        return host_group is not None and host_group.has_memory

    async def negotiate(self) -> None:
        """Find out, as all ranks will, whether the ranks of the host group share memory."""
        if self.means.host_group is not None:
            await self.means.host_group.negotiate()

    async def run_in_memory(self, request: CollectiveRequest) -> None:
        """Run the next sub-call of the host group, which shares memory."""
        assert self.means.host_group is not None
        index, self._count_in_memory = self._count_in_memory, self._count_in_memory + 1
        await self.means.host_group.run(
            request, self.sequence, index, self.signature, self.timeout, self.deadline
        )

    def make_execution(
        self,
        peers: Sequence[int],
        rank: int,
        op: ReduceOp | None,
        number: int,
        eager_bytes: int | None = None,
    ) -> Execution:
        """Make a sub-call over links among `peers`, world ranks, of which `rank` is an index.

        `eager_bytes` as of `Execution`.
        """
        return Execution(
            self.means.mesh,
            peers=peers,
            rank=rank,
            group=self.means.group,
            sequence=self.sequence,
            signature=self.signature,
            op=op or ReduceOp.SUM,
            first_part=number << _PART_BITS,
            eager_bytes=eager_bytes,
        )

    @asynccontextmanager
    async def explain_failures(self) -> AsyncIterator[None]:
        """Raise what the host group ends early with as a failure of the call.

        Raises:
            MismatchFound: ranks of this host made another call.
            CallAbandoned: ranks of this host gave the call up; after its deadline, if that is near.
        """
        means = self.means
        try:
            yield
        except HostMismatch as error:
            key = MessageKey(means.group, self.sequence)
            raise MismatchFound(means.ranks[means.rank], key) from error
        except CallAbandoned as error:
            self._abandoned_by = error.ranks
            await await_near_deadline(self.deadline)
            raise

    def list_awaited(self) -> set[int]:
        """Return the group's ranks on this host that block the call now."""
        host_group = self.means.host_group
        return {*self._abandoned_by, *(() if host_group is None else host_group.list_awaited())}
