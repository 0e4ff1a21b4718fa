"""State of one member: identity, signs of life, progress."""

import math
from collections.abc import Iterable
from dataclasses import field, replace

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.verdicts import AbsentRank
from allhands_server.machine.limits import LATEST_CLOCK, check_name, check_section
from allhands_server.machine.member_messages import Join
from allhands_server.machine.timers import Timer
from allhands_server.machine.values import MemberView, Presence, Progress

NEVER = -math.inf
"""A time before all others."""


@dataclass(slots=True, eq=False)
class Member:
    """A rank of one world; kept after loss or departure."""

    member_id: str
    session: int
    rank: int
    join: Join
    heard_at: float
    presence: Presence = Presence.JOINED
    reason: str = ""
    is_broken: bool = False
    """Session over, member not lost yet."""
    is_away: bool = False
    """Restored from the log, and its session not resumed yet."""
    first_news: int = 0
    """Number of the world's first news that concerns it."""
    received: int = 0
    """Number of its last message that has to arrive."""
    unanswered_since: float | None = None
    """Time of the first unanswered probe."""
    probe_answered_at: float = 0.0
    """Time of the answer to the last probe."""
    timer: Timer | None = None
    """Next check for silence or loss."""
    process_state: str = ""
    """State of the process since the member fell silent; see PeerInspected in coordinator.proto."""
    exit_status: int | None = None
    """Exit status reported by the launcher; -n: signal n."""
    loss: AbsentRank | None = None
    """Classification of the loss."""
    gone_at: float | None = None
    """Time of loss or departure."""
    report: bytes = b""
    """Last serialised flight report."""
    stack: str = ""
    """Stack of the main thread at the last answered probe or inspection."""
    inspected_at: float = NEVER
    """Time of the inspection behind `process_state`."""
    acknowledged_at: float = NEVER
    """Time of the last acknowledgement by its host while silent."""
    peer_heard_at: float = NEVER
    """Time at which a peer last heard it over a link while silent."""
    was_peer_heard: bool = False
    """Whether a peer heard it at the request for evidence before the last."""
    evidence_requested_at: float = NEVER
    """Time of the last request for evidence of life."""
    condition: AbsentRank | None = None
    """Condition announced to the world since the member fell silent."""
    operations: int = 0
    """Calls that ended well here, since it joined or was restored from the log."""
    nbytes: int = 0
    """Of the arrays of calls and messages that ended well here, since the same time."""
    seconds: float = 0.0
    """That those took."""
    counts_first_progress: bool = True
    """Whether calls count that were ended before its progress in their group was known."""
    section: str = ""
    """Section of its program at the last heartbeat; empty: in none."""
    section_since: float = 0.0
    """Time of its beginning."""
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
            before = self._progress.get(one.group)
            if before is not None:
                self._count(one, before[0])
            elif self.counts_first_progress:
                self._count(one, Progress(one.group, 0, 0))
            self._progress[one.group] = (one, now)

    def _count(self, now: Progress, before: Progress) -> None:
        self.operations += max(0, now.completed - before.completed)
        self.nbytes += max(0, now.nbytes - before.nbytes)
        # A comparison with what is no number is false.
        if now.seconds - before.seconds > 0:
            self.seconds += min(now.seconds - before.seconds, LATEST_CLOCK)

    def update_section(self, name: str, elapsed: float, now: float) -> None:
        """Update the section that the program is in.

        Raises:
            Refused: the name is too long, or unprintable.
        """
        if name:  # most are in none
            check_section(name)
        self.section = name
        self.section_since = now - (elapsed if 0 < elapsed < LATEST_CLOCK else 0.0)

    def get_section_elapsed(self, now: float) -> float:
        """Return the seconds in the section, which run on until departure; 0 in none."""
        now = now if self.gone_at is None else self.gone_at
        return max(0.0, now - self.section_since) if self.section else 0.0

    def list_operations(self, now: float) -> list[float]:
        """List the seconds for which the member has been in each of its operations."""
        return [
            one.elapsed + max(0.0, now - at) for one, at in self._progress.values() if one.operation
        ]

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
            section=self.section,
            section_elapsed=self.get_section_elapsed(now),
        )


def describe_process(join: Join) -> str:
    """Describe a member's process by host, process id and label."""
    label = f", label {join.label!r}" if join.label else ""
    return f"host {join.host}, pid {join.pid}{label}"
