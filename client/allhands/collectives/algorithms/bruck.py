"""Bruck's all-gather: the fewest rounds for any size; for small blocks."""

from collections.abc import Sequence

from allhands.collectives.algorithms.blocks import join_spans, lay_blocks, prepend_copy
from allhands.collectives.schedule import Area, Copy, Recv, Round, Schedule, Send, Span


def all_gather(rank: int, size: int, counts: Sequence[int]) -> Schedule:
    """Take own block from INPUT and everybody's to OUTPUT, in max(1, ceil(log2(size))) rounds.

    What each rank holds doubles from round to round; its own block it brings to OUTPUT when another
    rank's has come. Blocks lie at their final places from the
    start, so there is no rotation at the end; a run of them that wraps around is two messages.
    Source: Bruck, Ho, Kipnis, Upfal & Weathersby, "Efficient algorithms for all-to-all
    communications in multiport message-passing systems", IEEE TPDS 8 (1997).
    """
    parts = lay_blocks(Area.OUTPUT, counts)
    own = Copy(Span(Area.INPUT, 0, counts[rank]), parts[rank])
    if size == 1:
        return Schedule((Round(copies=(own,)),))
    first, *later = build_rounds(rank, size, parts, own.source)
    return Schedule((first, *prepend_copy(own, later)))


def build_rounds(rank: int, size: int, parts: Sequence[Span], own: Span) -> list[Round]:
    """Return the rounds in which every rank's block comes to its place among `parts`.

    The first sends this rank's from where it is, `own`; it must be in its place by the second.
    """

    def join_arc(first: int, count: int) -> tuple[Span, ...]:
        """The blocks of `count` ranks from `first` on, around the circle."""
        first %= size
        straight, wrapped = parts[first : first + count], parts[: max(0, first + count - size)]
        return tuple(join_spans(run) for run in (straight, wrapped) if run)

    made = []
    held = 1  # the blocks of `held` ranks from this one on
    while held < size:
        more = min(held, size - held)
        to, source = (rank - held) % size, (rank + held) % size
        given = (own,) if held == 1 else join_arc(rank, more)
        made.append(
            Round(
                sends=tuple(Send(to, span) for span in given),
                recvs=tuple(Recv(source, span) for span in join_arc(source, more)),
            )
        )
        held += more
    return made
