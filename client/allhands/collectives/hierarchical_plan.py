"""Hierarchical plans: calls of a group that spans hosts, as phases. Pure.

A host group is the group's ranks on one host. Data that the ranks of a host group can exchange
through memory need not cross the network, and data that must cross it is shared among them. So a
call becomes phases: collectives on some of its ranks, within hosts and between them, one after the
other or, for slices of large arrays, side by side.

All ranks split a call into the same phases with the same numbers, without communication.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands_proto.quick_dataclass import dataclass

FLAT_BYTES = 16 << 10
"""Bytes, of all blocks together, up to which a call goes over links as a whole.

On the callers' own threads, while phases need the threads beside them. Most calls so small, and
larger ones, are made in two levels instead: see `two_level_plan`."""
SMALL_BYTES = 64 << 10
"""Bytes up to which the number of phases decides, above it how much each rank carries."""
SLICE_BYTES = 16 << 20
"""Of the array that is worked on at a time, at most; a quarter of that at least.

With two hosts of two ranks, all on two processors, a slice cost each rank 0.5 ms beside the work
itself: of 64 MiB, four slices that overlap did better than eight or sixteen.
"""
WHOLE_SLICE_BYTES = 64 << 20
"""Likewise where phases do not overlap."""
OVERLAP_PROCESSORS = 2
"""For each rank, from which on phases overlap: one is busy with the network, one with memory.

With two hosts of two ranks on two processors, 64 MiB of all_reduce took 145 to 160 ms in slices
that overlap, and 121 to 139 as a whole; over a link of 10 Gbit/s 178, and 140 to 152; of 1 Gbit/s
595, and 624 to 666."""
PIPELINE_DEPTH = 3
"""Slices under way at once: one on the network, one before it, one behind it."""
MAX_SLICES = 512
"""Of one call, so that the numbers of its phases stay small."""

Allocate = Callable[[int], "bytearray | memoryview"]
"""Gives so many bytes."""
RanksByHost = tuple[tuple[int, ...], ...]
"""Ranks of the group by host, in order of the lowest of each."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A collective among some ranks of a group, from one rank's side."""

    number: int
    """The same on all its ranks, and of no other phase of the call."""
    ranks: tuple[int, ...]
    """Of the group; roots and blocks of `native` go by the place in here."""
    is_local: bool
    """Whether they are on one host."""
    request: CollectiveRequest
    depends_on: tuple[int, ...] = ()
    """The phases on this rank that end before this one begins."""


def group_by_host(hosts: Sequence[str]) -> RanksByHost:
    """Group the ranks by host; a rank without a host name is alone."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host or f"rank {rank}", []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


class SliceScratch:
    """Memory for the slices under way, whatever the size of the arrays; kept from call to call."""

    def __init__(self, allocate: Allocate = bytearray) -> None:
        self._allocate = allocate
        self._slices: dict[int, NDArray[np.uint8]] = {}

    def get_slice(self, nth: int, count: int, dtype: "np.dtype[np.generic]") -> Array:
        """Return memory of the n-th slice of a call, which the slice DEPTH before it has had."""
        nbytes = count * dtype.itemsize
        held = self._slices.get(nth % PIPELINE_DEPTH)
        if held is None or len(held) < nbytes:
            held = np.frombuffer(self._allocate(max(nbytes, 1)), np.uint8)
            self._slices[nth % PIPELINE_DEPTH] = held
        return held[:nbytes].view(dtype)


class HostLayout:
    """Position of one rank among the host groups of its group."""

    def __init__(self, ranks_by_host: RanksByHost, rank: int) -> None:
        self.ranks_by_host = ranks_by_host
        self.rank = rank
        self.local_ranks = next(island for island in ranks_by_host if rank in island)
        """The ranks of this host."""
        self.local_rank = self.local_ranks.index(rank)
        """This rank's place among them."""
        self.is_even = len({len(island) for island in ranks_by_host}) == 1

    @property
    def is_hierarchical(self) -> bool:
        """Whether there are several hosts, one of them with several ranks."""
        return len(self.ranks_by_host) > 1 and len(self.ranks_by_host) < sum(
            map(len, self.ranks_by_host)
        )

    @property
    def is_consecutive(self) -> bool:
        """Whether the ranks of each host, and the hosts, follow one another."""
        return [*chain.from_iterable(self.ranks_by_host)] == sorted(
            chain.from_iterable(self.ranks_by_host)
        )

    @property
    def counterparts(self) -> tuple[int, ...]:
        """The ranks at this rank's place of all islands, which are even."""
        return tuple(island[self.local_rank] for island in self.ranks_by_host)

    def choose_leaders(self, root: int | None = None) -> tuple[int, ...]:
        """Return the leader of each host group: its first rank, or the root."""
        return tuple(root if root in island else island[0] for island in self.ranks_by_host)

    def __str__(self) -> str:
        sizes = [len(island) for island in self.ranks_by_host]
        each = f"{sizes[0]}" if self.is_even else "/".join(map(str, sizes))
        return f"{len(sizes)} hosts of {each} ranks"


