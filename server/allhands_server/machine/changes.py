"""Changes of the durable state: the facts that the log keeps.

A change says what is so from now on, not what was asked: applying it needs no decision, so the log
of an old version means the same to a new one. State is changed by applying changes and in no other
way, live and when the log is read.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.world_changes import WorldChange


@fast_dataclass
class KeyPut:
    job: str
    key: str
    value: bytes
    revision: int
    created: int
    """Revision at which the key was created."""
    version: int
    """Number of changes since then, from 1."""
    lease: int = 0
    """Lease with the end of which the key is deleted; 0: none."""
    member: str = ""
    """Member with the loss or departure of which the key is deleted; empty: none."""


@fast_dataclass
class KeyDeleted:
    job: str
    key: str
    revision: int


@fast_dataclass
class RangeDeleted:
    """All keys from `key` on that are less than `range_end` were deleted; empty: without end."""

    job: str
    key: str
    range_end: str
    revision: int


@fast_dataclass
class HistoryCompacted:
    """The events of the keys up to a revision were forgotten."""

    job: str
    revision: int


@fast_dataclass
class LeaseGranted:
    job: str
    lease: int
    ttl: float
    """Seconds."""
    revision: int


@fast_dataclass
class LeaseEnded:
    """A lease was revoked or has expired, and its keys were deleted."""

    job: str
    lease: int
    revision: int


@fast_dataclass
class MemberKeysDeleted:
    """The keys bound to a member were deleted."""

    job: str
    member: str
    revision: int


@fast_dataclass
class QueuePushed:
    """A value was added at the end of a queue."""

    job: str
    key: str
    value: bytes


@fast_dataclass
class QueueTaken:
    """The first value of a queue was removed."""

    job: str
    key: str


@fast_dataclass
class BarrierOpened:
    job: str
    name: str
    generation: int


@fast_dataclass
class WorldOpened:
    """A world of which no more is known has been complete: keys and queues are that world's."""

    job: str


@fast_dataclass
class JobCleared:
    """Keys, queues and the generations of barriers were dropped."""

    job: str
    revision: int
    has_world: bool
    """Whether they were dropped for another world."""


@fast_dataclass
class JobForgotten:
    """A job was dropped with keys, queues and barriers."""

    job: str


@fast_dataclass
class RevisionReached:
    """Revisions up to this one have been given in jobs that are forgotten."""

    revision: int


@fast_dataclass
class TokenCreated:
    """A token opens a job from now on; the log has the digest of its secret alone."""

    id: str
    digest: bytes
    """SHA-256 of its secret."""
    job: str
    """`*`: all jobs."""
    verbs: tuple[str, ...]
    expires_at: float
    """Seconds since 1970; 0: never."""
    max_joins: int
    """0: any number."""


@fast_dataclass
class TokenUsed:
    """A member has joined with a token."""

    id: str
    member: str


@fast_dataclass
class TokenRevoked:
    """A token opens nothing any more: it was revoked, or has expired."""

    id: str


@fast_dataclass
class Completed:
    """A client's request has had its effect, and this answer."""

    client: bytes
    number: int
    oldest: int
    """Number of the client's oldest request without an answer: older answers are dropped."""
    answer: Any


@fast_dataclass
class ClientsForgotten:
    """Answers of a client were dropped for want of room."""


Change: TypeAlias = (
    TokenCreated
    | TokenUsed
    | TokenRevoked
    | KeyPut
    | KeyDeleted
    | RangeDeleted
    | HistoryCompacted
    | LeaseGranted
    | LeaseEnded
    | MemberKeysDeleted
    | QueuePushed
    | QueueTaken
    | BarrierOpened
    | WorldOpened
    | JobCleared
    | JobForgotten
    | RevisionReached
    | WorldChange
    | Completed
    | ClientsForgotten
)

C = TypeVar("C", bound=Change)
C_contra = TypeVar("C_contra", bound=Change, contravariant=True)
Undo: TypeAlias = Callable[[], None]


class DurableState(Protocol[C_contra]):
    """Part of the state that changes by changes alone."""

    def apply(self, change: C_contra) -> None:
        """Make a change."""

    def make_undo(self, change: C_contra) -> Undo | None:
        """Return the reverse of a change about to be applied; None: there is none."""


class ChangeRecorder(Protocol):
    """Maker of changes, which may keep them for a log."""

    is_durable: bool
    """Whether a log keeps them."""

    def commit(self, change: C, state: DurableState[C]) -> None:
        """Have `state` apply a change."""


class NoRecorder:
    """Recorder of a coordinator without a log."""

    is_durable = False

    def commit(self, change: C, state: DurableState[C]) -> None:
        """Have `state` apply a change."""
        state.apply(change)


class CommitRecorder:
    """Recorder of the changes that a log has not made durable yet, commit by commit."""

    is_durable = True

    def __init__(self) -> None:
        self._kept: list[Change] = []
        """Changes that hold though a log refused them: part of the next commit."""
        self._changes: list[Change] = []
        self._undos: list[Undo | None] = []
        """One for each change of the open commit."""
        self._sent: deque[tuple[tuple[Change, ...], list[Undo | None]]] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether all changes are durable."""
        return not (self._sent or self._changes)

    def commit(self, change: C, state: DurableState[C]) -> None:
        """Keep a change, and have `state` apply the change."""
        self._changes.append(change)
        self._undos.append(state.make_undo(change))
        state.apply(change)

    def take_commit(self) -> tuple[Change, ...]:
        """Close the open commit; return its changes, none if there are none."""
        if not self._changes:
            return ()
        commit = (*self._kept, *self._changes)
        self._sent.append((commit, [*[None] * len(self._kept), *self._undos]))
        self._kept, self._changes, self._undos = [], [], []
        return commit

    def on_durable(self) -> None:
        """Note that the oldest commit is durable."""
        self._sent.popleft()

    def undo_all(self) -> None:
        """Take back all changes that are not durable; those that hold go into the next commit."""
        kept: list[Change] = []
        undos: list[tuple[Change, Undo]] = []
        for commit, made in (*self._sent, (self._changes, self._undos)):
            for change, undo in zip(commit, made, strict=True):
                if undo is not None:
                    undos.append((change, undo))
                    continue
                kept.append(change)
                if isinstance(change, JobCleared):  # the earlier changes of its job are gone
                    undos = [one for one in undos if not _is_cleared(one[0], change.job)]
        for _, undo in reversed(undos):
            undo()
        self._sent.clear()
        self._kept = [*kept, *self._kept]
        self._changes, self._undos = [], []


def _is_cleared(change: Change, job: str) -> bool:
    """Return whether clearing a job has undone a change; tokens are not of the job they open."""
    return getattr(change, "job", "") == job and not isinstance(change, TokenCreated)
