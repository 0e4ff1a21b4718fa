"""One member of a world: who it is, when it was last heard, what it last said it does."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from allhands_server.machine.events import Join
from allhands_server.machine.limits import check_name
from allhands_server.machine.timers import Appointment
from allhands_server.machine.values import AbsentRank, MemberView, Presence, Progress

NEVER = -math.inf
"""A time at which nothing has happened."""


@dataclass(slots=True, eq=False)
class Member:
    """A rank of one world; it stays known there after it is lost or has left."""

    member_id: str
    session: int
    rank: int
    join: Join
    heard: float
    presence: Presence = Presence.JOINED
    reason: str = ""
    is_broken: bool = False
    """Its session is over, but it is not lost yet."""
    unanswered: float | None = None
    """When the first probe went out that it has not answered."""
    replied: float = 0.0
    """When it answered the last probe."""
    watch: Appointment | None = None
    """The next look at whether it is silent, or lost for good."""
    sight: str = ""
    """What was seen of its process since it fell silent; see coordinator.proto."""
    status: int | None = None
    """How its process ended, if who started it has said so."""
    fate: AbsentRank | None = None
    """Why it was lost."""
    gone: float | None = None
    """When it was lost or left."""
    report: bytes = b""
    """What it had recorded at a failure or its end, as it serialised that."""
    stack: str = ""
    """Where its main thread was when it last answered a probe, or its process was looked at."""
    seen: float = NEVER
    """When its process was seen as `sight` says."""
    acknowledged: float = NEVER
    """When its host acknowledged what its session was sent, though it is silent."""
    answered: float = NEVER
    """When a peer heard it over a link, though it is silent."""
    had_answered: bool = False
    """The same was so when that was asked before."""
    collected: float = NEVER
    """When evidence of its life was asked for last."""
    condition: AbsentRank | None = None
    """What the others were told that it is, since it fell silent."""
    _progress: dict[str, tuple[Progress, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"rank {self.rank} ({party(self.join)})"

    @property
    def is_assigned(self) -> bool:
        """The coordinator chose its rank."""
        return self.join.rank < 0

    @property
    def is_present(self) -> bool:
        return self.presence is Presence.JOINED

    @property
    def is_reachable(self) -> bool:
        return self.is_present and not self.is_broken

    def learn(self, progress: Iterable[Progress], now: float) -> None:
        """Take in where it is; groups that it does not mention are as before.

        Raises:
            Refused: a name in it is none.
        """
        for one in progress:
            check_name("the name of the group", one.group)
            check_name("the operation", one.operation, empty=True)
            self._progress[one.group] = (one, now)

    def forget(self, group: str) -> None:
        self._progress.pop(group, None)

    def progress(self, now: float) -> tuple[Progress, ...]:
        """Where it is in each group, as far as it has said; `elapsed` runs on until it is gone."""
        now = now if self.gone is None else self.gone
        return tuple(
            replace(one, elapsed=one.elapsed + max(0.0, now - at))
            for _, (one, at) in sorted(self._progress.items())
        )

    def begun(self, group: str) -> int:
        return self._progress[group][0].sequence if group in self._progress else 0

    def completed(self, group: str) -> int:
        return self._progress[group][0].completed if group in self._progress else 0

    def cut_off(self, group: str) -> tuple[int, ...]:
        """Ranks that do not answer its pings, of those that it waits for in a group."""
        found = self._progress.get(group)
        return () if found is None or not found[0].operation else found[0].unanswered

    def view(self, now: float) -> MemberView:
        return MemberView(
            member_id=self.member_id,
            rank=self.rank,
            host=self.join.host,
            pid=self.join.pid,
            address=self.join.address,
            label=self.join.label,
            hosts_coordinator=self.join.hosts_coordinator,
            memory=self.join.memory,
            last_heartbeat=max(0.0, now - self.heard),
            progress=self.progress(now),
            presence=self.presence,
            reason=self.reason,
            data_port=self.join.data_port,
            space=self.join.space,
            born=self.join.born,
            gone=None if self.gone is None else max(0.0, now - self.gone),
            condition=self.condition,
        )


def party(join: Join) -> str:
    """Say which process this is."""
    label = f", label {join.label!r}" if join.label else ""
    return f"host {join.host}, pid {join.pid}{label}"
