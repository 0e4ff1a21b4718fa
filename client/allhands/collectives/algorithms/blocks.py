"""Division of a buffer into the blocks that algorithms move."""

from collections.abc import Sequence
from itertools import accumulate

from allhands.collectives.schedule import Area, Copy, Round, Span


def lay_blocks(area: Area, counts: Sequence[int]) -> tuple[Span, ...]:
    """Lay blocks of `counts` elements end to end in an area."""
    ends = tuple(accumulate(counts))
    return tuple(Span(area, end - count, end) for end, count in zip(ends, counts, strict=True))


def split_evenly(length: int, parts: int) -> list[int]:
    """Return the lengths of `parts` near-equal parts of `length` elements, larger ones first."""
    each, rest = divmod(length, parts)
    return [each + 1] * rest + [each] * (parts - rest)


def join_spans(run: Sequence[Span]) -> Span:
    """Return the span that covers a nonempty run of adjacent blocks."""
    return Span(run[0].area, run[0].start, run[-1].stop)


def prepend_copy(own: Copy, rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the rounds with a copy first, in an added round if there are none."""
    first, *others = rounds or (Round(),)
    return Round((own, *first.copies), first.sends, first.recvs, first.folds), *others
