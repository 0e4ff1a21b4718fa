"""Interface of a member's session: requests to the coordinator, and the world at its start."""

from collections.abc import Callable, Sequence
from typing import Protocol

from allhands.coordinator.session_listener import SessionListener
from allhands.coordinator.world_member import WorldMember
from allhands.runtime.sections import SectionPosition
from allhands.verdicts import CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire


class MemberSession(Protocol):
    """A membership in the world of a job, on the event loop of its worker.

    Errors are those of `Session`, which has a coordinator.
    """

    joined: wire.Joined
    """The coordinator's answer to the join: rank, secret, limits."""
    epoch: int
    """Version of the job's membership, as known here."""
    group: str
    """Group that took this member in while its world ran; "": present from the start."""
    members: tuple[WorldMember, ...]
    """Members of that group, or of the world, in the order of their ranks."""

    @property
    def report_nbytes(self) -> int:
        """Maximum size in bytes of this member's last report; 0: none."""

    def start(self, listener: SessionListener) -> None:
        """Begin to send heartbeats, and to notify the listener of events."""

    async def open_group(self, name: str, ranks: Sequence[int]) -> None: ...

    async def close_group(self, name: str) -> None: ...

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        """Wait at a monitored barrier; return the verdict on missing ranks, else None."""

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        """Request the verdict on a call; None: there is no answer."""

    async def request_group_change(
        self, request: wire.GroupChangeRequest, timeout: float
    ) -> wire.GroupChange:
        """Decide on a group change with the present members of a group."""

    async def all_present(self, ranks: Sequence[int]) -> bool:
        """Ask whether these ranks are still members."""

    async def report_broken_link(self, rank: int, reason: str, shares_memory: bool) -> None: ...

    def send(self, request: wire.SessionRequest) -> None:
        """Queue a request to the coordinator; requests keep their order."""

    def send_last_report(
        self,
        progress: Sequence[wire.Progress],
        section: SectionPosition | None,
        report: Callable[[int], bytes],
    ) -> None:
        """Send this member's last position and report; `report` takes a size limit in bytes."""

    def handle_event(self, event: wire.SessionEvent, listener: SessionListener) -> None:
        """Notify the listener of an event, received directly or relayed by a peer."""

    async def flush(self) -> None:
        """Wait until queued requests are written or the session is over."""

    async def leave(self, leave: wire.Leave) -> None:
        """End the membership in order: peers can finish the calls that this rank completed."""
