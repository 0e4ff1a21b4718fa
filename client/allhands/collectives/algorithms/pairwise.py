"""Pairs: in round i each rank sends i ranks ahead and receives from i ranks behind.

Every block goes straight from the one that has it to the one that wants it.
Source: Thakur, Rabenseifner & Gropp (2005).
"""

from collections.abc import Sequence

from allhands.collectives.algorithms.blocks import lay_blocks, prepend_copy
from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span


def reduce_scatter(rank: int, size: int, counts: Sequence[int]) -> Schedule:
    """Combine everybody's INPUT, of all blocks, and keep own block in OUTPUT.

    max(1, size-1) rounds, no scratch, and as much data as the ring.
    """
    given = lay_blocks(Area.INPUT, counts)
    own = Span(Area.OUTPUT, 0, counts[rank])
    rounds = tuple(
        Round(
            sends=(Send(ahead, given[ahead]),),
            recvs=(Recv(behind, own, reduces=True),),
        )
        for ahead, behind in _list_pairs(rank, size)
    )
    return Schedule(prepend_copy(Copy(given[rank], own), rounds))


def all_to_all(
    rank: int,
    size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    *,
    in_one_round: bool,
) -> Schedule:
    """Send block i of INPUT to rank i, and take block i of OUTPUT from it.

    One round with `in_one_round`, which waits for the network once; else max(1, size-1) rounds, in
    which no rank is flooded by all the others at the same time.
    """
    given = lay_blocks(Area.INPUT, send_counts)
    wanted = lay_blocks(Area.OUTPUT, recv_counts)
    rounds = tuple(
        Round(sends=(Send(ahead, given[ahead]),), recvs=(Recv(behind, wanted[behind]),))
        for ahead, behind in _list_pairs(rank, size)
    )
    if in_one_round:
        sends = tuple(send for step in rounds for send in step.sends)
        recvs = tuple(recv for step in rounds for recv in step.recvs)
        rounds = (Round(sends=sends, recvs=recvs),)
    # The own block is not sent, and comes to its place when another rank's has come.
    return Schedule((*rounds[:1], *prepend_copy(Copy(given[rank], wanted[rank]), rounds[1:])))


def _list_pairs(rank: int, size: int) -> list[tuple[int, int]]:
    return [((rank + step) % size, (rank - step) % size) for step in range(1, size)]
