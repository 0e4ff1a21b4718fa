"""Seeded plans of faults, with a log of the faults that occurred.

    plan = (
        faults(seed=7)
        .delay(0.2, link=(0, 1), probability=0.1)
        .partition({0, 1}, {2}, after=1.0, seconds=3)
        .kill(2, at=5.0)
        .flip(link=(1, 2), nth=3)
    )

A link is one direction of traffic, (from, to); None in it stands for any rank, and no link for all
links between ranks. COORDINATOR is at the other end of a rank's session, so (2, COORDINATOR) is
what rank 2 says there. Messages of a link are counted from 1. Times are seconds since the plan
began. Pure: no loop, and no clock but what is passed in.

What is drawn depends on the seed, the rule, the link and the number of the message alone; so
whoever sends the same messages has the same faults, in whatever order links take their turns.
"""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

COORDINATOR = -1
"""Stands for the coordinator where a rank is wanted."""

Way: TypeAlias = tuple[int, int]
Link: TypeAlias = tuple[int | None, int | None]

_ANY: Link = (None, None)
_ON_LINKS_ONLY = ("duplicate", "reorder", "flip")
"""A session's stream is checked and numbered below what can be reached here."""
_DIGITS = 9


@dataclass(frozen=True, slots=True, order=True)
class FaultEvent:
    """A planned fault that occurred."""

    at: float
    """Seconds since the plan began."""
    kind: str
    ranks: tuple[int, ...]
    """A link's two ends, or whom else it happened to."""
    nth: int = 0
    """Which message of the link; 0: it is not about a message."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fate:
    """The plan for one message: delay, rate, copies and faults."""

    delay: float = 0.0
    rate: float = math.inf
    """Bytes per second."""
    copies: int = 1
    is_cut: bool = False
    """Whether the connection breaks in its place."""
    is_overtaken: bool = False
    """Whether the next one arrives before it."""
    flips: tuple[int, ...] = ()
    """Bits that are changed, counted from the first of the message."""


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    link: Link
    probability: float
    nth: int | None
    after: float
    until: float
    amount: float = 0.0
    """Seconds of a delay, bytes per second, or a bit."""

    def is_about(self, way: Way, nth: int, now: float) -> bool:
        if not (self.after <= now < self.until) or self.nth not in (None, nth):
            return False
        if COORDINATOR in way and (self.link == _ANY or self.kind in _ON_LINKS_ONLY):
            return False
        return all(wanted in (None, end) for wanted, end in zip(self.link, way, strict=True))


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A time in which nothing passes between sides, or to and from whom is stalled."""

    kind: str
    sides: tuple[frozenset[int], ...]
    """Of a stall: one side, which has no traffic at all."""
    after: float
    until: float

    def holds(self, way: Way, now: float) -> bool:
        if not self.after <= now < self.until:
            return False
        start, end = way
        if self.kind == "stall":
            return start in self.sides[0] or end in self.sides[0]
        of = {rank: at for at, side in enumerate(self.sides) for rank in side}
        return start in of and end in of and of[start] != of[end]


@dataclass(frozen=True, slots=True)
class Kill:
    rank: int
    at: float


