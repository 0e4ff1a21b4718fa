"""Split rounds: each round of a schedule as several, each with a part of every message. Pure."""

from collections.abc import Iterator

from allhands.collectives.schedule import Recv, Round, Schedule, Send, Span


def split_rounds(schedule: Schedule, pieces: int) -> Schedule:
    """Return a schedule of `pieces` rounds in the place of each, the same number on all ranks.

    In every round of `schedule` what is received must lie apart from what is sent, or be received
    into exactly that: then no piece overwrites what is yet to be sent.
    """
    rounds = [one for step in schedule.rounds for one in _split(step, pieces)]
    return Schedule(tuple(rounds), schedule.scratch)


def _split(step: Round, pieces: int) -> Iterator[Round]:
    for at in range(pieces):
        sends = tuple(Send(one.peer, _cut(one.span, at, pieces)) for one in step.sends)
        recvs = tuple(Recv(one.peer, _cut(one.span, at, pieces), one.reduces) for one in step.recvs)
        if at == 0:
            yield Round(step.copies, sends, recvs, step.folds)
        else:
            yield Round(sends=sends, recvs=recvs)


def _cut(span: Span, at: int, pieces: int) -> Span:
    """Return one of the pieces, as equal as they can be, of a span."""
    length = len(span)
    start, stop = (span.start + length * edge // pieces for edge in (at, at + 1))
    return Span(span.area, start, stop)
