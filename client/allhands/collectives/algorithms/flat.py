"""Flat algorithms: a single round between the root and every rank.

No rank forwards blocks of another: the root's link is the limit either way, and a tree would make
ranks hold blocks that are not theirs.
"""

from collections.abc import Sequence

from allhands.collectives.algorithms.blocks import lay_blocks
from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span


def gather(rank: int, size: int, counts: Sequence[int], root: int) -> Schedule:
    """Take own block from INPUT, and everybody's to OUTPUT at the root."""
    own = Span(Area.INPUT, 0, counts[rank])
    if rank != root:
        return Schedule((Round(sends=(Send(root, own),)),))
    places = lay_blocks(Area.OUTPUT, counts)
    recvs = tuple(Recv(peer, places[peer]) for peer in range(size) if peer != root)
    return Schedule((Round(copies=(Copy(own, places[root]),), recvs=recvs),))


def scatter(rank: int, size: int, counts: Sequence[int], root: int) -> Schedule:
    """Take all blocks from INPUT at the root, and own block to OUTPUT."""
    own = Span(Area.OUTPUT, 0, counts[rank])
    if rank != root:
        return Schedule((Round(recvs=(Recv(root, own),)),))
    given = lay_blocks(Area.INPUT, counts)
    sends = tuple(Send(peer, given[peer]) for peer in range(size) if peer != root)
    return Schedule((Round(copies=(Copy(given[root], own),), sends=sends),))
