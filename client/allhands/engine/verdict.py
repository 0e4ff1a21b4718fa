"""What a call that ended early says to its caller."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from allhands.errors import (
    AllhandsError,
    CollectiveMismatch,
    CollectiveTimeout,
    DataCorrupted,
    PeerFailed,
)

Failure = Callable[[str], AllhandsError]
"""Makes the error of a call, given what the call is; a fresh one for each caller."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A rank that did not do its part in time, and what the coordinator knows of it."""

    rank: int
    text: str


class Registry(Protocol):
    """What the rest of the worker knows about the world."""

    def name(self, rank: int) -> str:
        """Return "rank 2 (host a, pid 17)" for a rank of the world."""

    async def absent(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Sequence[Absent] | None:
        """Wait until `timeout` has passed, then say who is missing in a call; None: unknown."""

    async def all_present(self, ranks: Sequence[int]) -> bool:
        """Ask whether these ranks of the world are still in it; False also where nobody knows."""


def timed_out(
    *,
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    timeout: float,
    absent: Sequence[Absent] | None,
    waiting_on: Sequence[int],
    registry: Registry,
) -> CollectiveTimeout:
    """Word a passed deadline."""
    if absent:
        ranks = tuple(one.rank for one in absent)
        said = "; ".join(one.text for one in absent)
        text = f"{what} timed out after {timeout:g} s: {_listed(ranks)} did not arrive. {said}"
    else:
        ranks = tuple(waiting_on)
        said = ", ".join(registry.name(rank) for rank in ranks) or "nobody in particular"
        text = f"{what} timed out after {timeout:g} s, waiting for {said}"
        if absent is None:
            text += "; the coordinator could not be asked where they are"
    return CollectiveTimeout(text, op=operation, seq=sequence, missing_ranks=ranks, label=label)


def given_up(
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    names: Sequence[str],
    ranks: Sequence[int],
) -> CollectiveTimeout:
    """Word a call that others have left while this rank was in it, or before it came."""
    text = f"{what} cannot end: {', '.join(names)} gave it up (out of time, or interrupted)"
    return CollectiveTimeout(
        text, op=operation, seq=sequence, missing_ranks=tuple(ranks), label=label
    )


def peer_failed(what: str, name: str, rank: int, reason: str) -> PeerFailed:
    """Word the loss of a rank that a call needs."""
    return PeerFailed(f"{what} cannot end: {name} {reason}", (rank,))


def mismatch(what: str, mine: int, table: Mapping[int, str]) -> CollectiveMismatch:
    """Word a disagreement; `table` maps ranks of the group to their calls."""
    rows = "; ".join(
        f"rank {rank}{' (this one)' if rank == mine else ''}: {call}"
        for rank, call in sorted(table.items())
    )
    return CollectiveMismatch(f"{what}: the ranks made different calls: {rows}", table)


def changed(link: tuple[int, int], sequence: int) -> Failure:
    """Word data that was changed between two ranks of the world."""

    def failure(what: str) -> AllhandsError:
        start, end = link
        text = f"{what}: data was changed on the link from rank {start} to rank {end} (CRC)"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, link=link)

    return failure


def differing(ranks: tuple[int, ...], sequence: int) -> Failure:
    """Word results that should be alike; `ranks` of the world have others than most."""

    def failure(what: str) -> AllhandsError:
        text = f"{what}: the ranks have different results: {_listed(ranks)}, unlike the others"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, ranks=ranks)

    return failure


def _listed(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
