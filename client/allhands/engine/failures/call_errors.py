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

ErrorFactory = Callable[[str], AllhandsError]
"""Makes the error of a call, given what the call is; a fresh one for each caller."""


class PeerDirectory(Protocol):
    """What the rest of the worker knows about the world."""

    def describe_rank(self, rank: int) -> str:
        """Return "rank 2 (host a, pid 17)" for a rank of the world."""

    async def judge(
        self,
        group: str,
        sequence: int,
        operation: str,
        awaited_ranks: Sequence[int],
        timeout: float,
    ) -> Verdict | CallCancellation | None:
        """Wait until `timeout` has passed, then say who is missing in a call; None: unknown.

        That may take somewhat longer, and is known earlier of a call that a rank gave up.
        """

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        """Wait for the ranks of a group in a call that moves no data; say who did not come.

        All ranks are told the same, as soon as one has waited for its timeout.

        Raises:
            AllhandsError: nobody can say.
        """

    async def are_all_present(self, ranks: Sequence[int]) -> bool:
        """Ask whether these ranks of the world are still in it; False also where nobody knows."""

    def send_give_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        """Tell the ranks of a group that this one gives a call up, and why."""

    def abort(self, group: str, reason: str) -> None:
        """Release all ranks of a group, this one too."""

    def get_condition(self, rank: int) -> AbsentRank | None:
        """Return what a rank of the world is that is silent though it lives; None: it is heard."""

    def shares_memory(self, rank: int) -> bool:
        """Say whether a rank of the world is looked for in memory, not over links."""

    def watch_links(self, list_awaited: Callable[[], Iterable[int]]) -> Callable[[], None]:
        """Ping the ranks of the world that a call waits for, until what is returned is called.

        Of those that share memory with this one nothing is wanted over links.
        """


def build_timeout_error(
    *,
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    timeout: float,
    verdict: Verdict | None,
    awaited_ranks: Sequence[int],
    directory: PeerDirectory,
    own_rank: int | None = None,
) -> CollectiveTimeout:
    """Word a passed deadline; `mine` is this rank of the world, which may have come too late."""
    ranks = tuple(awaited_ranks)
    if verdict is not None and verdict.absent:
        ranks = verdict.ranks
        text = f"{what} timed out after {timeout:g} s: {_format_verdict(verdict, own_rank)}"
    else:
        said = ", ".join(directory.describe_rank(rank) for rank in ranks) or "nobody in particular"
        text = f"{what} timed out after {timeout:g} s, waiting for {said}"
        if verdict is not None:
            text += f"; {verdict}"
    return CollectiveTimeout(
        text,
        op=operation,
        seq=sequence,
        missing_ranks=ranks,
        label=label,
        verdict=verdict,
        timeout=timeout,
    )


def _format_verdict(verdict: Verdict, own_rank: int | None) -> str:
    """Word a verdict for a rank, which is missing itself where it came late."""
    if any(one.rank == own_rank and one.state in _LATE_STATES for one in verdict.absent):
        return (
            f"{verdict}\nrank {own_rank} is this one: it came when the others had given the call up"
        )
    return str(verdict)


def build_monitored_barrier_error(
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    timeout: float,
    verdict: Verdict,
    ranks: Sequence[int],
) -> CollectiveTimeout:
    """Word a monitored barrier that failed; `ranks` are those to name."""
    # As c10d says it, so that who looks for that finds it.
    named = format_ranks(ranks).capitalize()
    text = f"{what}: {named} failed to pass monitoredBarrier within {timeout:g} s. {verdict}"
    return CollectiveTimeout(
        text,
        op=operation,
        seq=sequence,
        missing_ranks=tuple(ranks),
        label=label,
        verdict=verdict,
        timeout=timeout,
    )


def build_expired_error(what: str, work: Work, seconds: float) -> CollectiveTimeout:
    """Word a call whose time was over, for so many seconds below 0, when it was made."""
    text = (
        f"{what} timed out before it began: the deadline of a block around it passed "
        f"{-seconds:.3g} s ago"
    )
    error = CollectiveTimeout(text, op=work.operation, seq=work.sequence, label=work.label)
    error.add_intact(True, say=True)
    return error


def build_abandoned_error(
    what: str,
    operation: str,
    sequence: int,
    label: str | None,
    names: Sequence[str],
    ranks: Sequence[int],
    verdict: Verdict | None,
) -> CollectiveTimeout:
    """Word a call that others have left while this rank was in it, or before it came.

    `ranks` are to be named as missing: those who left it, or whom they waited for.
    """
    text = f"{what} cannot end: {', '.join(names)} gave it up, out of time"
    if verdict is not None and verdict.absent:
        text += f". {verdict}"
    return CollectiveTimeout(
        text, op=operation, seq=sequence, missing_ranks=tuple(ranks), label=label, verdict=verdict
    )


def build_given_up_error(what: str, give_up: CallCancellation) -> GroupAborted:
    """Word a call that another rank gave up on purpose."""
    return GroupAborted(
        f"{what} cannot end: {give_up.reason} on {give_up.by}", by=give_up.by, reason=give_up.reason
    )


def build_aborted_error(what: str, by: str, reason: str) -> GroupAborted:
    """Word the end of a group that somebody brought about."""
    return GroupAborted(f"{what} cannot end: {by} aborted it: {reason}", by=by, reason=reason)


def build_exception_aborted_error(
    what: str, by: str, error: str, traceback: str, verdict: Verdict
) -> GroupAborted:
    """Word the end of a group of which a rank was ended by an exception."""
    text = f"{what} cannot end: {verdict.text}"
    if traceback:
        text += f"\n{traceback.rstrip()}"
    return GroupAborted(text, by=by, reason=error, verdict=verdict)


def build_peer_failed_error(what: str, verdict: Verdict, ranks: Iterable[int]) -> PeerFailed:
    """Word the loss of ranks that a call needs."""
    return PeerFailed(f"{what} cannot end: {verdict}", tuple(ranks), verdict)


def build_mismatch_error(what: str, own_rank: int, table: Mapping[int, str]) -> CollectiveMismatch:
    """Word a disagreement; `table` maps ranks of the group to their calls."""
    rows = "; ".join(
        f"rank {rank}{' (this one)' if rank == own_rank else ''}: {call}"
        for rank, call in sorted(table.items())
    )
    return CollectiveMismatch(f"{what}: the ranks made different calls: {rows}", table)


def make_link_corrupted_factory(link: tuple[int, int], sequence: int) -> ErrorFactory:
    """Word data that was changed between two ranks of the world."""

    def build_error(what: str) -> AllhandsError:
        start, end = link
        text = f"{what}: data was changed on the link from rank {start} to rank {end} (digest)"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, link=link)

    return build_error


def make_results_differ_factory(ranks: tuple[int, ...], sequence: int) -> ErrorFactory:
    """Word results that should be alike; `ranks` of the world have others than most."""

    def build_error(what: str) -> AllhandsError:
        text = f"{what}: the ranks have different results: {format_ranks(ranks)}, unlike the others"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, ranks=ranks)

    return build_error


def format_ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
