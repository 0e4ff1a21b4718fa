"""Requests to the machine about jobs, calls and groups; those of a store are in `store`."""

from typing import ClassVar, Generic, TypeAlias, TypeVar

from allhands_proto.verdicts import CallCancellation, Verdict
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.values import (
    BarrierResult,
    BarrierView,
    GroupChange,
    JobEvent,
    JobView,
    MemberReport,
    TokenView,
)

R = TypeVar("R")


class Request(Generic[R]):
    """A request with a single answer R, the type parameter, or a refusal."""

    __slots__ = ()

    keeps_answer: ClassVar[bool] = True
    """Whether who asks again, by the same origin, gets the answer of the first time.

    Such an answer is in the log, which has to know its type. False: a request that asks again is a
    new one.
    """


@fast_dataclass
class Barrier(Request[int | BarrierResult]):
    """Arrive at a barrier; answered with the generation after all participants.

    With `takes_cancellation` the answer is a BarrierResult.
    """

    job: str
    name: str
    participant: str
    participants: tuple[str, ...]
    size: int = 0
    """Not 0: the number of participants, and none are listed."""
    takes_cancellation: bool = False
    digest: bytes = b""
    """Of the participants in order, in place of their list; then `count` is their number."""
    count: int = 0
    first_participants: tuple[str, ...] = ()
    """The first few in order, who send the list themselves."""


@fast_dataclass
class CancelBarrier(Request[int]):
    """Let all fail who wait at a barrier; answered with their number."""

    job: str
    name: str
    by: str
    reason: str


@fast_dataclass
class ListBarriers(Request[tuple[BarrierView, ...]]):
    """Answered by name."""

    job: str


BarrierRequest: TypeAlias = Barrier | CancelBarrier | ListBarriers


@fast_dataclass
class AwaitVerdict(Request[Verdict | CallCancellation]):
    """Ask for the absent ranks of a call at its deadline; `waiting_on` are world ranks.

    The answer comes at the call's deadline, or up to half a second later while members are probed.
    """

    keeps_answer: ClassVar[bool] = False

    job: str
    member_id: str
    group: str
    sequence: int
    operation: str
    waiting_on: tuple[int, ...] = ()


@fast_dataclass
class ChangeGroup(Request[GroupChange]):
    """Decide jointly with all present members of a group; see coordinator.proto."""

    keeps_answer: ClassVar[bool] = False

    job: str
    member_id: str
    group: str
    kind: str
    flag: bool = False
    wanted: int = 0
    returned: int = 0
    computed: int = 0
    number: int = 0
    """Of the member's requests; the same where it asks again. 0: it never does."""


@fast_dataclass
class MonitoredBarrier(Request[Verdict | None]):
    """Arrive at a monitored barrier: None after all members of the group have arrived.

    The verdict at the first deadline passed is the answer of all, late arrivals included.
    """

    keeps_answer: ClassVar[bool] = False

    job: str
    member_id: str
    group: str
    sequence: int


@fast_dataclass
class AbortJob(Request[int]):
    """Abort a job and release the members; answered with the number of members."""

    job: str
    by: str
    reason: str


@fast_dataclass
class DeleteJob(Request[int]):
    """Delete a job; with `force` also a job with members, which are expelled.

    Answered with the number of expelled members.
    """

    job: str
    by: str
    force: bool = False


@fast_dataclass
class ReportExit(Request[bool]):
    """Report the exit status of a process (-n: signal n); answered True for a member's."""

    job: str
    pid_namespace: str
    pid: int
    start_ticks: str
    status: int


@fast_dataclass
class CreateToken(Request[str]):
    """Make a token; answered with its id. `at` is the wall clock's time, as `expires_at`."""

    id: str
    digest: bytes
    job: str
    verbs: tuple[str, ...]
    expires_at: float
    max_joins: int
    at: float


@fast_dataclass
class ListTokens(Request[tuple[TokenView, ...]]):
    """Answered by job."""

    keeps_answer: ClassVar[bool] = False


@fast_dataclass
class RevokeToken(Request[str]):
    """Make a token useless; answered with its id."""

    id: str


@fast_dataclass
class ListJobs(Request[tuple[JobView, ...]]):
    """Answered by name."""

    keeps_answer: ClassVar[bool] = False


@fast_dataclass
class DescribeJob(Request[JobView]):
    keeps_answer: ClassVar[bool] = False

    job: str
    waits_seconds: float = 0.0
    """Describe waits with the periods of so many seconds; 0: without."""


@fast_dataclass
class ListEvents(Request[tuple[JobEvent, ...]]):
    """List the events of a job after a number, in order.

    With `waits` the answer comes with the next event, or empty when the time is over.
    """

    keeps_answer: ClassVar[bool] = False

    job: str
    after: int = 0
    waits: bool = False


@fast_dataclass
class CollectReports(Request[tuple[MemberReport, ...]]):
    """Collect flight reports of members, `operations` of each group; answered by rank."""

    keeps_answer: ClassVar[bool] = False

    job: str
    operations: int
    ranks: tuple[int, ...] = ()
    """Of these members; empty: of all."""
