"""Schedules whose long messages are cut into pieces, each a message of its own. Pure."""

from functools import lru_cache

from allhands.collectives.schedule import Recv, Round, Schedule, Send, Span


def cut_messages(schedule: Schedule, piece: int, longest: int) -> Schedule:
    """Return the schedule with messages of more than `piece` elements cut into such pieces.

    Those of more than `longest` elements stay whole. Sender and receiver find the same pieces, so
    that ranks may do this each for itself.
    """
    spans = (one.span for step in schedule.rounds for one in step.messages)
    if any(piece < len(span) <= longest for span in spans):
        return _cut_messages(schedule, piece, longest)
    return schedule


@lru_cache(maxsize=64)
def _cut_messages(schedule: Schedule, piece: int, longest: int) -> Schedule:
    def cut(span: Span) -> list[Span]:
        if not piece < len(span) <= longest:
            return [span]
        starts = range(span.start, span.stop, piece)
        return [Span(span.area, start, min(start + piece, span.stop)) for start in starts]

    rounds = (
        Round(
            step.copies,
            tuple(Send(one.peer, span) for one in step.sends for span in cut(one.span)),
            tuple(
                Recv(one.peer, span, one.reduces) for one in step.recvs for span in cut(one.span)
            ),
            step.folds,
        )
        for step in schedule.rounds
    )
    return Schedule(tuple(rounds), schedule.scratch)
