"""What a call that ended early says to its caller."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from allhands.engine.work.work import Work
from allhands.errors import (
    AllhandsError,
    CollectiveMismatch,
    CollectiveTimeout,
    DataCorrupted,
    GroupAborted,
    PeerFailed,
)
from allhands.verdicts import AbsentRank, CallCancellation, Verdict

_LATE_STATES = ("paused", "elsewhere", "busy")
"""What a rank can be in a verdict on a call that it makes after that."""

Failure = Callable[[str], AllhandsError]
"""Makes the error of a call, given what the call is; a fresh one for each caller."""


class Registry(Protocol):
    """What the rest of the worker knows about the world."""

    def name(self, rank: int) -> str:
        """Return "rank 2 (host a, pid 17)" for a rank of the world."""

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        """Wait until `timeout` has passed, then say who is missing in a call; None: unknown.

        That may take somewhat longer, and is known earlier of a call that a rank gave up.
        """

    async def meet(self, group: str, sequence: int, timeout: float) -> Verdict | None:
        """Wait for the ranks of a group in a call that moves no data; say who did not come.

        All ranks are told the same, as soon as one has waited for its timeout.

        Raises:
            AllhandsError: nobody can say.
        """

    async def all_present(self, ranks: Sequence[int]) -> bool:
        """Ask whether these ranks of the world are still in it; False also where nobody knows."""

    def gave_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        """Tell the ranks of a group that this one gives a call up, and why."""

    def abort(self, group: str, reason: str) -> None:
        """Release all ranks of a group, this one too."""

    def condition_of(self, rank: int) -> AbsentRank | None:
        """Return what a rank of the world is that is silent though it lives; None: it is heard."""

    def shares_memory(self, rank: int) -> bool:
        """Say whether a rank of the world is looked for in memory, not over links."""

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        """Ping the ranks of the world that a call waits for, until what is returned is called.

        Of those that share memory with this one nothing is wanted over links.
        """


def timed_out(
    *,
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    timeout: float,
    found: Verdict | None,
    waiting_on: Sequence[int],
    registry: Registry,
    mine: int | None = None,
) -> CollectiveTimeout:
    """Word a passed deadline; `mine` is this rank of the world, which may have come too late."""
    ranks = tuple(waiting_on)
    if found is not None and found.absent:
        ranks = found.ranks
        text = f"{what} timed out after {timeout:g} s: {_told(found, mine)}"
    else:
        said = ", ".join(registry.name(rank) for rank in ranks) or "nobody in particular"
        text = f"{what} timed out after {timeout:g} s, waiting for {said}"
        if found is not None:
            text += f"; {found}"
    return CollectiveTimeout(
        text,
        op=operation,
        seq=sequence,
        missing_ranks=ranks,
        label=label,
        verdict=found,
        timeout=timeout,
    )


def _told(found: Verdict, mine: int | None) -> str:
    """Word a verdict for a rank, which is missing itself where it came late."""
    if any(one.rank == mine and one.state in _LATE_STATES for one in found.absent):
        return f"{found}\nrank {mine} is this one: it came when the others had given the call up"
    return str(found)


def failed_to_pass(
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    timeout: float,
    found: Verdict,
    ranks: Sequence[int],
) -> CollectiveTimeout:
    """Word a monitored barrier that failed; `ranks` are those to name."""
    # As c10d says it, so that who looks for that finds it.
    named = listed(ranks).capitalize()
    text = f"{what}: {named} failed to pass monitoredBarrier within {timeout:g} s. {found}"
    return CollectiveTimeout(
        text,
        op=operation,
        seq=sequence,
        missing_ranks=tuple(ranks),
        label=label,
        verdict=found,
        timeout=timeout,
    )


def over_before(what: str, work: Work, seconds: float) -> CollectiveTimeout:
    """Word a call whose time was over, for so many seconds below 0, when it was made."""
    text = (
        f"{what} timed out before it began: the deadline of a block around it passed "
        f"{-seconds:.3g} s ago"
    )
    error = CollectiveTimeout(text, op=work.operation, seq=work.sequence, label=work.label)
    error.add_intact(True, say=True)
    return error


def given_up(
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    names: Sequence[str],
    ranks: Sequence[int],
    found: Verdict | None,
) -> CollectiveTimeout:
    """Word a call that others have left while this rank was in it, or before it came.

    `ranks` are to be named as missing: those who left it, or whom they waited for.
    """
    text = f"{what} cannot end: {', '.join(names)} gave it up, out of time"
    if found is not None and found.absent:
        text += f". {found}"
    return CollectiveTimeout(
        text, op=operation, seq=sequence, missing_ranks=tuple(ranks), label=label, verdict=found
    )


def cancelled(what: str, given: CallCancellation) -> GroupAborted:
    """Word a call that another rank gave up on purpose."""
    return GroupAborted(
        f"{what} cannot end: {given.reason} on {given.by}", by=given.by, reason=given.reason
    )


def aborted(what: str, by: str, reason: str) -> GroupAborted:
    """Word the end of a group that somebody brought about."""
    return GroupAborted(f"{what} cannot end: {by} aborted it: {reason}", by=by, reason=reason)


def aborted_by_error(
    what: str, by: str, error: str, traceback: str, found: Verdict
) -> GroupAborted:
    """Word the end of a group of which a rank was ended by an exception."""
    text = f"{what} cannot end: {found.text}"
    if traceback:
        text += f"\n{traceback.rstrip()}"
    return GroupAborted(text, by=by, reason=error, verdict=found)


def peer_failed(what: str, found: Verdict, ranks: Iterable[int]) -> PeerFailed:
    """Word the loss of ranks that a call needs."""
    return PeerFailed(f"{what} cannot end: {found}", tuple(ranks), found)


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
        text = f"{what}: data was changed on the link from rank {start} to rank {end} (digest)"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, link=link)

    return failure


def differing(ranks: tuple[int, ...], sequence: int) -> Failure:
    """Word results that should be alike; `ranks` of the world have others than most."""

    def failure(what: str) -> AllhandsError:
        text = f"{what}: the ranks have different results: {listed(ranks)}, unlike the others"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, ranks=ranks)

    return failure


def listed(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
