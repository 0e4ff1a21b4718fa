"""Post-mortem of a world: failures in order, and the members' last reports.

Members report at the news of a failure and when they leave; reports are opaque bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from allhands_proto.statuses import FailureStatus
from allhands_server.machine.formatting import quote
from allhands_server.machine.values import Presence
from allhands_server.machine.world.groups import Groups
from allhands_server.machine.world.member import Member

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
        self._leavers: list[tuple[Member, float]] = []  # who left without an error, in order
        self.nbytes = 0
        """Of all reports."""
        self.ended_at: float | None = None
        """Time at which the last member had gone."""

    def note_lost(self, member: Member, now: float) -> None:
        """Note the loss of a member, explained by the member's `loss`."""
        self._blame_leavers(member)
        self._note(_Event(member, "", now))

    def note_left(self, member: Member, error: str, traceback: str, now: float) -> None:
        """Note a member's departure, with an error or without."""
        if not error:
            if len(self._leavers) < MOST_FAILURES:
                self._leavers.append((member, now))
            return
        self._blame_leavers(member)
        text = f"{member} left the job because of {error}"[:LONGEST_TEXT]
        self._note(_Event(member, text, now, traceback))

    def note_aborted(self, by: str, reason: str, now: float) -> None:
        """Note an abort of all calls."""
        text = f"it was aborted by {by}: {reason}"[:LONGEST_TEXT]
        self._note(_Event(None, text, now))

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

    def _note(self, one: _Event) -> None:
        if len(self._failures) < MOST_FAILURES:
            self._failures.append(one)

    def _blame_leavers(self, member: Member) -> None:
        """Record as first failures the members that left before calls of a failed member."""
        if self._failures:
            return
        for leaver, at in self._leavers:
            for group, ranks in self._groups.list_groups_of(member.rank):
                last = leaver.get_begun(group)
                if leaver.rank in ranks and last < member.get_begun(group):
                    call = f"after {f'#{last}' if last else 'no call'} of group"
                    text = (
                        f"{leaver} left the job {call} {quote(group)}, "
                        f"in which {member} was in #{member.get_begun(group)}"
                    )
                    self._note(_Event(leaver, text, at))
                    break