class Plan:
    """Planned faults and the log of occurred faults; methods return the plan."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cutoffs: list[Cutoff] = []
        self.kills: list[Kill] = []
        self.is_over = False
        """Whether nothing goes wrong any more."""
        self._rules: list[_Rule] = []
        self._log: list[FaultEvent] = []

    def delay(
        self,
        seconds: float,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Delay messages; later messages of the link wait behind a delayed message."""
        return self._add("delay", link, probability, nth, after, until, seconds)

    def slow(
        self,
        bytes_per_second: float,
        *,
        link: Link = _ANY,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Let no more than so many bytes pass in a second."""
        if bytes_per_second <= 0:
            raise ValueError("a link that lets nothing pass is a partition")
        return self._add("slow", link, 1.0, None, after, until, bytes_per_second)

    def drop(
        self,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Lose messages without a word; on a session, which would notice, break the stream."""
        return self._add("drop", link, probability, nth, after, until)

    def cut(
        self,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Break the connection in place of a message; both ends notice."""
        return self._add("cut", link, probability, nth, after, until)

    def duplicate(
        self,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Deliver messages twice, which no link should."""
        return self._add("duplicate", link, probability, nth, after, until)

    def reorder(
        self,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Swap a message with the next message, against the contract of links."""
        return self._add("reorder", link, probability, nth, after, until)

    def flip(
        self,
        *,
        link: Link = _ANY,
        probability: float = 1.0,
        nth: int | None = None,
        bit: int | None = None,
        after: float = 0.0,
        until: float = math.inf,
    ) -> "Plan":
        """Flip bit `bit` of a message, modulo the message's length in bits; None: a random bit."""
        return self._add("flip", link, probability, nth, after, until, -1 if bit is None else bit)

    def partition(
        self, *sides: Collection[int], after: float = 0.0, seconds: float = math.inf
    ) -> "Plan":
        """Hold back messages between the sides; delivered when the partition ends."""
        if len(sides) < 2:
            raise ValueError("a partition has two sides at least")
        made = tuple(map(frozenset, sides))
        if sum(map(len, made)) > len(frozenset[int]().union(*made)):
            raise ValueError("nobody is on two sides of a partition")
        return self._cut_off("partition", made, after, seconds)

    def stall(self, rank: int, *, after: float = 0.0, seconds: float = math.inf) -> "Plan":
        """Stop a process for a while: no messages in or out, no calls.

        In process its own timers run on; in real processes this is SIGSTOP.
        """
        return self._cut_off("stall", (frozenset([rank]),), after, seconds)

    def kill(self, rank: int, *, at: float) -> "Plan":
        """End a process without a word."""
        self.kills.append(Kill(rank, at))
        return self

    @property
    def log(self) -> list[FaultEvent]:
        """Faults that occurred, in order of time."""
        return sorted(self._log)

    def begin(self) -> None:
        """Clear the log of an earlier run."""
        self._log.clear()
        self.is_over = False

    def note(
        self, now: float, kind: str, ranks: tuple[int, ...], nth: int = 0, detail: str = ""
    ) -> None:
        self._log.append(FaultEvent(round(now, _DIGITS), kind, ranks, nth, detail))

    def held_until(self, way: Way, now: float) -> float:
        """Return until when nothing passes there; `now` where it does, inf: for ever."""
        if self.is_over:
            return now
        until = now
        while found := [one.until for one in self.cutoffs if one.holds(way, until)]:
            until = max(found)
        return until

    def fate(self, way: Way, nth: int, nbytes: int, now: float) -> Fate:
        """Draw and log the fate of the n-th message of a link."""
        delay, rate, copies, is_cut, is_overtaken = 0.0, math.inf, 1, False, False
        flips: list[int] = []
        for number, rule in enumerate(self._rules):
            if self.is_over or not rule.is_about(way, nth, now):
                continue
            drawn = random.Random(f"{self.seed} {number} {way} {nth}")
            if drawn.random() >= rule.probability:
                continue
            detail = ""
            match rule.kind:
                case "delay":
                    delay += rule.amount
                case "slow":
                    rate = min(rate, rule.amount)
                    continue  # every message: that would fill the log
                case "drop" if COORDINATOR in way:
                    is_cut = True
                case "drop":
                    copies = 0
                case "cut":
                    is_cut = True
                case "duplicate":
                    copies *= 2
                case "reorder":
                    is_overtaken = True
                case "flip":
                    bit = int(rule.amount)
                    bit = drawn.randrange(nbytes * 8) if bit < 0 else bit % (nbytes * 8)
                    flips.append(bit)
                    detail = f"bit {bit}"
            self.note(now, rule.kind, way, nth, detail)
        return Fate(delay, rate, copies, is_cut, is_overtaken, tuple(flips))

    def _add(
        self,
        kind: str,
        link: Link,
        probability: float,
        nth: int | None,
        after: float,
        until: float,
        amount: float = 0.0,
    ) -> "Plan":
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must be from 0 to 1, not {probability}")
        if kind in _ON_LINKS_ONLY and COORDINATOR in link:
            raise ValueError(f"a session is a stream that does not {kind} messages: cut it")
        self._rules.append(_Rule(kind, link, probability, nth, after, until, amount))
        return self

    def _cut_off(
        self, kind: str, sides: tuple[frozenset[int], ...], after: float, seconds: float
    ) -> "Plan":
        self.cutoffs.append(Cutoff(kind, sides, after, after + seconds))
        return self


def faults(seed: int = 0) -> Plan:
    """Return a plan in which nothing goes wrong yet."""
    return Plan(seed)


def flipped(message: bytes, bits: Collection[int]) -> bytes:
    """Return a message with some of its bits changed."""
    changed = bytearray(message)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
