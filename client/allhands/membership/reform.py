"""Group changes: requests and decisions of agree, shrink and grow."""

from typing import Protocol

from allhands.engine.group_engine import GroupEngine
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GroupChangeRequest:
    """A rank's request to change or agree on its group; see coordinator.proto."""

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
    """One decision on a group, equal on all ranks that took part."""

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
    """Decides on group changes with the peers, and applies them; lives on one loop."""

    newcomer_count: int
    """Workers that wait to be taken in."""

    @property
    def epoch(self) -> int:
        """The membership's version, as far as this process has heard."""

    async def decide_group_change(
        self, group: str, request: GroupChangeRequest, timeout: float
    ) -> GroupChange:
        """Decide with all present ranks of a group; return once all have asked.

        Raises:
            CollectiveTimeout: not all of them asked within `timeout` seconds.
            MembershipChanged: this process is no member any more.
            Refused: they asked for something else; the text names them.
            CoordinatorUnavailable: nobody answers.
        """

    async def apply_group_change(self, change: GroupChange, timeout: float) -> GroupEngine:
        """Return the engine of the changed group; `timeout` is the default in seconds."""

    async def close_group(self, name: str) -> None:
        """Close a group that has been replaced."""
