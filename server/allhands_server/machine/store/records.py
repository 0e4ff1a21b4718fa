"""Requests about keys with their records: put, range, and deletion of a range."""

from typing import TypeAlias

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.requests import Request
from allhands_server.machine.store.key_results import DeleteRangeResult, PutResult, RangeResult

BY_KEY, BY_VERSION, BY_CREATE, BY_MOD, BY_VALUE = range(5)
"""Orders of a range; see RangeOrder in coordinator.proto."""


@fast_dataclass
class Put(Request[PutResult]):
    """Set a key; see PutRequest in coordinator.proto."""

    job: str
    key: str
    value: bytes = b""
    lease: int = 0
    member: str = ""
    keeps_value: bool = False
    keeps_bindings: bool = False
    previous: bool = False


@fast_dataclass
class Range(Request[RangeResult]):
    """Ask for the records of a range; see RangeRequest in coordinator.proto."""

    job: str
    key: str
    range_end: str = ""
    prefix: bool = False
    limit: int = 0
    revision: int = 0
    keys_only: bool = False
    count_only: bool = False
    order: int = BY_KEY
    descending: bool = False


@fast_dataclass
class DeleteRange(Request[DeleteRangeResult]):
    """Delete a range; see DeleteRangeRequest in coordinator.proto."""

    job: str
    key: str
    range_end: str = ""
    prefix: bool = False
    previous: bool = False


@fast_dataclass
class Compact(Request[int]):
    """Forget the history up to a revision; answered with the revision of now."""

    job: str
    revision: int


Operation: TypeAlias = Put | Range | DeleteRange
RecordRequest: TypeAlias = Operation | Compact
