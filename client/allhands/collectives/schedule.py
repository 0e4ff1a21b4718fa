"""The vocabulary of collectives: spans, copies, folds, sends, receives, rounds.

A collective is data: an algorithm says, for one rank, which rounds it goes through. Nothing here
or in `algorithms` moves a byte; the engine executes schedules, the simulator proves them.

The law of a round:
  1. its copies happen first, then its folds, in order;
  2. its sends see the buffers as they are then;
  3. its receives land as it ends, in the order listed.
"""

import enum
from collections.abc import Sequence

from allhands_proto.quick_dataclass import dataclass


class Area(enum.Enum):
    """A buffer named by a schedule; addressed in elements, from 0."""

    INPUT = "input"
    """What the caller gave; never written."""
    OUTPUT = "output"
    """What the caller gets; in an operation in place it holds the input at first."""
    SCRATCH = "scratch"
    """The engine's memory, undefined at first, as long as `Schedule.scratch` says."""

    __hash__ = object.__hash__  # that of Enum is written in Python, and asked for with every span


@dataclass(frozen=True, slots=True)
class Span:
    """The elements [start, stop) of an area; lists of arrays count end to end."""

    area: Area
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"no such span: [{self.start}, {self.stop})")

    def __len__(self) -> int:
        return self.stop - self.start

    def overlaps(self, other: "Span") -> bool:
        """Return whether a write to one span changes the other."""
        return (
            self.area is other.area
            and self.start < other.stop
            and other.start < self.stop
            and len(self) > 0
            and len(other) > 0
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """Overwrite `target` with `source`, on this rank; equal lengths."""

    source: Span
    target: Span


@dataclass(frozen=True, slots=True)
class Fold:
    """Overwrite `target` with the combination of `sources`, on this rank, from the left.

    Equal lengths; `target` may be one of the sources.
    """

    sources: tuple[Span, ...]
    target: Span


@dataclass(frozen=True, slots=True)
class Send:
    """Give `span` to `peer`, a rank of the group."""

    peer: int
    span: Span


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive into `span` the message of the same round from `peer`.

    With `reduce` it is combined with the contents of the span, the contribution of the lower rank
    as the left operand: so two ranks that exchange partial results get the same bits.
    """

    peer: int
    span: Span
    reduces: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """Simultaneous transfers; see the law above.

    The k-th send from one rank to another within a round is the k-th receive there. Rounds match
    by their index: a rank with nothing to do in a round still lists it, empty.
    """

    copies: tuple[Copy, ...] = ()
    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()
    folds: tuple[Fold, ...] = ()

    @property
    def messages(self) -> tuple[Send | Recv, ...]:
        """The sends, then the receives."""
        return (*self.sends, *self.recvs)

    def list_spans(self) -> "list[Span]":
        """Return all spans that are read or written, those of several uses several times."""
        spans = [one.span for one in self.messages]
        spans += [span for one in self.copies for span in (one.source, one.target)]
        return spans + [span for one in self.folds for span in (*one.sources, one.target)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rounds of one rank in one collective.

    `scratch` is in elements.
    """

    rounds: tuple[Round, ...]
    scratch: int = 0

    @property
    def longest_message(self) -> int:
        """Elements of the longest message that the rank sends or receives; 0: there is none."""
        spans = [one.span for step in self.rounds for one in step.messages]
        return max(map(len, spans), default=0)


def may_copy_ahead(step: Round, copies: Sequence[Copy]) -> bool:
    """Return whether copies have the same effect before the messages of a round as after it."""
    received = [recv.span for recv in step.recvs]
    moved = received + [send.span for send in step.sends]
    return not any(copy.target.overlaps(span) for copy in copies for span in moved) and not any(
        copy.source.overlaps(span) for copy in copies for span in received
    )
