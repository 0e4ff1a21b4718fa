"""Choice of a call's algorithm: pure, so that ranks agree without communication.

Everything the choice looks at must be the same on every rank of the call. With a measured
`link_cost` the model of `cost` decides, else thresholds that were measured between the ranks of one
host.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, ParamSpec

from allhands.collectives.algorithms import (
    bruck,
    cost,
    dissemination,
    doubling,
    flat,
    halving,
    ordered,
    pairwise,
    ring,
    tree,
    van_de_geijn,
)
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.schedule import Schedule
from allhands_proto.quick_dataclass import dataclass

# Up to here the number of rounds decides, above it the amount of data. Over gRPC on one host a
# message takes 115 us however short, and 64 KiB take about as long again to move at 0.5 GB/s.
SMALL_BYTES = 64 * 1024
# Of all_reduce, over raw sockets, 4 ranks on 2 cores, microseconds by ring, doubling and
# halving-doubling: 128 KiB 3,900, 2,900, 3,500; 512 KiB 5,100, 4,000, 4,000; 1 MiB 7,700, 7,600,
# 6,600; 4 MiB 19,000, 22,000, 13,600; 64 MiB by ring 150,000, by halving-doubling 122,000.
DOUBLING_BYTES = 1 << 20
"""Bytes that doubling may send, all rounds together."""
MEDIUM_BYTES = 64 << 20
# Two ranks send as much by doubling as by a ring, in one round of two: 512 KiB 1,600 to 1,460 us,
# 4 MiB 3,900 to 2,350. Above that the ring's reductions, half of doubling's, count.
PAIR_BYTES = 4 << 20

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Choice(Generic[P]):
    """An algorithm and its name for people."""

    name: str
    build: Callable[P, Schedule]
    """Called with (rank, size, ...) as the algorithm is."""


Whole = Choice[[int, int, int]]
"""build(rank, size, length)"""
Rooted = Choice[[int, int, int, int]]
"""build(rank, size, length, root)"""
Blocks = Choice[[int, int, Sequence[int]]]
"""build(rank, size, counts)"""
RootedBlocks = Choice[[int, int, Sequence[int], int]]
"""build(rank, size, counts, root)"""
Exchange = Choice[[int, int, Sequence[int], Sequence[int]]]
"""build(rank, size, send_counts, recv_counts)"""


_DOUBLING: Whole = Choice("doubling", doubling.all_reduce)
_HALVING: Whole = Choice("halving_doubling", halving.all_reduce)
_RING: Whole = Choice("ring", ring.all_reduce)
_ONE_ROUND: Exchange = Choice("together", partial(pairwise.all_to_all, in_one_round=True))
_PAIRWISE: Exchange = Choice("pairwise", partial(pairwise.all_to_all, in_one_round=False))


def select_all_reduce(
    size: int, nbytes: int, is_ordered: bool = False, link_cost: LinkCost | None = None
) -> Whole:
    """Choose for an array of `nbytes`."""
    if is_ordered and nbytes * size <= SMALL_BYTES:
        return Choice("gathered", ordered.all_reduce_gathered)
    if is_ordered:
        return Choice("ordered", ordered.all_reduce)
    if link_cost is not None:
        costs = {
            _DOUBLING: cost.estimate_doubling(link_cost, size, nbytes),
            _HALVING: cost.estimate_halving_doubling(link_cost, size, nbytes),
            _RING: cost.estimate_ring(link_cost, size, nbytes),
        }
        if nbytes > MEDIUM_BYTES:  # so much at once, in ever other pairs, a network may not bear
            del costs[_HALVING]
        return min(costs, key=lambda choice: costs[choice])
    rounds = (size - 1).bit_length()  # doubling sends the whole array in each
    if nbytes * rounds <= (PAIR_BYTES if size == 2 else DOUBLING_BYTES):
        return _DOUBLING
    if nbytes <= MEDIUM_BYTES and size.bit_count() == 1:
        return _HALVING
    return _RING


def select_broadcast(size: int, nbytes: int, link_cost: LinkCost | None = None) -> Rooted:
    """Choose for an array of `nbytes`; two ranks have nothing to pass on."""
    if link_cost is not None:
        is_short = cost.estimate_tree(link_cost, size, nbytes) <= cost.estimate_van_de_geijn(
            link_cost, size, nbytes
        )
    else:
        is_short = nbytes <= SMALL_BYTES
    if is_short or size <= 2:
        return Choice("tree", tree.broadcast)
    return Choice("van_de_geijn", van_de_geijn.broadcast)


def select_reduce(size: int, nbytes: int, is_ordered: bool = False) -> Rooted:
    """Choose for an array of `nbytes`."""
    if is_ordered:
        return Choice("ordered", ordered.reduce)
    return Choice("tree", tree.reduce)


def select_all_gather(size: int, nbytes: int, link_cost: LinkCost | None = None) -> Blocks:
    """Choose for a result of `nbytes`, all blocks together."""
    if link_cost is not None:
        is_short = cost.estimate_bruck(link_cost, size, nbytes) < cost.estimate_ring_all_gather(
            link_cost, size, nbytes
        )
    else:
        is_short = nbytes <= SMALL_BYTES
    if is_short:
        return Choice("bruck", bruck.all_gather)
    return Choice("ring", ring.all_gather)


def select_reduce_scatter(size: int, nbytes: int, is_ordered: bool = False) -> Blocks:
    """Choose for an input of `nbytes`, all blocks together.

    Both take as many rounds; the small ones save copies, the large ones keep to one link.
    """
    if is_ordered:
        return Choice("ordered", ordered.reduce_scatter)
    if nbytes <= SMALL_BYTES:
        return Choice("pairwise", pairwise.reduce_scatter)
    return Choice("ring", ring.reduce_scatter)


def select_gather(size: int, nbytes: int) -> RootedBlocks:
    """Choose for a result of `nbytes`, all blocks together."""
    return Choice("flat", flat.gather)


def select_scatter(size: int, nbytes: int) -> RootedBlocks:
    """Choose for an input of `nbytes`, all blocks together."""
    return Choice("flat", flat.scatter)


def select_all_to_all(size: int, nbytes: int | None) -> Exchange:
    """Choose for `nbytes` that each rank sends; None where ranks send different amounts.

    With uneven splits no rank knows the others' amounts, and all must list the same rounds.
    """
    together = nbytes is not None and nbytes <= SMALL_BYTES
    return _ONE_ROUND if together else _PAIRWISE


def select_barrier(size: int) -> Choice[[int, int]]:
    """Choose for a barrier."""
    return Choice("dissemination", dissemination.barrier)
