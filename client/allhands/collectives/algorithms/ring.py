"""Rings: each rank sends to the next and receives from the one before, so no link is shared.

Each moves the least data an algorithm of its kind can, in a number of rounds that grows with the
group: for large arrays.
"""

from collections.abc import Sequence

from allhands.collectives.algorithms.blocks import lay_blocks, prepend_copy, split_evenly
from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span


def all_reduce(rank: int, size: int, length: int) -> Schedule:
    """Reduce-scatter, then all-gather, in place on OUTPUT, in 2(size-1) rounds.

    Each rank sends 2*length*(size-1)/size elements, the least possible. Every part is combined
    along one path and then copied, so all ranks hold the same bits.
    Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", J. Parallel Distrib. Comput. 69 (2009).
    """
    parts = lay_blocks(Area.OUTPUT, split_evenly(length, size))
    following, preceding = _find_neighbours(rank, size)
    reducing = tuple(
        Round(
            sends=(Send(following, parts[(rank - 1 - step) % size]),),
            recvs=(Recv(preceding, parts[(rank - 2 - step) % size], reduces=True),),
        )
        for step in range(size - 1)
    )
    return Schedule(reducing + circulate(rank, size, parts, held=rank))


def all_gather(rank: int, size: int, counts: Sequence[int]) -> Schedule:
    """Take own block from INPUT and everybody's to OUTPUT, in max(1, size-1) rounds.

    Each rank sends every block but its successor's: the least a ring can. Its own it brings to
    OUTPUT when another rank's block has come.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
    """
    parts = lay_blocks(Area.OUTPUT, counts)
    own = Copy(Span(Area.INPUT, 0, counts[rank]), parts[rank])
    if size == 1:
        return Schedule((Round(copies=(own,)),))
    first, *others = circulate(rank, size, parts, held=rank)
    following, _ = _find_neighbours(rank, size)
    begun = Round(sends=(Send(following, own.source),), recvs=first.recvs)
    return Schedule((begun, *prepend_copy(own, others)))


def reduce_scatter(rank: int, size: int, counts: Sequence[int]) -> Schedule:
    """Combine everybody's INPUT, of all blocks, and keep own block in OUTPUT.

    max(1, size-1) rounds. Partial results wander through two scratch parts, one that is being
    sent and one that fills, so INPUT stays as it was.
    Source: the first half of `all_reduce` above.
    """
    given = lay_blocks(Area.INPUT, counts)
    result = Span(Area.OUTPUT, 0, counts[rank])
    if size == 1:
        return Schedule((Round(copies=(Copy(given[0], result),)),))
    following, preceding = _find_neighbours(rank, size)
    room = max(counts)
    rounds = []
    outgoing = given[(rank - 1) % size]
    for step in range(size - 1):
        own = given[(rank - 2 - step) % size]
        start = room * (step % 2)
        is_last = step == size - 2  # and then `own` is this rank's block
        partial = result if is_last else Span(Area.SCRATCH, start, start + len(own))
        rounds.append(
            Round(
                copies=(Copy(own, partial),),
                sends=(Send(following, outgoing),),
                recvs=(Recv(preceding, partial, reduces=True),),
            )
        )
        outgoing = partial
    return Schedule(tuple(rounds), scratch=room * min(2, size - 2))


def circulate(rank: int, size: int, parts: Sequence[Span], held: int) -> tuple[Round, ...]:
    """Pass the parts on until everybody has all; this rank begins with part `held`.

    The next rank must begin with the next part.
    """
    following, preceding = _find_neighbours(rank, size)
    return tuple(
        Round(
            sends=(Send(following, parts[(held - step) % size]),),
            recvs=(Recv(preceding, parts[(held - 1 - step) % size]),),
        )
        for step in range(size - 1)
    )


def _find_neighbours(rank: int, size: int) -> tuple[int, int]:
    return (rank + 1) % size, (rank - 1) % size
