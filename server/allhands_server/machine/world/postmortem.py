"""Post-mortem of a world: failures in order, and the members' last reports.

Members report at the news of a failure and when they leave; reports are opaque bytes.
"""

from collections.abc import Iterable, Iterator

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.statuses import FailureStatus
from allhands_server.machine.formatting import quote
from allhands_server.machine.values import Presence
from allhands_server.machine.world.groups import Groups
from allhands_server.machine.world.member import Member
from allhands_server.machine.world_changes import FailureNoted

LARGEST_REPORT = 64 << 10
"""Bytes that are kept of one member."""
LARGEST_OF_WORLD = 16 << 20
"""Bytes that are kept of all members of a world."""
MOST_FAILURES = 16
"""Failures kept of a world: the first ones."""
LONGEST_TEXT = 1_000


@dataclass(frozen=True, slots=True)
class _Event:
    member: Member | None
    """The failed member; None: aborted from outside."""
    text: str
    at: float
    traceback: str = ""


def limit_report(size: int) -> int:
    """Return the largest size of a member's report, by world size; 0: size unknown."""
    return min(LARGEST_REPORT, LARGEST_OF_WORLD // max(size, 1))


class Postmortem:
    """Record of a world's failures and reports, kept after the world's end."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._failures: list[_Event] = []
        self._leavers: list[Member] = []  # who left without an error, in order
        self.nbytes = 0
        """Of all reports."""
        self.ended_at: float | None = None
        """Time at which the last member had gone."""

    def list_lost(self, job: str, member: Member) -> list[FailureNoted]:
        """Return the failures to note for a loss, which the member's `loss` explains."""
        return [*self._blame_leavers(job, member), FailureNoted(job, member.rank, "")]

    def list_left(self, job: str, member: Member, traceback: str) -> list[FailureNoted]:
        """Return the failures to note for a departure: none without an error."""
        if not member.reason:
            return []
        text = f"{member} left the job because of {member.reason}"[:LONGEST_TEXT]
        blamed = self._blame_leavers(job, member)
        return [*blamed, FailureNoted(job, member.rank, text, traceback)]

    def list_aborted(self, job: str, by: str, reason: str) -> list[FailureNoted]:
        """Return the failure to note for an abort of all calls."""
        text = f"it was aborted by {by}: {reason}"[:LONGEST_TEXT]
        return [FailureNoted(job, -1, text)]

    def add_failure(self, failure: FailureNoted, member: Member | None, now: float) -> None:
        """Add a failure to the record; `member` is the failed one, gone by now, if any."""
        if len(self._failures) < MOST_FAILURES:
            at = now if member is None or member.gone_at is None else member.gone_at
            self._failures.append(_Event(member, failure.text, at, failure.traceback))

    def add_leaver(self, member: Member) -> None:
        """Note the departure of a member without an error."""
        if len(self._leavers) < MOST_FAILURES:
            self._leavers.append(member)

    def clear_failures(self) -> None:
        """Forget failures after the members agreed on a new world."""
        self._failures.clear()
        self._leavers.clear()

    def keep_report(self, member: Member, report: bytes) -> None:
        """Replace the member's report; an oversized report is dropped."""
        self.nbytes -= len(member.report)
        member.report = b""
        if len(report) <= LARGEST_REPORT and self.nbytes + len(report) <= LARGEST_OF_WORLD:
            member.report = report
            self.nbytes += len(report)

    def drop_reports(self, members: Iterable[Member]) -> None:
        """Drop the members' reports."""
        for member in members:
            member.report = b""
        self.nbytes = 0

    def list_failures(self, now: float) -> tuple[FailureStatus, ...]:
        """Return the failures in order."""
        return tuple(self._describe_failures(now))

    def _describe_failures(self, now: float) -> Iterator[FailureStatus]:
        for one in self._failures:
            seconds = max(0.0, now - one.at)
            if one.member is None:
                yield FailureStatus(-1, "aborted", one.text, seconds)
                continue
            fate = one.member.loss
            if one.member.presence is Presence.LOST and fate is not None and not one.text:
                yield FailureStatus(fate.rank, fate.state, fate.text, seconds)
            else:
                yield FailureStatus(one.member.rank, "left", one.text, seconds, one.traceback)

    def _blame_leavers(self, job: str, member: Member) -> Iterator[FailureNoted]:
        """Return as first failures the members that left before calls of a failed member."""
        if self._failures:
            return
        for leaver in self._leavers:
            for group, ranks in self._groups.list_groups_of(member.rank):
                last = leaver.get_begun(group)
                if leaver.rank in ranks and last < member.get_begun(group):
                    call = f"after {f'#{last}' if last else 'no call'} of group"
                    text = (
                        f"{leaver} left the job {call} {quote(group)}, "
                        f"in which {member} was in #{member.get_begun(group)}"
                    )
                    yield FailureNoted(job, leaver.rank, text)
                    break
