"""Stalls: calls of a job that wait too long for ranks that do not come. Pure."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from allhands.coordinator.diagnosis import Diagnosis, PendingOperation, RankDiagnosis
from allhands.coordinator.sections import format_duration, name_ranks
from allhands_proto.quick_dataclass import dataclass

StallAction: TypeAlias = Literal["report", "abort", "restart"]


@dataclass(frozen=True, slots=True)
class StallPolicy:
    """The launcher's reaction to a stall."""

    action: StallAction
    seconds: float
    """How long a call may wait for ranks that do not come."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A call that has waited too long, and the ranks that hold it up."""

    group: str
    sequence: int
    culprits: tuple[int, ...]
    """Ranks at the end of the chain of waits; in a circle of waits: those in the circle."""
    verdict: str
    """One sentence for people."""

    @property
    def key(self) -> tuple[str, int, tuple[int, ...]]:
        return self.group, self.sequence, self.culprits


def find_stall(diagnosis: Diagnosis, seconds: float) -> Stall | None:
    """Return the oldest call that has waited so long for ranks that have not begun it."""
    ranks = {one.rank: one for one in diagnosis.ranks}
    stalled = [
        (wait, missing)
        for rank in diagnosis.ranks
        if not rank.gone
        for wait in rank.waits
        if wait.seconds >= seconds and (missing := _list_missing(wait, ranks))
    ]
    if not stalled:
        return None
    oldest, missing = max(stalled, key=lambda one: one[0].seconds)
    waiting = [one.rank for one in diagnosis.ranks if not one.gone and _is_in(one, oldest)]
    culprits = _follow_waits(missing, ranks)
    return Stall(
        oldest.group, oldest.sequence, culprits, _describe(oldest, waiting, culprits, ranks)
    )


def _is_in(rank: RankDiagnosis, call: PendingOperation) -> bool:
    """Say whether a rank has begun a call; of messages only the waiting rank has."""
    if not call.sequence:
        return call in rank.waits
    return any((one.group, one.sequence) == (call.group, call.sequence) for one in rank.waits)


def _list_missing(call: PendingOperation, ranks: dict[int, RankDiagnosis]) -> tuple[int, ...]:
    """Return the ranks that a call waits for and that are not in it: the rest is only slow."""
    return tuple(one for one in call.waits_for if one in ranks and not _is_in(ranks[one], call))


def _follow_waits(first: Iterable[int], ranks: dict[int, RankDiagnosis]) -> tuple[int, ...]:
    """Return the ranks that wait for no other: their waits are followed to the end."""
    seen: set[int] = set()
    roots: set[int] = set()
    pending = [*first]
    while pending:
        rank = pending.pop()
        if rank in seen:
            continue
        seen.add(rank)
        further = [
            one for wait in ranks[rank].waits for one in _list_missing(wait, ranks) if one != rank
        ]
        if further:
            pending += further
        else:
            roots.add(rank)
    return tuple(sorted(roots or seen))


def _describe(
    call: PendingOperation,
    waiting: list[int],
    culprits: tuple[int, ...],
    ranks: dict[int, RankDiagnosis],
) -> str:
    number = f" #{call.sequence}" if call.sequence else ""
    at = f" ({call.source})" if call.source else ""
    states = "; ".join(f"rank {one} {_describe_state(ranks[one])}" for one in culprits)
    return (
        f"{call.operation}{number} of group {call.group}{at} has waited "
        f"{format_duration(call.seconds)} on {name_ranks(waiting)} for {name_ranks(culprits)}: "
        f"{states}"
    )


def _describe_state(rank: RankDiagnosis) -> str:
    where = f"(host {rank.host}, pid {rank.pid})"
    if rank.gone:
        return f"{where} {'has left' if rank.gone == 'left' else 'is lost'}"
    if rank.absence:
        return f"{where} did not report: {rank.absence}"
    if rank.waits:
        inside = rank.waits[0]
        at = f" ({inside.source})" if inside.source else ""
        return f"{where} is in {inside.operation} of group {inside.group}{at}"
    frames = [line.strip() for line in rank.stack.splitlines() if line.strip()]
    place = next((line for line in reversed(frames) if line.startswith("File ")), "")
    after = f", after {rank.last}" if rank.last else ""
    return f"{where} is outside any operation{after}" + (f", at {place}" if place else "")
