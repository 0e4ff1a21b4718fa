"""Verdicts on calls, with the states of absent ranks; `verdict_codec` has their form on the wire.

State of an absent rank, the first of these that applies:

    never joined   absent when the world should have been complete
    left           has left the job
    dead           process ended: `exit_status` or `signal` where known
    paused         process stopped, or silent and out of sight of every neighbour
    stalled        process runs, interpreter held up or swapped out
    unreachable    alive, but out of reach of a peer or of the coordinator
    elsewhere      in another call: `operation`, number `sequence` of `group`
    busy           in no call for `elapsed` seconds, since number `sequence` of `group`
    slow           none of these: in this very call, its part has not arrived
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from allhands_proto.quick_dataclass import dataclass

State: TypeAlias = Literal[
    "never joined", "left", "dead", "paused", "stalled", "unreachable", "elsewhere", "busy", "slow"
]

_SHOWN_STACKS = 2
_SHOWN_LINES = 6


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that did not do its part in a call, with its state."""

    rank: int
    """Of the world."""
    state: State
    text: str
    """One sentence for people."""
    host: str = ""
    pid: int = 0
    elapsed: float = 0.0
    """Seconds in this state, as far as `state` has a beginning."""
    operation: str = ""
    sequence: int = 0
    group: str = ""
    exit_status: int | None = None
    signal: int | None = None
    stack: str = ""
    """Stack of the program's main thread, empty if unknown; the last 4 KiB."""
    section: str = ""
    """Section that its program is in, empty if in none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The absent ranks of one call, the same for every rank of the call.

    `operation` and `group` are empty where no call is meant, but the whole world.
    """

    group: str
    sequence: int
    operation: str
    absent: tuple[AbsentRank, ...]
    """By rank."""
    text: str
    """One paragraph for people."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The absent ranks."""
        return tuple(one.rank for one in self.absent)

    def __str__(self) -> str:
        """Return the paragraph, followed by the stacks of the first late ranks."""
        shown = [one for one in self.absent if one.stack][:_SHOWN_STACKS]
        return "".join([self.text, *map(_describe_stack, shown)])


def describe_absent_ranks(ranks: Sequence[AbsentRank]) -> str:
    """Return a sentence on absent ranks, followed by their stacks if known."""
    return "; ".join(one.text for one in ranks) + "".join(
        _describe_stack(one) for one in ranks if one.stack
    )


def append_clause(text: str, clause: str) -> str:
    """Return a text with a further clause: on a line of its own if the text has several.

    The last of several lines is mostly of somebody's source, and would run into the clause.
    """
    return f"{text}\n{clause}" if "\n" in text else f"{text}; {clause}"


def _describe_stack(absent: AbsentRank) -> str:
    lines = absent.stack.rstrip("\n").split("\n")[-_SHOWN_LINES:]
    return f"\nrank {absent.rank} is at\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CallCancellation:
    """Cancellation of a call by a rank on purpose, before its deadline."""

    rank: int
    by: str
    """The rank with host and process id, for people."""
    reason: str
