"""Split rounds: each round of a schedule as several, each with a part of every message. Pure."""

from collections.abc import Iterator, Sequence

from allhands.collectives.schedule import (
    Copy,
    Recv,
    Round,
    Schedule,
    Send,
    Span,
    may_copy_ahead,
)


def split_rounds(schedule: Schedule, pieces: int) -> Schedule:
    """Return a schedule of `pieces` rounds in the place of each, the same number on all ranks.

    In every round of `schedule` what is received must lie apart from what is sent, or be received
    into exactly that: then no piece overwrites what is yet to be sent.

    Copies that may be made in the round before are made beside its pieces, so that they take none
    of the time in which the links are idle. The first piece has none: it may be what says that all
    ranks are in the call. No copy of such a round may read what another of it writes.
    """
    rounds: list[Round] = []
    left: tuple[Copy, ...] = ()
    for at, step in enumerate(schedule.rounds):
        following = schedule.rounds[at + 1 : at + 2]
        ahead = following[0].copies if following else ()
        if pieces == 1 or not may_copy_ahead(step, ahead):
            ahead = ()
        own = _cut_copies(left, pieces - 1, pieces) if left else step.copies
        rounds += _split(step, own, ahead, pieces)
        left = ahead
    return Schedule(tuple(rounds), schedule.scratch)


def _split(
    step: Round, copies: tuple[Copy, ...], ahead: Sequence[Copy], pieces: int
) -> Iterator[Round]:
    """Yield a round in pieces: with `copies` at its beginning, and most of those `ahead`."""
    for at in range(pieces):
        sends = tuple(Send(one.peer, _cut(one.span, at, pieces)) for one in step.sends)
        recvs = tuple(Recv(one.peer, _cut(one.span, at, pieces), one.reduces) for one in step.recvs)
        if at == 0:
            yield Round(copies, sends, recvs, step.folds)
        else:
            yield Round(_cut_copies(ahead, at - 1, pieces), sends, recvs)


def _cut_copies(copies: Sequence[Copy], at: int, pieces: int) -> tuple[Copy, ...]:
    """Return one of the pieces of each copy."""
    return tuple(Copy(_cut(one.source, at, pieces), _cut(one.target, at, pieces)) for one in copies)


def _cut(span: Span, at: int, pieces: int) -> Span:
    """Return one of the pieces, as equal as they can be, of a span."""
    length = len(span)
    start, stop = (span.start + length * edge // pieces for edge in (at, at + 1))
    return Span(span.area, start, stop)
