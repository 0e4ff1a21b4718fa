"""Builders of the errors for calls that ended early."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from allhands.deadlines import format_timeout
from allhands.engine.work.work import Work
from allhands.errors import (
    AllhandsError,
    CollectiveMismatch,
    CollectiveTimeout,
    DataCorrupted,
    GroupAborted,
    PeerFailed,
)
from allhands.verdicts import AbsentRank, CallCancellation, Verdict, append_clause

_LATE_STATES = ("paused", "elsewhere", "busy")
"""What a rank can be in a verdict on a call that it makes after that."""

ErrorFactory = Callable[[str], AllhandsError]
"""Makes the error of a call, given what the call is; a fresh one for each caller."""


class PeerDirectory(Protocol):
    """The worker's knowledge of the world: verdicts, presence, and the state of peers."""

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
        """Return the coordinator's verdict on a call at `timeout`, in seconds; None: unknown.

        The verdict may come somewhat later, and comes earlier for a call that a rank gave up.
        """

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        """Wait at the coordinator's barrier of a group; return the verdict on missing ranks.

        All ranks get the same verdict, as soon as the first of them has waited for its timeout;
        None if no rank is missing.

        Raises:
            AllhandsError: the coordinator cannot be asked.
        """

    async def are_all_present(self, ranks: Sequence[int]) -> bool:
        """Return whether these ranks of the world are still members; False also if unknown."""

    def send_give_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        """Notify the ranks of a group that this rank gives a call up, with the reason."""

    def abort(self, group: str, reason: str) -> None:
        """Abort a group on all its ranks, this rank included."""

    def get_condition(self, rank: int) -> AbsentRank | None:
        """Return the condition of a silent but living rank of the world; None: not silent."""

    def shares_memory(self, rank: int) -> bool:
        """Say whether a rank of the world is looked for in memory, not over links."""

    def watch_links(self, list_awaited: Callable[[], Iterable[int]]) -> Callable[[], None]:
        """Ping the ranks of the world that a call waits for, until the returned function is called.

        Ranks that share memory with this rank are not pinged.
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
    """Build the CollectiveTimeout of a call past its deadline, in seconds.

    `awaited_ranks` and `own_rank` are ranks of the world; this rank may have come too late itself.
    `verdict` is the coordinator's; None: unknown.
    """
    ranks = tuple(awaited_ranks)
    if verdict is not None and verdict.absent:
        ranks = verdict.ranks
        said = _format_verdict(verdict, own_rank)
        text = f"{what} timed out after {format_timeout(timeout)}: {said}"
    else:
        said = ", ".join(directory.describe_rank(rank) for rank in ranks) or "nobody in particular"
        text = f"{what} timed out after {format_timeout(timeout)}, waiting for {said}"
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
    """Build the error of a failed monitored barrier; `ranks` are the ranks to name."""
    # As c10d says it, so that who looks for that finds it.
    named = format_ranks(ranks).capitalize()
    within = format_timeout(timeout)
    text = f"{what}: {named} failed to pass monitoredBarrier within {within}. {verdict}"
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
    """Build the error of a call made `seconds` after its deadline."""
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
    """Build the error of a call that other ranks left before this rank completed or began it.

    `ranks` are named as missing: those that left the call, or the ranks they waited for.
    """
    text = f"{what} cannot end: {', '.join(names)} gave it up, out of time"
    if verdict is not None and verdict.absent:
        text += f". {verdict}"
    return CollectiveTimeout(
        text, op=operation, seq=sequence, missing_ranks=tuple(ranks), label=label, verdict=verdict
    )


def build_given_up_error(what: str, give_up: CallCancellation) -> GroupAborted:
    """Build the error of a call that another rank cancelled."""
    return GroupAborted(
        f"{what} cannot end: {give_up.reason} on {give_up.by}", by=give_up.by, reason=give_up.reason
    )


def build_aborted_error(what: str, by: str, reason: str) -> GroupAborted:
    """Build the error of an aborted group: by whom, and why."""
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
    """Build the error of a call that needs lost ranks."""
    return PeerFailed(f"{what} cannot end: {verdict}", tuple(ranks), verdict)


def build_mismatch_error(what: str, own_rank: int, table: Mapping[int, str]) -> CollectiveMismatch:
    """Build the error of different calls; `table` maps ranks of the group to their calls."""
    rows = _format_table(own_rank, table)
    return CollectiveMismatch(f"{what}: the ranks made different calls: {rows}", table)


def make_mismatch_preceded_factory(
    failure: ErrorFactory, number: str, own_rank: int, table: Mapping[int, str]
) -> ErrorFactory:
    """Return a factory whose PeerFailed also tells the different calls made before, as `table`.

    `number` names them as in "#2 of group 'world'".
    """

    def build_error(what: str) -> AllhandsError:
        error = failure(what)
        if isinstance(error, PeerFailed):
            rows = _format_table(own_rank, table)
            clause = f"before, the ranks made different calls as {number}: {rows}"
            error.args = (append_clause(str(error), clause), *error.args[1:])
        return error

    return build_error


def _format_table(own_rank: int, table: Mapping[int, str]) -> str:
    return "; ".join(
        f"rank {rank}{' (this one)' if rank == own_rank else ''}: {call}"
        for rank, call in sorted(table.items())
    )


def make_link_corrupted_factory(link: tuple[int, int], sequence: int) -> ErrorFactory:
    """Return a factory of the error for data changed between two ranks of the world."""

    def build_error(what: str) -> AllhandsError:
        start, end = link
        text = f"{what}: data was changed on the link from rank {start} to rank {end} (digest)"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, link=link)

    return build_error


def make_results_differ_factory(ranks: tuple[int, ...], sequence: int) -> ErrorFactory:
    """Return a factory of the error for results that differ; `ranks` are the world's minority."""

    def build_error(what: str) -> AllhandsError:
        text = f"{what}: the ranks have different results: {format_ranks(ranks)}, unlike the others"
        return DataCorrupted(text, op=what.split(" ")[0], seq=sequence, ranks=ranks)

    return build_error


def format_ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
