"""Messages of a member on a session, beginning with the Join."""

from typing import TypeAlias

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.values import CallStarts, Progress


@fast_dataclass
class Join:
    """First message of a session, see coordinator.proto; `address` is dialled by peers."""

    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    address: str
    heartbeat_window: float = 0.0
    label: str = ""
    hosts_coordinator: bool = False
    memory: str = ""
    data_port: int = 0
    elastic: bool = False
    max_members: int = 0
    pid_namespace: str = ""
    start_ticks: str = ""
    exit_is_reported: bool = False
    stack_channel: str = ""


@fast_dataclass
class Resume:
    """First message on the new stream of a session that broke."""

    job: str
    incarnation: str
    member_id: str
    proof: bytes
    """See allhands_proto.session_proof."""


@fast_dataclass
class Heartbeat:
    probe: int = 0
    progress: tuple[Progress, ...] = ()
    stack: str = ""
    sent_at: float = 0.0
    call_starts: tuple[CallStarts, ...] = ()
    section: str = ""
    section_elapsed: float = 0.0


@fast_dataclass
class OpenGroup:
    group: str
    ranks: tuple[int, ...]


@fast_dataclass
class CloseGroup:
    group: str


@fast_dataclass
class LinkBroken:
    rank: int
    reason: str
    shares_memory: bool = False


@fast_dataclass
class LinkSilent:
    """Nothing has come from `rank` for `seconds` despite pings; or data again, if `is_over`."""

    rank: int
    seconds: float = 0.0
    is_over: bool = False


@fast_dataclass
class Leave:
    progress: tuple[Progress, ...] = ()
    error: str = ""
    traceback: str = ""
    aborts: bool = False
    report: bytes = b""


@fast_dataclass
class PeerInspected:
    """Result of an `InspectPeer`: state of another member's process."""

    member_id: str
    process_state: str
    stack: str = ""


@fast_dataclass
class IndirectAck:
    """Answer to an `IndirectProbe`: the rank is heard over a link."""

    rank: int


@fast_dataclass
class Abort:
    group: str
    reason: str


@fast_dataclass
class CancelCall:
    group: str
    sequence: int
    reason: str


@fast_dataclass
class ReportPart:
    """A piece of a flight report, for a `CollectReport`."""

    number: int
    data: bytes
    is_last: bool


@fast_dataclass
class LastReport:
    """Flight report of a member at the news of a failure."""

    report: bytes


MemberMessage: TypeAlias = (
    Heartbeat
    | OpenGroup
    | CloseGroup
    | LinkBroken
    | LinkSilent
    | Leave
    | PeerInspected
    | IndirectAck
    | Abort
    | CancelCall
    | ReportPart
    | LastReport
)
