"""A barrier among ranks, without the coordinator."""

from allhands.collectives.algorithms.tree import list_distances
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span


def barrier(rank: int, size: int) -> Schedule:
    """Hear, through others or directly, from every rank, in ceil(log2(size)) empty messages.

    In each round the number of ranks that a rank has heard of doubles.
    Source: Hensgen, Finkel & Manber, "Two algorithms for barrier synchronization", Int. J.
    Parallel Program. 17 (1988).
    """
    nothing = Span(Area.OUTPUT, 0, 0)
    return Schedule(
        tuple(
            Round(
                sends=(Send((rank + distance) % size, nothing),),
                recvs=(Recv((rank - distance) % size, nothing),),
            )
            for distance in list_distances(size)
        )
    )
