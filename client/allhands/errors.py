"""Exceptions raised by allhands.

    AllhandsError                a RuntimeError; `.code` is the gRPC status it travels as
    ├── CollectiveTimeout        also a TimeoutError: who did not arrive         DEADLINE_EXCEEDED
    ├── CollectiveMismatch       ranks called different things                   FAILED_PRECONDITION
    ├── DataCorrupted            what came is not what was sent                  DATA_LOSS
    ├── PeerFailed               ranks that died or left                         UNAVAILABLE
    ├── GroupAborted             somebody ended a call or a group: who and why   ABORTED
    ├── MembershipChanged        this process is no longer a member              ABORTED
    ├── Refused                  the coordinator says no: the parties disagree   FAILED_PRECONDITION
    │   └── JoinRefused          the job would not have this worker
    ├── NotFound                 also a LookupError: no such job, key, member    NOT_FOUND
    │   └── LeaseNotFound        the lease has ended, or was never granted
    ├── Compacted                the revision asked for is not known any more    OUT_OF_RANGE
    ├── LimitExceeded            also a ValueError: a limit of the coordinator   RESOURCE_EXHAUSTED
    ├── StoreTimeout             also a TimeoutError: keys nobody set            DEADLINE_EXCEEDED
    ├── CoordinatorUnavailable   nobody answers at the coordinator's address     UNAVAILABLE
    ├── Unauthenticated          no token, or a wrong one                        UNAUTHENTICATED
    ├── PermissionDenied         the token does not allow this                   PERMISSION_DENIED
    ├── ForkedProcess            a parent's world or call, used in a child       FAILED_PRECONDITION
    ├── InvalidArgument          also a ValueError: c10d's texts                 INVALID_ARGUMENT
    └── InvalidType              also a TypeError: c10d's texts                  INVALID_ARGUMENT

Wrong arguments are plain `ValueError` and `TypeError`, raised before any I/O; but for the methods
of `ProcessGroup`, whose callers expect a RuntimeError, as c10d raises.

Where ranks were missing, `.verdict` says which and why, the same on all ranks that hear of it; the
text of the error has its paragraph. See `verdicts`.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from allhands.verdicts import Verdict, append_clause
from allhands_proto.quick_dataclass import dataclass

_UNTOUCHED, _UNDEFINED = "the call's outputs are untouched", "the call's outputs are undefined"


class AllhandsError(RuntimeError):
    """Root of the exceptions raised by allhands."""

    code: ClassVar[str] = "UNKNOWN"
    """Name of the gRPC status code with which this failure travels."""
    is_final: bool = False
    """Whether the group cannot go on, however often it is tried."""
    outputs_intact: bool | None = None
    """Of a call that failed: whether its outputs are as they were; else they are undefined.

    None where nobody knows, or there are none. They are whenever ranks called different things, an
    argument was refused, or a rank of the group never came; not always when a rank died, a deadline
    passed or somebody gave up while data moved.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle_error, (type(self), self.args, self.__dict__)

    def add_intact(self, are_intact: bool, say: bool) -> None:
        """Record whether the outputs are intact, if not known yet; `say`: also in the text."""
        if self.outputs_intact is None:
            self.outputs_intact = are_intact
            if say:
                state = _UNTOUCHED if are_intact else _UNDEFINED
                self.args = (append_clause(str(self), state), *self.args[1:])

    def restored(self) -> None:
        """Mark the outputs as restored to the state before the call."""
        self.outputs_intact = True
        self.args = (str(self).replace(_UNDEFINED, _UNTOUCHED), *self.args[1:])


