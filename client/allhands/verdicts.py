"""Verdicts: who was missing in a call, and why, as the coordinator tells all ranks alike.

The state of an absent rank is one of these, of which the first that is true counts:

    never joined   it was not there when the world should have been complete
    left           it has left the job
    dead           its process has ended: with `exit_status`, or by `signal`, where that is known
    paused         its process is stopped, or says nothing and nobody could look at it
    stalled        its process runs, but its interpreter is held up, or it is swapped out
    unreachable    it is alive, but a peer, or the coordinator, cannot reach it
    elsewhere      it is in another call: `operation`, number `sequence` of `group`
    busy           it is in no call, for `elapsed` seconds, since number `sequence` of `group`
    slow           none of these: it is in this very call, and its part has not arrived
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal[
    "never joined", "left", "dead", "paused", "stalled", "unreachable", "elsewhere", "busy", "slow"
]

_SHOWN_STACKS = 2
_SHOWN_LINES = 6


@dataclass(frozen=True, slots=True)
class Absence:
    """A rank that did not do its part."""

    rank: int
    """Of the world."""
    state: State
    text: str
    """One sentence for people."""
    host: str = ""
    pid: int = 0
    elapsed: float = 0.0
    """Seconds for which it has been so, as far as `state` has a beginning."""
    operation: str = ""
    sequence: int = 0
    group: str = ""
    exit_status: int | None = None
    signal: int | None = None
    stack: str = ""
    """Where the main thread of its program was, where it could say so; the last 4 KiB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who was missing in a call; all ranks that hear of it get the same one.

    Of what befell the world, in no call in particular, `operation` and `group` are empty.
    """

    group: str
    sequence: int
    operation: str
    absent: tuple[Absence, ...]
    """By rank."""
    text: str
    """One paragraph for people."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The absent ranks."""
        return tuple(one.rank for one in self.absent)

    def __str__(self) -> str:
        """The paragraph, and below it where the first of those who are late were."""
        shown = [one for one in self.absent if one.stack][:_SHOWN_STACKS]
        return "".join([self.text, *map(_located, shown)])


def described(one: Absence) -> str:
    """Return the sentence on an absent rank, and below it where it was, if that is known."""
    return one.text + (_located(one) if one.stack else "")


def _located(one: Absence) -> str:
    lines = one.stack.rstrip("\n").split("\n")[-_SHOWN_LINES:]
    return f"\nrank {one.rank} is at\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A call that a rank gave up on purpose."""

    rank: int
    by: str
    reason: str
