"""Plan of a call over links: its algorithm and its slices. Pure, except for the arrays.

Large reductions are cut into slices that run side by side, so that network and reduction overlap
and scratch memory stays small whatever the size of the arrays. Pure movement needs no slices:
messages are cut into frames anyway.

`ordered` asks for the bits that do not depend on any of that; an AVG is then divided already.
`link_cost` is the measured cost of the links, the same on every rank; None: not measured.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import ParamSpec

import numpy as np

from allhands.collectives.algorithms import select
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.schedule import Schedule

P = ParamSpec("P")

SLICE_BYTES = 2 << 20
"""For each rank, of an array that is reduced whole: so long are most messages of the call.

Over raw sockets, 64 MiB on 4 ranks of 2 cores: 185 ms with 1 MiB, 150 with 2, 140 with 4; the
shorter ones fill a wire better, and four of them are under way at once.
"""
SLICED_RANKS = 4
"""With more ranks messages become shorter, not slices longer."""
BLOCK_SLICE_BYTES = 2 << 20
"""Of each block where a rank's scratch holds blocks."""


def all_reduce(
    rank: int, size: int, array: Array, ordered: bool = False, link_cost: LinkCost | None = None
) -> list[Part]:
    """In place on the 1-D `array`."""
    choice = select.select_all_reduce(size, array.nbytes, ordered, link_cost)
    build = choice.build
    return [
        Part(
            _build_schedule(build, rank, size, len(part)),
            _make_empty_buffer(part),
            _wrap_array(part),
            choice.name,
        )
        for part in _cut(array, SLICE_BYTES * min(size, SLICED_RANKS))
    ]


def broadcast(
    rank: int, size: int, array: Array, root: int, link_cost: LinkCost | None = None
) -> list[Part]:
    """In place on the 1-D `array`."""
    choice = select.select_broadcast(size, array.nbytes, link_cost)
    schedule = _build_schedule(choice.build, rank, size, len(array), root)
    return [Part(schedule, _make_empty_buffer(array), _wrap_array(array), choice.name)]


def reduce(
    rank: int,
    size: int,
    source: Array,
    target: Array | None,
    root: int,
    ordered: bool = False,
) -> list[Part]:
    """From 1-D `source` into `target` at the root, which may be the same array there."""
    parts = _cut(source, BLOCK_SLICE_BYTES)
    targets = [None] * len(parts) if target is None else _cut(target, BLOCK_SLICE_BYTES)
    return [
        reduce_whole(rank, size, part, place, root, ordered)
        for part, place in zip(parts, targets, strict=True)
    ]


def reduce_whole(
    rank: int,
    size: int,
    source: Array,
    target: Array | None,
    root: int,
    ordered: bool = False,
) -> Part:
    """As `reduce`, in one part."""
    choice = select.select_reduce(size, source.nbytes, ordered)
    schedule = _build_schedule(choice.build, rank, size, len(source), root)
    place = _take_empty(source) if target is None else target
    return Part(schedule, _wrap_array(source), _wrap_array(place), choice.name)


def gather(rank: int, size: int, source: Array, targets: Sequence[Array], root: int) -> list[Part]:
    """From 1-D `source` into the `targets` at the root, none elsewhere."""
    choice = select.select_gather(size, source.nbytes * size)
    schedule = _build_schedule(choice.build, rank, size, (len(source),) * size, root)
    return [Part(schedule, _wrap_array(source), Buffer(targets, source.dtype), choice.name)]


def scatter(rank: int, size: int, sources: Sequence[Array], target: Array, root: int) -> list[Part]:
    """From the `sources` at the root, none elsewhere, into the 1-D `target`."""
    choice = select.select_scatter(size, target.nbytes * size)
    schedule = _build_schedule(choice.build, rank, size, (len(target),) * size, root)
    return [Part(schedule, Buffer(sources, target.dtype), _wrap_array(target), choice.name)]


def all_gather(
    rank: int, size: int, source: Array, targets: Sequence[Array], link_cost: LinkCost | None = None
) -> list[Part]:
    """From 1-D `source` into `targets`, end to end one block for each rank."""
    choice = select.select_all_gather(size, source.nbytes * size, link_cost)
    schedule = _build_schedule(choice.build, rank, size, (len(source),) * size)
    return [Part(schedule, _wrap_array(source), Buffer(targets, source.dtype), choice.name)]