def _unpickle_error(
    kind: type[AllhandsError], arguments: tuple[object, ...], state: Mapping[str, object]
) -> AllhandsError:
    """Rebuild an unpickled error."""
    layout: Any = kind  # of two built-in bases the one that has fields of its own
    while layout.__module__ != "builtins":
        layout = layout.__base__
    error: AllhandsError = layout.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class CollectiveTimeout(AllhandsError, TimeoutError):
    """A call's deadline passed before every rank had completed its part.

    `outputs_intact` says whether its data had begun to move. The group stays usable: the next call
    is matched with the next call of the others.
    """

    code = "DEADLINE_EXCEEDED"

    def __init__(
        self,
        text: str,
        *,
        op: str,
        seq: int,
        missing_ranks: tuple[int, ...] = (),
        label: str | None = None,
        verdict: Verdict | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__(text)
        self.op = op
        self.seq = seq
        self.missing_ranks = missing_ranks
        self.label = label
        self.verdict = verdict
        self.timeout = timeout
        """Seconds that the call had, if that is known."""


class CollectiveMismatch(AllhandsError):
    """Ranks made calls that do not belong together; found before any byte was used.

    `table` maps a rank of the group to what it called, as far as this rank knows.
    """

    code = "FAILED_PRECONDITION"

    def __init__(self, text: str, table: Mapping[int, str]) -> None:
        super().__init__(text)
        self.table = dict(table)


class DataCorrupted(AllhandsError):
    """A group with `verify=True` found corrupted data in transit or unequal results.

    Every rank raises it, unless it had ended the call before. The outputs of the call are
    undefined; the group stays usable.
    """

    code = "DATA_LOSS"

    def __init__(
        self,
        text: str,
        *,
        op: str,
        seq: int,
        link: tuple[int, int] | None = None,
        ranks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(text)
        self.op = op
        self.seq = seq
        self.link = link
        """Where it was changed, from and to which rank of the world, if that is known."""
        self.ranks = ranks
        """Those of the world whose results are unlike most; all, where there is no majority."""


class PeerFailed(AllhandsError):
    """Ranks of the call died or left; groups with these ranks are over.

    `outputs_intact` says whether data of an interrupted call had begun to move.
    """

    code = "UNAVAILABLE"
    again: Callable[[], object] | None = None
    """Makes the call again with the ranks that are left, see `ah.retry`; None: nobody can."""

    def __init__(
        self, text: str, failed_ranks: tuple[int, ...], verdict: Verdict | None = None
    ) -> None:
        super().__init__(text)
        self.failed_ranks = failed_ranks
        self.verdict = verdict


class GroupAborted(AllhandsError):
    """Somebody ended the group on purpose, or only this call of it: by a cancel, or by Ctrl-C.

    Then the group stays usable: the next call is matched with the next call of the others.
    """

    code = "ABORTED"

    def __init__(self, text: str, *, by: str, reason: str, verdict: Verdict | None = None) -> None:
        super().__init__(text)
        self.by = by
        self.reason = reason
        self.verdict = verdict


class MembershipChanged(AllhandsError):
    """The group has other ranks than when the call was made, or this process is no member.

    On retryable groups the arrays of the call are as they were, and the next call is made by the
    ranks that the group has now.
    """

    code = "ABORTED"

    def __init__(self, text: str, *, old_epoch: int, new_epoch: int) -> None:
        super().__init__(text)
        self.old_epoch = old_epoch
        self.new_epoch = new_epoch


class Refused(AllhandsError):
    """The coordinator refused a request that contradicts another rank's."""

    code = "FAILED_PRECONDITION"


class JoinRefused(Refused):
    """The job would not have this worker; the text names both parties of a conflict."""

    def __init__(self, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds after which the job may have room; None: not without a change."""


class NotFound(AllhandsError, LookupError):
    """The coordinator knows no such job, key or member."""

    code = "NOT_FOUND"


class LeaseNotFound(NotFound):
    """The lease has ended, or was never granted."""


class Compacted(AllhandsError):
    """The history of a job's keys does not reach back to the revision asked for.

    Whoever watches looks at the keys, and watches on from behind the revision of that look.
    """

    code = "OUT_OF_RANGE"

    def __init__(self, text: str, *, oldest: int) -> None:
        super().__init__(text)
        self.oldest = oldest
        """Oldest revision that can be asked for."""


class LimitExceeded(AllhandsError, ValueError):
    """A limit of the coordinator would be exceeded; nothing was changed.

    The text says which limit, who uses how much, and how it is raised.
    """

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds after which the call can be made again; None: once there is room."""


class StoreTimeout(AllhandsError, TimeoutError):
    """A wait on the store or at a named barrier timed out."""

    code = "DEADLINE_EXCEEDED"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Holder of a lock, semaphore or election."""

    host: str
    """Empty: not known."""
    pid: int
    since: float | None
    """Seconds since 1970 by the holder's clock; None: not known, as of a leader."""
    key: str
    revision: int
    """Fencing token."""

    def __str__(self) -> str:
        process = f"{self.host} pid {self.pid}" if self.host else f"key {self.key!r}"
        if self.since is None:
            return process
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return f"{process} since {moment} UTC"


class LockTimeout(StoreTimeout):
    """A lock, semaphore or election was held by others at the deadline; the place is given up."""

    def __init__(self, text: str, holders: tuple[LockHolder, ...], waiting: int) -> None:
        super().__init__(text)
        self.holders = holders
        """Holders then; empty: not known, or nobody any more."""
        self.waiting = waiting
        """Number of callers that waited as well."""


class LockHeld(AllhandsError):
    """The thread or task holds the lock, or waits for it; nothing has changed."""

    code = "FAILED_PRECONDITION"


class LockLost(AllhandsError):
    """A lock, semaphore or leadership has ended against its holder's will, or is not held."""

    code = "ABORTED"


class BarrierCancelled(AllhandsError):
    """Somebody cancelled the named barrier: none of those who waited has passed."""

    code = "ABORTED"

    def __init__(self, text: str, *, by: str, reason: str) -> None:
        super().__init__(text)
        self.by = by
        self.reason = reason


class CoordinatorUnavailable(AllhandsError):
    """The coordinator does not answer or went away."""

    code = "UNAVAILABLE"


class Unauthenticated(AllhandsError):
    """The caller did not present the coordinator's token."""

    code = "UNAUTHENTICATED"


class PermissionDenied(AllhandsError):
    """The token is good, but not for this."""

    code = "PERMISSION_DENIED"


class ForkedProcess(AllhandsError):
    """A world, group or call of the parent process used in a forked child.

    A forked child is no rank: it makes a world of its own by init_process_group().
    """

    code = "FAILED_PRECONDITION"

    def __init__(self, what: str = "this group") -> None:
        super().__init__(
            f"{what} belongs to the process that this one was forked from, and a forked child is "
            "no rank of it: call init_process_group() here for a world of its own"
        )


class InvalidArgument(AllhandsError, ValueError):
    """A method of a process group cannot take these arrays or options; nothing has happened."""

    code = "INVALID_ARGUMENT"
    outputs_intact = True


class InvalidType(AllhandsError, TypeError):
    """A method of a process group cannot take elements of this dtype; nothing has happened."""

    code = "INVALID_ARGUMENT"
    outputs_intact = True