@dataclass(frozen=True, slots=True)
class _Slicer:
    """Slices of a call's arrays, which may overlap in time, and memory for them."""

    scratch: SliceScratch
    overlaps: bool

    def get_room(self, nth: int, count: int, dtype: "np.dtype[np.generic]") -> Array:
        """Return memory of the n-th slice, where none has two slices under way but to overlap."""
        return self.scratch.get_slice(nth if self.overlaps else 0, count, dtype)

    def cut(self, array: Array, multiple: int = 1) -> list[Array]:
        return [array[span] for span in self.cut_spans(array, multiple)]

    def cut_spans(self, array: Array, multiple: int = 1, blocks: int = 1) -> list[slice]:
        """Cut an array into slices, a `multiple` of elements each; at least one, even if empty.

        Where ranks have a block each, so many, the array is one of them.
        """
        total = array.nbytes * blocks
        nbytes = WHOLE_SLICE_BYTES
        if self.overlaps:
            nbytes = min(max(total // PIPELINE_DEPTH, SLICE_BYTES // 4), SLICE_BYTES)
        nbytes = max(nbytes, total // MAX_SLICES) // blocks
        step = max(nbytes // max(array.itemsize, 1) // multiple, 1) * multiple
        return [
            slice(start, min(start + step, len(array)))
            for start in range(0, max(len(array), 1), step)
        ]


def overlaps_phases(link_cost: LinkCost | None) -> bool:
    """Say whether phases run side by side: the same on every rank."""
    return link_cost is None or link_cost.processors >= OVERLAP_PROCESSORS


def plan_phases(
    layout: HostLayout, request: CollectiveRequest, scratch: SliceScratch, *, overlaps: bool = True
) -> list[Phase]:
    """Split a call into this rank's phases; phases within its host run in this order.

    None where the call goes over links as a whole. An AVG is a SUM here, to be divided at the end.
    """
    make = _PLANNERS.get(request.primitive.algorithm)
    if make is None or not layout.is_hierarchical or _count_bytes(layout, request) <= FLAT_BYTES:
        return []
    if request.op is ReduceOp.AVG:
        request = replace(request, op=ReduceOp.SUM)
    return make(layout, request, _Slicer(scratch, overlaps))


def describe_phases(layout: HostLayout, phases: Iterable[Phase], in_memory: bool) -> str:
    """Word how a call was carried out; for people."""
    inside = "in shared memory" if in_memory else "over links of the host"
    steps = dict.fromkeys(
        f"{phase.request.kind} {inside if phase.is_local else 'across hosts'}" for phase in phases
    )
    return f"{layout}: {', '.join(steps)}"


# ---------------------------------------------------------------- one array


def _all_reduce(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    (x,) = request.targets
    if not layout.is_even:
        return _all_reduce_by_leaders(layout, request, slicer)
    if x.nbytes <= SMALL_BYTES:
        return _all_reduce_whole(layout, request, x)
    size = len(layout.local_ranks)
    rest = len(x) % size
    made = _all_reduce_whole(layout, request, x[len(x) - rest :]) if rest else []
    body = x[: len(x) - rest]
    slices = []
    for nth, part in enumerate(slicer.cut(body, size)):
        blocks = _split(part, size)
        count = len(part) // size
        room = slicer.scratch.get_slice(nth, count, x.dtype)
        first = 2 + 3 * nth
        scattered = CollectiveRequest("reduce_scatter", x.dtype, count, blocks, [room], request.op)
        summed = CollectiveRequest("all_reduce", x.dtype, count, targets=[room], op=request.op)
        gathered = CollectiveRequest("all_gather", x.dtype, count, [room], blocks)
        slices.append(
            (
                [
                    Phase(first, layout.local_ranks, True, scattered),
                    Phase(first + 1, layout.counterparts, False, summed, (first,)),
                ],
                [Phase(first + 2, layout.local_ranks, True, gathered, (first + 1,))],
            )
        )
    return made + _stagger(slices)


def _all_reduce_whole(layout: HostLayout, request: CollectiveRequest, x: Array) -> list[Phase]:
    """Plan an all_reduce in the fewest phases: host sums first, on every rank."""
    summed = CollectiveRequest("all_reduce", x.dtype, len(x), targets=[x], op=request.op)
    return [
        Phase(0, layout.local_ranks, True, summed),
        Phase(1, layout.counterparts, False, summed, (0,)),
    ]


def _all_reduce_by_leaders(
    layout: HostLayout, request: CollectiveRequest, slicer: _Slicer
) -> list[Phase]:
    (x,) = request.targets
    heads = layout.choose_leaders()
    is_head = layout.rank in heads
    slices = []
    for nth, part in enumerate(slicer.cut(x)):
        collected, summed, spread = 3 * nth, 3 * nth + 1, 3 * nth + 2
        reduce = CollectiveRequest(
            "reduce", x.dtype, len(part), [part], [part] if is_head else [], request.op, root=0
        )
        whole = CollectiveRequest("all_reduce", x.dtype, len(part), targets=[part], op=request.op)
        broadcast = CollectiveRequest("broadcast", x.dtype, len(part), targets=[part], root=0)
        opening, closing = [], []
        alone = len(layout.local_ranks) == 1
        if not alone:
            opening.append(Phase(collected, layout.local_ranks, True, reduce))
            closing.append(
                Phase(spread, layout.local_ranks, True, broadcast, (summed,) if is_head else ())
            )
        if is_head:
            opening.append(
                Phase(
                    summed,
                    heads,
                    False,
                    whole,
                    _find_dependency(nth, 3, 1) if alone else (collected,),
                )
            )
        slices.append((opening, closing))
    return _stagger(slices)


def _broadcast(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    (x,) = request.targets
    heads = layout.choose_leaders(request.root)
    head = heads[layout.ranks_by_host.index(layout.local_ranks)]
    is_head = layout.rank == head
    slices = []
    for nth, part in enumerate(slicer.cut(x)):
        crossed, spread = 2 * nth, 2 * nth + 1
        across = CollectiveRequest(
            "broadcast", x.dtype, len(part), targets=[part], root=heads.index(request.root)
        )
        inside = replace(across, root=layout.local_ranks.index(head))
        opening, closing = [], []
        if is_head:
            opening.append(Phase(crossed, heads, False, across, _find_dependency(nth, 2, 0)))
        if len(layout.local_ranks) > 1:
            needs = (crossed,) if is_head and layout.rank != request.root else ()
            closing.append(Phase(spread, layout.local_ranks, True, inside, needs))
        slices.append((opening, closing))
    return _stagger(slices)


def _reduce(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    (x,) = request.sources
    heads = layout.choose_leaders(request.root)
    head = heads[layout.ranks_by_host.index(layout.local_ranks)]
    is_head, is_root = layout.rank == head, layout.rank == request.root
    alone = len(layout.local_ranks) == 1
    made = []
    parts = slicer.cut(x)
    results = slicer.cut(request.targets[0]) if is_root else parts
    for nth, (part, result) in enumerate(zip(parts, results, strict=True)):
        collected, summed = 2 * nth, 2 * nth + 1
        earlier = _find_dependency(nth, 2, 1)  # has read the room that this slice takes
        partial = part
        if not alone:
            if is_head:
                partial = result if is_root else slicer.get_room(nth, len(part), x.dtype)
            inside = CollectiveRequest(
                "reduce",
                x.dtype,
                len(part),
                [part],
                [partial] if is_head else [],
                request.op,
                layout.local_ranks.index(head),
            )
            made.append(
                Phase(collected, layout.local_ranks, True, inside, earlier if is_head else ())
            )
        if is_head:
            across = CollectiveRequest(
                "reduce",
                x.dtype,
                len(part),
                [partial],
                [result] if is_root else [],
                request.op,
                heads.index(request.root),
            )
            made.append(Phase(summed, heads, False, across, earlier if alone else (collected,)))
    return made


def _barrier(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    heads = layout.choose_leaders()
    made = []
    if len(layout.local_ranks) > 1:
        made.append(Phase(0, layout.local_ranks, True, request))
    if layout.rank in heads:
        made.append(Phase(1, heads, False, request, tuple(phase.number for phase in made)))
    if len(layout.local_ranks) > 1:
        made.append(Phase(2, layout.local_ranks, True, request, (made[-1].number,)))
    return made


# ---------------------------------------------------------------- blocks


def _all_gather(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    if not layout.is_even:
        return []
    (x,) = request.sources
    blocks = _split_blocks(request.targets, sum(map(len, layout.ranks_by_host)))
    width = 1 + len(layout.ranks_by_host)
    slices = []
    for nth, span in enumerate(slicer.cut_spans(x, blocks=len(blocks))):
        first = width * nth
        count = len(x[span])
        fetched = [blocks[rank][span] for rank in layout.counterparts]
        across = CollectiveRequest("all_gather", x.dtype, count, [x[span]], fetched)
        opening = [
            Phase(first, layout.counterparts, False, across, _find_dependency(nth, width, 0))
        ]
        closing = [
            Phase(
                first + 1 + at,
                layout.local_ranks,
                True,
                CollectiveRequest(
                    "all_gather",
                    x.dtype,
                    count,
                    [fetched[at]],
                    [blocks[rank][span] for rank in island],
                ),
                (first,),
            )
            for at, island in enumerate(layout.ranks_by_host)
        ]
        slices.append((opening, closing))
    return _stagger(slices)


def _reduce_scatter(layout: HostLayout, request: CollectiveRequest, slicer: _Slicer) -> list[Phase]:
    if not layout.is_even:
        return []
    (result,) = request.targets
    blocks = request.sources
    width = 1 + len(layout.ranks_by_host)
    made = []
    for nth, span in enumerate(slicer.cut_spans(result, blocks=len(blocks))):
        first = width * nth
        count = len(result[span])
        room = slicer.get_room(nth, count * len(layout.ranks_by_host), result.dtype)
        partial = _split(room, len(layout.ranks_by_host))
        for at, island in enumerate(layout.ranks_by_host):
            inside = CollectiveRequest(
                "reduce_scatter",
                result.dtype,
                count,
                [blocks[rank][span] for rank in island],
                [partial[at]],
                request.op,
            )
            earlier = _find_dependency(
                nth, width, width - 1
            )  # has read the room that this slice takes
            made.append(Phase(first + at, layout.local_ranks, True, inside, earlier))
        across = CollectiveRequest(
            "reduce_scatter", result.dtype, count, partial, [result[span]], request.op
        )
        last = first + width - 1
        made.append(Phase(last, layout.counterparts, False, across, tuple(range(first, last))))
    return made


_PLANNERS: dict[str, Callable[[HostLayout, CollectiveRequest, _Slicer], list[Phase]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "barrier": _barrier,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
"""By algorithm; the others go over links as a whole."""


# ---------------------------------------------------------------- slices


def _find_dependency(nth: int, width: int, index: int) -> tuple[int, ...]:
    """Name the phase at the same place of the slice DEPTH before the n-th, if there is one."""
    return (width * (nth - PIPELINE_DEPTH) + index,) if nth >= PIPELINE_DEPTH else ()


def _stagger(slices: Sequence[tuple[list[Phase], list[Phase]]]) -> list[Phase]:
    """Open slices ahead of closing earlier slices, so that DEPTH of them are under way."""
    ahead = PIPELINE_DEPTH - 1
    turns = chain.from_iterable(
        (
            slices[at][0] if at < len(slices) else [],
            slices[at - ahead][1] if at >= ahead else [],
        )
        for at in range(len(slices) + ahead)
    )
    return [phase for turn in turns for phase in turn]


def _split(array: Array, parts: int) -> list[Array]:
    """Cut into equal parts."""
    each = len(array) // parts
    return [array[at * each : (at + 1) * each] for at in range(parts)]


def _count_bytes(layout: HostLayout, request: CollectiveRequest) -> int:
    """Return the bytes of the whole array, or of all ranks' blocks: the same on every rank."""
    nbytes = 0 if request.dtype is None else request.count * request.dtype.itemsize
    blocks = sum(map(len, layout.ranks_by_host)) if request.primitive.scales_with_size else 1
    return nbytes * blocks


def _split_blocks(arrays: Sequence[Array], size: int) -> list[Array]:
    """Return an array for each rank, from as many arrays or from one that holds all."""
    return list(arrays) if len(arrays) == size else _split(arrays[0], size)
