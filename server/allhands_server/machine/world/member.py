"""State of one member: identity, signs of life, progress."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from allhands_proto.values import AbsentRank
from allhands_server.machine.limits import check_name
from allhands_server.machine.member_messages import Join
from allhands_server.machine.timers import Timer
from allhands_server.machine.values import MemberView, Presence, Progress

NEVER = -math.inf
"""A time at which nothing has happened."""


@dataclass(slots=True, eq=False)
class Member:
    """A rank of one world; kept after its loss or departure."""

    member_id: str
    session: int
    rank: int
    join: Join
    heard_at: float
    presence: Presence = Presence.JOINED
    reason: str = ""
    is_broken: bool = False
    """Its session is over, but it is not lost yet."""
    unanswered_since: float | None = None
    """When the first probe went out that it has not answered."""
    probe_answered_at: float = 0.0
    """When it answered the last probe."""
    timer: Timer | None = None
    """The next look at whether it is silent, or lost for good."""
    process_state: str = ""
    """What was seen of its process since it fell silent; see coordinator.proto."""
    exit_status: int | None = None
    """How its process ended, if who started it has said so."""
    loss: AbsentRank | None = None
    """Why it was lost."""
    gone_at: float | None = None
    """When it was lost or left."""
    report: bytes = b""
    """What it had recorded at a failure or its end, as it serialised that."""
    stack: str = ""
    """Where its main thread was when it last answered a probe, or its process was looked at."""
    inspected_at: float = NEVER
    """When its process was seen as `sight` says."""
    acknowledged_at: float = NEVER
    """When its host acknowledged what its session was sent, though it is silent."""
    peer_heard_at: float = NEVER
    """When a peer heard it over a link, though it is silent."""
    was_peer_heard: bool = False
    """The same was so when that was asked before."""
    evidence_requested_at: float = NEVER
    """When evidence of its life was asked for last."""
    condition: AbsentRank | None = None
    """What the others were told that it is, since it fell silent."""
    _progress: dict[str, tuple[Progress, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"rank {self.rank} ({describe_process(self.join)})"

    @property
    def is_assigned(self) -> bool:
        """Whether the coordinator chose the rank."""
        return self.join.rank < 0

    @property
    def is_present(self) -> bool:
        return self.presence is Presence.JOINED

    @property
    def is_reachable(self) -> bool:
        return self.is_present and not self.is_broken

    def update_progress(self, progress: Iterable[Progress], now: float) -> None:
        """Update the progress in the given groups.

        Raises:
            Refused: a name in it is none.
        """
        for one in progress:
            check_name("the name of the group", one.group)
            check_name("the operation", one.operation, empty=True)
            self._progress[one.group] = (one, now)

    def forget_group(self, group: str) -> None:
        self._progress.pop(group, None)

    def get_progress(self, now: float) -> tuple[Progress, ...]:
        """Return the progress in each group; `elapsed` runs on until departure."""
        now = now if self.gone_at is None else self.gone_at
        return tuple(
            replace(one, elapsed=one.elapsed + max(0.0, now - at))
            for _, (one, at) in sorted(self._progress.items())
        )

    def get_begun(self, group: str) -> int:
        return self._progress[group][0].sequence if group in self._progress else 0

    def get_completed(self, group: str) -> int:
        return self._progress[group][0].completed if group in self._progress else 0

    def get_unanswered(self, group: str) -> tuple[int, ...]:
        """Return the awaited ranks of a group with unanswered pings."""
        found = self._progress.get(group)
        return () if found is None or not found[0].operation else found[0].unanswered_pings

    def describe(self, now: float) -> MemberView:
        return MemberView(
            member_id=self.member_id,
            rank=self.rank,
            host=self.join.host,
            pid=self.join.pid,
            address=self.join.address,
            label=self.join.label,
            hosts_coordinator=self.join.hosts_coordinator,
            memory=self.join.memory,
            last_heartbeat=max(0.0, now - self.heard_at),
            progress=self.get_progress(now),
            presence=self.presence,
            reason=self.reason,
            data_port=self.join.data_port,
            pid_namespace=self.join.pid_namespace,
            start_ticks=self.join.start_ticks,
            gone=None if self.gone_at is None else max(0.0, now - self.gone_at),
            condition=self.condition,
        )


def describe_process(join: Join) -> str:
    """Describe a member's process by host, process id and label."""
    label = f", label {join.label!r}" if join.label else ""
    return f"host {join.host}, pid {join.pid}{label}"
