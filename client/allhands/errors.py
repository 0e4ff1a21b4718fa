"""Everything that allhands raises on purpose.

    AllhandsError                a RuntimeError; `.code` is the gRPC status it travels as
    ├── CollectiveTimeout        also a TimeoutError: who did not arrive         DEADLINE_EXCEEDED
    ├── CollectiveMismatch       ranks called different things                   FAILED_PRECONDITION
    ├── DataCorrupted            what came is not what was sent                  DATA_LOSS
    ├── PeerFailed               ranks that died or left                         UNAVAILABLE
    ├── GroupAborted             somebody gave up: who and why                   ABORTED
    ├── MembershipChanged        this process is no longer a member              ABORTED
    ├── Refused                  the coordinator says no: the parties disagree   FAILED_PRECONDITION
    │   └── JoinRefused          the job would not have this worker
    ├── NotFound                 also a LookupError: no such job, key, member    NOT_FOUND
    ├── StoreTimeout             also a TimeoutError: keys nobody set            DEADLINE_EXCEEDED
    ├── CoordinatorUnavailable   nobody answers at the coordinator's address     UNAVAILABLE
    ├── Unauthenticated          no token, or a wrong one                        UNAUTHENTICATED
    └── PermissionDenied         the token does not allow this                   PERMISSION_DENIED

Wrong arguments are plain `ValueError` and `TypeError`, raised before any I/O.
"""

from collections.abc import Mapping
from typing import ClassVar


class AllhandsError(RuntimeError):
    """The root of what allhands raises on purpose."""

    code: ClassVar[str] = "UNKNOWN"
    """Name of the gRPC status code with which this failure travels."""


class CollectiveTimeout(AllhandsError, TimeoutError):
    """A call's deadline passed before every rank it needed had done its part.

    The outputs of the call are undefined once its data has begun to move. The group stays usable:
    the next call is matched with the next call of the others.
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
    ) -> None:
        super().__init__(text)
        self.op = op
        self.seq = seq
        self.missing_ranks = missing_ranks
        self.label = label


class CollectiveMismatch(AllhandsError):
    """Ranks made calls that do not belong together; found before any byte was used.

    `table` maps a rank of the group to what it called, as far as this rank knows.
    """

    code = "FAILED_PRECONDITION"

    def __init__(self, text: str, table: Mapping[int, str]) -> None:
        super().__init__(text)
        self.table = dict(table)


class DataCorrupted(AllhandsError):
    """A group with `verify=True` found data changed on its way, or results that differ.

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
    """Ranks that this call needs died or left; groups with them are over.

    The outputs of an interrupted call are undefined.
    """

    code = "UNAVAILABLE"

    def __init__(self, text: str, failed_ranks: tuple[int, ...]) -> None:
        super().__init__(text)
        self.failed_ranks = failed_ranks


class GroupAborted(AllhandsError):
    """Somebody ended the group on purpose."""

    code = "ABORTED"

    def __init__(self, text: str, *, by: str, reason: str) -> None:
        super().__init__(text)
        self.by = by
        self.reason = reason


class MembershipChanged(AllhandsError):
    """The coordinator no longer counts this process as a member."""

    code = "ABORTED"

    def __init__(self, text: str, *, old_epoch: int, new_epoch: int) -> None:
        super().__init__(text)
        self.old_epoch = old_epoch
        self.new_epoch = new_epoch


class Refused(AllhandsError):
    """The coordinator would not do it: what is asked contradicts what others said."""

    code = "FAILED_PRECONDITION"


class JoinRefused(Refused):
    """The job would not have this worker; the text names both parties of a conflict."""


class NotFound(AllhandsError, LookupError):
    """The coordinator knows no such job, key or member."""

    code = "NOT_FOUND"


class StoreTimeout(AllhandsError, TimeoutError):
    """A wait on the store, or a named barrier, ended without what it waited for."""

    code = "DEADLINE_EXCEEDED"


class CoordinatorUnavailable(AllhandsError):
    """Nobody answers at the coordinator's address, or it went away."""

    code = "UNAVAILABLE"


class Unauthenticated(AllhandsError):
    """The coordinator wants a token that this caller did not show."""

    code = "UNAUTHENTICATED"


class PermissionDenied(AllhandsError):
    """The token is good, but not for this."""

    code = "PERMISSION_DENIED"
