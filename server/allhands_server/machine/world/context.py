"""The part of a world for the failure detector and link monitors."""

from collections.abc import Callable, Iterable
from typing import Protocol

from allhands_server.machine.effects import Effect, Notification
from allhands_server.machine.job_events import JobEvents
from allhands_server.machine.world.member import Member
from allhands_server.machine.world_changes import WorldChange


class WorldContext(Protocol):
    """Members of a world, and the actions of the world for monitors."""

    job: str
    heartbeat_window: float
    """Seconds of silence after which a member counts as lost."""
    members: dict[int, Member]
    """By rank, including lost members and those who left."""
    present: dict[int, Member]
    """By rank, without lost members and those who left."""

    events: JobEvents
    """Of the job."""

    commit: Callable[[WorldChange], None]
    """Make a change, which the log keeps once the world is complete."""

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a member."""

    @property
    def is_forming(self) -> bool:
        """Whether ranks are still missing."""

    @property
    def is_live(self) -> bool:
        """Whether the world has formed and has members."""

    def get_member(self, member_id: str) -> Member | None:
        """Return the member with this identity, also one that is gone; not a newcomer."""

    def is_outside(self, member: Member) -> bool:
        """Whether the member belongs to no formed world."""

    def lose(self, member: Member, reason: str, now: float) -> list[Effect]:
        """Count a member as lost."""

    def push(self, members: Iterable[Member], what: Notification) -> list[Effect]:
        """Send a notification to those of the members with an open session."""

    def push_to_present(self, what: Notification) -> list[Effect]:
        """Send a notification to all present members with an open session."""