def reduce_scatter(
    rank: int, size: int, sources: Sequence[Array], target: Array, ordered: bool = False
) -> list[Part]:
    """From `sources`, one block for each rank, into the 1-D `target`."""
    choice = select.select_reduce_scatter(size, target.nbytes * size, ordered)
    step = max(BLOCK_SLICE_BYTES // max(target.itemsize, 1), 1)
    parts = []
    for start in range(0, max(len(target), 1), step):
        stop = min(start + step, len(target))
        blocks = Buffer(sources, target.dtype).slice_arrays(start, stop)
        schedule = _build_schedule(choice.build, rank, size, (stop - start,) * size)
        parts.append(Part(schedule, blocks, _wrap_array(target[start:stop]), choice.name))
    return parts


def all_gather_blocks(
    rank: int,
    size: int,
    source: Array,
    target: Array,
    counts: Sequence[int],
    link_cost: LinkCost | None = None,
) -> Part:
    """From 1-D `source` into `target`, which holds blocks of so many elements end to end."""
    choice = select.select_all_gather(size, target.nbytes, link_cost)
    schedule = _build_schedule(choice.build, rank, size, tuple(counts))
    return Part(schedule, _wrap_array(source), _wrap_array(target), choice.name)


def reduce_scatter_blocks(
    rank: int, size: int, source: Array, target: Array, counts: Sequence[int], ordered: bool = False
) -> Part:
    """From `source`, which holds blocks of so many elements end to end, into the 1-D `target`."""
    choice = select.select_reduce_scatter(size, source.nbytes, ordered)
    schedule = _build_schedule(choice.build, rank, size, tuple(counts))
    return Part(schedule, _wrap_array(source), _wrap_array(target), choice.name)


def all_to_all(
    rank: int,
    size: int,
    sources: Sequence[Array],
    targets: Sequence[Array],
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    dtype: "np.dtype[np.generic]",
) -> list[Part]:
    """From `sources` into `targets`, each end to end one block for each rank."""
    # Ranks may give one another different amounts: no rank can tell that all are small.
    choice = select.select_all_to_all(size, None)
    schedule = _build_schedule(choice.build, rank, size, tuple(send_counts), tuple(recv_counts))
    return [Part(schedule, Buffer(sources, dtype), Buffer(targets, dtype), choice.name)]


def barrier(rank: int, size: int) -> list[Part]:
    """Of nothing at all."""
    nothing = Buffer([], np.dtype(np.uint8))
    choice = select.select_barrier(size)
    return [Part(_build_schedule(choice.build, rank, size), nothing, nothing, choice.name)]


def build_parts(
    request: CollectiveRequest,
    rank: int,
    size: int,
    ordered: bool = False,
    link_cost: LinkCost | None = None,
) -> list[Part]:
    """Build the parts of any request."""
    sources, targets, root = request.sources, request.targets, request.root
    match request.primitive.algorithm:
        case "barrier":
            return barrier(rank, size)
        case "all_reduce":
            return all_reduce(rank, size, targets[0], ordered, link_cost)
        case "reduce":
            target = targets[0] if targets else None
            return reduce(rank, size, sources[0], target, root, ordered)
        case "broadcast":
            return broadcast(rank, size, targets[0], root, link_cost)
        case "gather":
            return gather(rank, size, sources[0], targets, root)
        case "scatter":
            return scatter(rank, size, sources, targets[0], root)
        case "all_gather":
            return all_gather(rank, size, sources[0], targets, link_cost)
        case "reduce_scatter":
            return reduce_scatter(rank, size, sources, targets[0], ordered)
        case "all_to_all":
            assert request.send is not None
            assert request.recv is not None
            assert request.dtype is not None
            return all_to_all(
                rank, size, sources, targets, request.send, request.recv, request.dtype
            )
        case unknown:
            raise ValueError(f"no plan is known for {unknown}")


def _build_schedule(
    build: Callable[P, Schedule], *arguments: P.args, **keywords: P.kwargs
) -> Schedule:
    """Build a schedule once for all slices and calls that are alike."""
    return _build_cached(build, arguments)


@lru_cache(maxsize=256)
def _build_cached(build: Callable[..., Schedule], arguments: tuple[Hashable, ...]) -> Schedule:
    return build(*arguments)


def _cut(array: Array, nbytes: int) -> list[Array]:
    """Cut into runs of about `nbytes`; at least one, even if empty."""
    step = max(nbytes // max(array.itemsize, 1), 1)
    return [array[start : start + step] for start in range(0, max(len(array), 1), step)]


def _wrap_array(array: Array) -> Buffer:
    return Buffer([array], array.dtype)


def _make_empty_buffer(array: Array) -> Buffer:
    return Buffer([], array.dtype)


def _take_empty(array: Array) -> Array:
    return array[:0]
