"""Members of a world in the order of their latest heartbeats, with one timer for all."""

from collections import OrderedDict
from collections.abc import Callable

from allhands_server.machine.effects import Effect
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.member import Member


class HeartbeatQueue:
    """Members that are heard, the longest silent first.

    A heartbeat costs the same in every world, and so does the timer: it is due when the first
    member has been silent for too long, and most of the time another member is the first by then.
    """

    def __init__(
        self,
        timers: TimerQueue,
        get_patience: Callable[[], float],
        on_silent: Callable[[list[Member], float], list[Effect]],
    ) -> None:
        """Make an empty queue; `on_silent` gets the members silent for the patience, in seconds."""
        self._timers = timers
        self._get_patience = get_patience
        self._on_silent = on_silent
        self._members: OrderedDict[Member, None] = OrderedDict()
        self._timer: Timer | None = None

    def __contains__(self, member: Member) -> bool:
        return member in self._members

    def add(self, member: Member, now: float) -> None:
        """Put a member that is heard now at the end."""
        self._members[member] = None
        self._members.move_to_end(member)
        if self._timer is None:
            self._timer = self._timers.schedule(now + self._get_patience(), self._find_silent)

    def discard(self, member: Member) -> None:
        """Take a member out. Idempotent."""
        if member in self._members:
            del self._members[member]
            if not self._members and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _find_silent(self, now: float) -> list[Effect]:
        """Take the silent members out, and wait for the next."""
        self._timer = None
        patience, silent = self._get_patience(), []
        while self._members:
            first = next(iter(self._members))
            if now < first.heard_at + patience:
                self._timer = self._timers.schedule(first.heard_at + patience, self._find_silent)
                break
            del self._members[first]
            silent.append(first)
        return self._on_silent(silent, now) if silent else []
