"""Notices of members that have left, gathered in large worlds.

When all members of a large world leave at once, to tell each of each would be a square of messages.
So of what comes soon after a notice all hear in the next one. The time between two notices grows
with the world.
"""

from collections.abc import Mapping

from allhands_server.machine.effects import Effect, MemberLeft, MembersLeft, Push
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.member import NEVER, Member

RECEIVERS_PER_SECOND = 20_000
"""Members of a larger world that are told in a second, at most."""
_SMALL = 64
"""Members of a world that are told at once."""
_MOST_APART = 0.2
"""Seconds between two notices, at most."""


class LeaverAnnouncer:
    """Members of one world that have left, and of whom the others have to hear."""

    def __init__(self, present: Mapping[int, Member], timers: TimerQueue) -> None:
        self._present = present
        self._timers = timers
        self._pending: list[tuple[int, MemberLeft]] = []  # with their numbers among the news
        self._timer: Timer | None = None
        self._sent_at = NEVER

    def announce(self, number: int, left: MemberLeft, now: float) -> list[Effect]:
        """Tell of a member that has left, now or with others; `number` is that of the news."""
        self._pending.append((number, left))
        count = len(self._present)
        apart = min(count / RECEIVERS_PER_SECOND, _MOST_APART) if count > _SMALL else 0.0
        if now >= self._sent_at + apart:
            return self.flush(now)
        if self._timer is None:
            self._timer = self._timers.schedule(self._sent_at + apart, self.flush)
        return []

    def flush(self, now: float) -> list[Effect]:
        """Tell the members of all who have left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._pending:
            return []
        self._sent_at = now
        pending, self._pending = self._pending, []
        first = pending[0][0]
        to_all = make_notice([left for _, left in pending])
        told: list[Effect] = []
        for member in self._present.values():
            if not member.is_reachable:
                continue
            if member.first_news <= first:
                told.append(Push(member.session, to_all))
            elif later := [left for number, left in pending if number >= member.first_news]:
                told.append(Push(member.session, make_notice(later)))
        return told


def make_notice(gone: list[MemberLeft]) -> MemberLeft | MembersLeft:
    return gone[0] if len(gone) == 1 else MembersLeft(tuple(gone))
