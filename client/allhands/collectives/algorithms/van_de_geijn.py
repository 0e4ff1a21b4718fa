"""Broadcast of large arrays: a scatter, then an all_gather."""

from allhands.collectives.algorithms.blocks import join_spans, lay_blocks, split_evenly
from allhands.collectives.algorithms.ring import circulate
from allhands.collectives.algorithms.tree import is_child, is_parent, list_distances
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span


def broadcast(rank: int, size: int, length: int, root: int) -> Schedule:
    """Scatter the root's OUTPUT along a binomial tree, then all-gather it around a ring.

    ceil(log2(size)) + size-1 rounds; no rank sends more than about 2*length elements, where a
    root of a binomial tree sends length*log2(size).
    Source: Barnett, Shuler, Gupta, Payne, van de Geijn & Watts, "Interprocessor collective
    communication library (InterCom)", SHPCC 1994; Thakur et al. (2005).
    """
    place = (rank - root) % size
    parts = lay_blocks(Area.OUTPUT, split_evenly(length, size))

    def join_subtree(top: int, distance: int) -> Span:
        """Return the parts of the child at that distance and of its subtree."""
        return join_spans(parts[top : top + distance])

    scatter = []
    for distance in reversed(list_distances(size)):
        if is_parent(place, distance, size):
            below = join_subtree(place + distance, distance)
            scatter.append(Round(sends=(Send((rank + distance) % size, below),)))
        elif is_child(place, distance):
            own = join_subtree(place, distance)
            scatter.append(Round(recvs=(Recv((rank - distance) % size, own),)))
        else:
            scatter.append(Round())
    # Place p holds part p now. The root has them all: nothing need come back to it.
    passed = tuple(
        Round(
            sends=step.sends if place != size - 1 else (),
            recvs=step.recvs if place != 0 else (),
        )
        for step in circulate(rank, size, parts, held=place)
    )
    return Schedule((*scatter, *passed))
