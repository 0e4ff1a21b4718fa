"""Two-level plans: small calls of a group with several ranks a host. Pure, except for the arrays.

The ranks of a host bring what they have to one of them, the head: the first, or the root. The heads
make a call among themselves over links, and give the others the result. So a small call crosses the
network once, in as few messages as there are hosts, and is no more than two posts in memory for
most ranks.

All ranks choose this, or not, by the same facts.
"""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import as_strided

from allhands.collectives import plan
from allhands.collectives.algorithms import select
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array
from allhands.collectives.hierarchical_plan import HostLayout
from allhands.collectives.part import Part
from allhands.collectives.reduction import OPS, ReduceOp, get_dtype_name, is_narrow
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.split_rounds import split_rounds
from allhands.data.blocks import copy_into
from allhands_proto.quick_dataclass import dataclass

TWO_LEVEL_BYTES = 1 << 20
"""Of the array, or of all ranks' blocks, up to which calls are made so on hosts of many ranks;
above it, in phases."""
HEAD_BYTES = 8 << 20
"""Likewise of the arrays of all ranks of a host together, on hosts of fewer: so much is read by its
head, where in phases its ranks share the work. On two hosts of two ranks, which shared two cores,
4 MiB of all_reduce took 17 ms in phases, and 8 so."""
MESSAGE_BYTES = 1 << 20
"""Of a message between heads; longer ones are cut, and go in rounds of their own."""

Allocate = Callable[[Sequence[int]], Sequence[Array]]
"""Gives staging memory of so many bytes each; asked once a plan."""


@dataclass(slots=True)
class TwoLevelPlan:
    """A call on one rank of a group."""

    heads: tuple[int, ...]
    """Ranks of the group, one a host."""
    head: int
    """That of this rank's host."""
    members: tuple[int, ...]
    """The ranks of this host."""
    op: ReduceOp | None
    algorithm: str
    """Of the call among heads."""
    brings: bool
    """Whether members bring the head something, or at least word that they came."""
    gives: bool
    """Whether the head gives them a result, or at least word that all ranks came."""
    own: Sequence[Array] = ()
    """What this rank brings."""
    given_bytes: int = 0
    """Of the result that a head gives."""
    # A head's:
    into: Array | None = None
    """Where what its host brings goes: reduced, or end to end."""
    parts: Sequence[Part] = ()
    """The call among heads, on staging memory."""
    given: Array | None = None
    # Another rank's:
    taken: list[tuple[int, Array]] = field(default_factory=list)
    """From which byte of what is given, and into which output or staging memory."""
    # Of all:
    staged: list[tuple[Array, Array]] = field(default_factory=list)
    """What has landed in staging memory, and the output that it is for."""

    @property
    def is_head(self) -> bool:
        return bool(self.parts)

    def commit(self) -> None:
        """Bring into the outputs what has landed in staging memory."""
        for room, output in self.staged:
            copy_into(output, room)

    @property
    def own_bytes(self) -> int:
        """Bytes that every rank of a host brings."""
        return sum(array.nbytes for array in self.own)


