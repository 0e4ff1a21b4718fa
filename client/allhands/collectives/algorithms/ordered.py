"""Deterministic reductions: bits of the result do not depend on the route.

Every element is folded in one go from all contributions, from the left in the order of ranks: the
definition shared by all deterministic routes (shared memory, any slicing). That moves as much data
as a ring, in two rounds, and needs room for every rank's contribution to a block.
"""

from collections.abc import Sequence
from dataclasses import replace

from allhands.collectives.algorithms import bruck
from allhands.collectives.algorithms.blocks import lay_blocks, split_evenly
from allhands.collectives.schedule import Area, Copy, Fold, Recv, Round, Schedule, Send, Span


def all_reduce(rank: int, size: int, length: int) -> Schedule:
    """In place on OUTPUT: every rank folds a block, and gives it to all."""
    places = lay_blocks(Area.OUTPUT, split_evenly(length, size))
    collect, contributions = _collect(rank, size, places, places[rank])
    spread = Round(
        folds=(Fold(contributions, places[rank]),),
        sends=tuple(Send(peer, places[rank]) for peer in _list_others(rank, size)),
        recvs=tuple(Recv(peer, places[peer]) for peer in _list_others(rank, size)),
    )
    return Schedule((collect, spread), size * len(places[rank]))


def all_reduce_gathered(rank: int, size: int, length: int) -> Schedule:
    """In place on OUTPUT: every rank gets all contributions and folds them; for small arrays.

    The result is the same everywhere, since all fold the same in the same order.
    """
    whole = Span(Area.OUTPUT, 0, length)
    parts = lay_blocks(Area.SCRATCH, [length] * size)
    first, *later = bruck.build_rounds(rank, size, parts, whole) or [Round()]
    begin = replace(first, copies=(Copy(whole, parts[rank]),))
    return Schedule((begin, *later, Round(folds=(Fold(tuple(parts), whole),))), size * length)


def reduce(rank: int, size: int, length: int, root: int) -> Schedule:
    """From INPUT to OUTPUT at the root: every rank folds a block, and gives it to the root."""
    counts = split_evenly(length, size)
    given = lay_blocks(Area.INPUT, counts)
    collect, contributions = _collect(rank, size, given, given[rank])
    if rank != root:
        held = Span(Area.SCRATCH, size * counts[rank], (size + 1) * counts[rank])
        give = Round(folds=(Fold(contributions, held),), sends=(Send(root, held),))
        return Schedule((collect, give), held.stop)
    places = lay_blocks(Area.OUTPUT, counts)
    take = Round(
        folds=(Fold(contributions, places[rank]),),
        recvs=tuple(Recv(peer, places[peer]) for peer in _list_others(rank, size)),
    )
    return Schedule((collect, take), size * counts[rank])


def reduce_scatter(rank: int, size: int, counts: Sequence[int]) -> Schedule:
    """From blocks of INPUT to own block in OUTPUT."""
    given = lay_blocks(Area.INPUT, counts)
    collect, contributions = _collect(rank, size, given, given[rank])
    fold = Round(folds=(Fold(contributions, Span(Area.OUTPUT, 0, counts[rank])),))
    return Schedule((collect, fold), size * counts[rank])


def _collect(
    rank: int, size: int, places: Sequence[Span], own: Span
) -> tuple[Round, tuple[Span, ...]]:
    """Send every rank its block; return the spans of the contributions to this rank's block."""
    length = len(own)
    contributions = tuple(
        own if peer == rank else Span(Area.SCRATCH, peer * length, (peer + 1) * length)
        for peer in range(size)
    )
    step = Round(
        sends=tuple(Send(peer, places[peer]) for peer in _list_others(rank, size)),
        recvs=tuple(Recv(peer, contributions[peer]) for peer in _list_others(rank, size)),
    )
    return step, contributions


def _list_others(rank: int, size: int) -> list[int]:
    """Return the other ranks in cyclic order, starting after this rank."""
    return [(rank + step) % size for step in range(1, size)]
