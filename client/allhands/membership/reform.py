"""What the ranks of a group have decided together, as each of them is told."""

from dataclasses import dataclass
from typing import Protocol

from allhands.engine.group_engine import GroupEngine


@dataclass(frozen=True, slots=True)
class GroupChangeRequest:
    """What a rank asks the others of its group to decide with it; see coordinator.proto."""

    kind: str
    """agree, shrink, grow, admit or replace."""
    flag: bool = True
    wanted: int = 0
    returned: int = 0
    """Calls that have ended here for the caller."""
    computed: int = 0
    """Calls whose result is complete here."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """One decision, the same on all ranks that took part in it."""

    flag: bool
    """Whether all have agreed."""
    epoch: int
    group: str
    """The name of the group that goes on; of an agreement: empty."""
    ranks: tuple[int, ...]
    """Of that group, as ranks of the job, by rank of the group."""
    committed: int
    """Calls up to this one, counted by those who asked, are done for all."""
    has_newcomers: bool


class MembershipChanger(Protocol):
    """Decides with the other ranks of a group, and makes what they decide; lives on one loop."""

    newcomer_count: int
    """Workers that wait to be taken in."""

    @property
    def epoch(self) -> int:
        """The membership's version, as far as this process has heard."""

    async def decide_group_change(
        self, group: str, request: GroupChangeRequest, timeout: float
    ) -> GroupChange:
        """Decide with all ranks of a group who are present; ends once all of them have asked.

        Raises:
            CollectiveTimeout: not all of them asked within `timeout` seconds.
            MembershipChanged: this process is no member any more.
            Refused: they asked for something else; the text names them.
            CoordinatorUnavailable: nobody answers.
        """

    async def apply_group_change(self, change: GroupChange, timeout: float) -> GroupEngine:
        """Make this rank's engine of the group that goes on; `timeout` is its calls' default."""

    async def close_group(self, name: str) -> None:
        """Forget a group that others have taken the place of."""