def get_limit(layout: HostLayout) -> int:
    """Return the bytes up to which calls of a group are made so; the same on all ranks."""
    return max(TWO_LEVEL_BYTES, HEAD_BYTES // max(map(len, layout.ranks_by_host)))


def is_two_level(layout: HostLayout, request: CollectiveRequest) -> bool:
    """Say whether a call is made so; the same on all ranks."""
    primitive = request.primitive
    if primitive.algorithm not in _PLANNERS or not layout.is_hierarchical:
        return False
    if not primitive.has_data:
        return True
    assert request.dtype is not None
    nbytes = _count_bytes(layout, request)
    return (
        0 < nbytes <= get_limit(layout)
        and (not primitive.scales_with_size or layout.is_consecutive)
        and (request.op is None or _is_for_two_levels(request.op, request.dtype))
    )


def _count_bytes(layout: HostLayout, request: CollectiveRequest) -> int:
    """Return the bytes of the array of a call, or of all ranks' blocks."""
    if request.dtype is None:
        return 0
    nbytes = request.count * request.dtype.itemsize
    if request.primitive.scales_with_size:
        return nbytes * sum(map(len, layout.ranks_by_host))
    return nbytes


def _bound_message(layout: HostLayout, request: CollectiveRequest, algorithm: str) -> int:
    """Return the bytes that no message between heads exceeds, by what all of them know."""
    if algorithm != "ring":
        return _count_bytes(layout, request)
    assert request.dtype is not None
    if request.primitive.scales_with_size:
        block = request.count * max(map(len, layout.ranks_by_host))
    else:
        block = -(-request.count // len(layout.ranks_by_host))
    return block * request.dtype.itemsize


def _is_for_two_levels(op: ReduceOp, dtype: "np.dtype[np.generic]") -> bool:
    """Return whether the core knows a reduction, and a host's part of it is a value of the dtype.

    The sum of an average of narrow floats may be none.
    """
    if op not in OPS or get_dtype_name(dtype) is None:
        return False
    return not (op is ReduceOp.AVG and is_narrow(dtype))


def plan_two_level(
    layout: HostLayout,
    request: CollectiveRequest,
    allocate: Allocate,
    link_cost: LinkCost | None = None,
) -> TwoLevelPlan:
    """Plan a call that `is_two_level`.

    An AVG is a SUM here, to be divided at the end.
    """
    if request.op is ReduceOp.AVG:
        request = replace(request, op=ReduceOp.SUM)
    made = _PLANNERS[request.primitive.algorithm](_Setting(layout, request, allocate, link_cost))
    pieces = -(-_bound_message(layout, request, made.algorithm) // MESSAGE_BYTES)
    if pieces > 1:
        made.parts = [
            replace(part, schedule=split_rounds(part.schedule, pieces)) for part in made.parts
        ]
    return made


@dataclass(frozen=True, slots=True)
class _Setting:
    """What all planners start from."""

    layout: HostLayout
    request: CollectiveRequest
    allocate: Allocate
    link_cost: LinkCost | None

    @property
    def heads(self) -> tuple[int, ...]:
        root = self.request.root
        return self.layout.choose_leaders(root if root >= 0 else None)

    @property
    def host(self) -> int:
        """The place of this rank's host, and of its head among heads."""
        return self.layout.ranks_by_host.index(self.layout.local_ranks)

    @property
    def is_head(self) -> bool:
        return self.layout.rank == self.heads[self.host]

    @property
    def is_ordered(self) -> bool:
        return self.request.is_ordered(len(self.heads), deterministic=False)

    @property
    def counts(self) -> list[int]:
        """Elements of the blocks of each host."""
        return [self.request.count * len(ranks) for ranks in self.layout.ranks_by_host]

    def make_rooms(self, *counts: int) -> list[Array]:
        """Return staging memory for so many elements each."""
        dtype = self.request.dtype
        assert dtype is not None
        rooms = self.allocate([count * dtype.itemsize for count in counts])
        return [room.view(dtype) for room in rooms]

    def begin(self, algorithm: str, *, brings: bool, gives: bool) -> TwoLevelPlan:
        heads = self.heads
        members, op = self.layout.local_ranks, self.request.op
        return TwoLevelPlan(heads, heads[self.host], members, op, algorithm, brings, gives)


def _barrier(of: _Setting) -> TwoLevelPlan:
    size = len(of.heads)
    made = of.begin(select.select_barrier(size).name, brings=True, gives=True)
    if of.is_head:
        made.parts = plan.barrier(of.host, size)
    return made


def _all_reduce(of: _Setting) -> TwoLevelPlan:
    (x,), size = of.request.targets, len(of.heads)
    choice = select.select_all_reduce(size, x.nbytes, of.is_ordered, of.link_cost)
    made = of.begin(choice.name, brings=True, gives=True)
    made.own, made.given_bytes = [x], x.nbytes
    if of.is_head:
        (room,) = of.make_rooms(len(x))
        made.into = made.given = room
        made.parts = plan.all_reduce(of.host, size, room, of.is_ordered, of.link_cost)
        made.staged = [(room, x)]
    else:
        made.taken = [(0, x)]
    return made


def _broadcast(of: _Setting) -> TwoLevelPlan:
    (x,), size = of.request.targets, len(of.heads)
    made = of.begin(
        select.select_broadcast(size, x.nbytes, of.link_cost).name, brings=False, gives=True
    )
    made.given_bytes = x.nbytes
    if not of.is_head:
        made.taken = [(0, x)]
        return made
    (room,) = of.make_rooms(len(x))
    made.given = room
    made.parts = plan.broadcast(of.host, size, room, of.heads.index(of.request.root), of.link_cost)
    if of.layout.rank == of.request.root:
        made.own, made.into = [x], room
    else:
        made.staged = [(room, x)]
    return made


def _reduce(of: _Setting) -> TwoLevelPlan:
    (x,), size = of.request.sources, len(of.heads)
    made = of.begin(
        select.select_reduce(size, x.nbytes, of.is_ordered).name, brings=True, gives=False
    )
    made.own = [x]
    if not of.is_head:
        return made
    partial, result = of.make_rooms(len(x), len(x))
    is_root = of.layout.rank == of.request.root
    made.into = partial
    made.parts = [
        plan.reduce_whole(
            of.host,
            size,
            partial,
            result if is_root else None,
            of.heads.index(of.request.root),
            of.is_ordered,
        )
    ]
    if is_root:
        made.staged = [(result, of.request.targets[0])]
    return made


def _all_gather(of: _Setting) -> TwoLevelPlan:
    (x,), size, counts = of.request.sources, len(of.heads), of.counts
    nbytes = sum(counts) * x.itemsize
    made = of.begin(
        select.select_all_gather(size, nbytes, of.link_cost).name, brings=True, gives=True
    )
    made.own, made.given_bytes = [x], nbytes
    outputs = of.request.targets
    places = np.cumsum([0, *(array.nbytes for array in outputs)])[:-1].tolist()
    if not of.is_head and len(outputs) == 1:
        made.taken = [(0, outputs[0])]
        return made
    if of.is_head:
        blocks, whole = of.make_rooms(counts[of.host], sum(counts))
        made.into, made.given = blocks, whole
        made.parts = [plan.all_gather_blocks(of.host, size, blocks, whole, counts, of.link_cost)]
    else:
        (whole,) = of.make_rooms(sum(counts))
        made.taken = [(0, whole)]
    made.staged = [
        (whole[at // x.itemsize :][: len(array)], array)
        for at, array in zip(places, outputs, strict=True)
    ]
    return made


def _reduce_scatter(of: _Setting) -> TwoLevelPlan:
    (y,), size, counts = of.request.targets, len(of.heads), of.counts
    nbytes = sum(counts) * y.itemsize
    made = of.begin(
        select.select_reduce_scatter(size, nbytes, of.is_ordered).name, brings=True, gives=True
    )
    made.own, made.given_bytes = join_adjacent(of.request.sources), counts[of.host] * y.itemsize
    place = of.layout.local_rank * len(y)
    if not of.is_head:
        made.taken = [(place * y.itemsize, y)]
        return made
    partial, blocks = of.make_rooms(sum(counts), counts[of.host])
    made.into, made.given = partial, blocks
    made.parts = [plan.reduce_scatter_blocks(of.host, size, partial, blocks, counts, of.is_ordered)]
    made.staged = [(blocks[place : place + len(y)], y)]
    return made


def join_adjacent(arrays: Sequence[Array]) -> Sequence[Array]:
    """Return views of one array that follow one another as one view; other arrays as they are."""
    if len(arrays) < 2:
        return arrays
    first, joined = arrays[0], sum(map(len, arrays))
    for before, after in pairwise(arrays):
        is_alike = after.base is first.base is not None and after.dtype == first.dtype
        if not is_alike or not _follows(before, after):
            return arrays
    return [as_strided(arrays[0], (joined,), arrays[0].strides, writeable=False)]


def _follows(before: Array, after: Array) -> bool:
    start: int = before.__array_interface__["data"][0]
    next_start: int = after.__array_interface__["data"][0]
    return start + before.nbytes == next_start


_PLANNERS: dict[str, Callable[[_Setting], TwoLevelPlan]] = {
    "barrier": _barrier,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
"""By algorithm; the others go over links as a whole, or in phases."""
