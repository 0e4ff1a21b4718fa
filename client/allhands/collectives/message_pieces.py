"""Schedules whose long messages are cut into pieces, each a message of its own. Pure."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

from allhands.collectives.schedule import Recv, Round, Schedule, Send, Span

_Message = TypeVar("_Message", Send, Recv)


def cut_messages(schedule: Schedule, piece: int, longest: int) -> Schedule:
    """Return the schedule with messages of more than `piece` elements cut into such pieces.

    Those of more than `longest` elements stay whole. Sender and receiver find the same pieces, so
    that ranks may do this each for itself.
    """
    lengths = {len(one.span) for step in schedule.rounds for one in _list_messages(step)}
    if not any(piece < length <= longest for length in lengths):
        return schedule
    return _cut_messages(schedule, piece, longest)


def _list_messages(step: Round) -> list[Send | Recv]:
    return [*step.sends, *step.recvs]


@lru_cache(maxsize=64)
def _cut_messages(schedule: Schedule, piece: int, longest: int) -> Schedule:
    def cut(messages: tuple[_Message, ...]) -> Iterator[_Message]:
        for one in messages:
            if len(one.span) <= piece or len(one.span) > longest:
                yield one
            else:
                yield from (_replace_span(one, span) for span in _cut_span(one.span, piece))

    rounds = (
        Round(step.copies, tuple(cut(step.sends)), tuple(cut(step.recvs)), step.folds)
        for step in schedule.rounds
    )
    return Schedule(tuple(rounds), schedule.scratch)


def _replace_span(message: _Message, span: Span) -> _Message:
    match message:
        case Send():
            return Send(message.peer, span)
        case Recv():
            return Recv(message.peer, span, message.reduces)


def _cut_span(span: Span, piece: int) -> Iterator[Span]:
    for start in range(span.start, span.stop, piece):
        yield Span(span.area, start, min(start + piece, span.stop))
