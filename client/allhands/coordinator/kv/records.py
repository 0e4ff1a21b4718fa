"""Values that key-value calls return: records of keys, ranges, events, leases."""

from collections.abc import Iterator
from dataclasses import field
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key with its last change."""

    key: str
    value: bytes
    """Empty where values were not asked for."""
    create_revision: int
    mod_revision: int
    version: int
    """Number of changes since the key was created, from 1."""
    lease: int = 0
    """Lease with the end of which the key is deleted; 0: none."""
    member: str = ""
    """Member with the loss or departure of which the key is deleted; empty: none."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Records of a range of keys at one revision; iterates over the records."""

    revision: int
    """Revision of the job's keys at the call, or the revision asked for."""
    records: tuple[KeyRecord, ...]
    count: int
    """Number of all keys in the range."""
    has_more: bool
    """Whether the range has more keys than there are records here."""

    def __iter__(self) -> Iterator[KeyRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class PutResult:
    """Result of a put in a transaction."""

    revision: int
    previous: KeyRecord | None
    """Record before, if asked for and present."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result of the deletion of a range."""

    revision: int
    deleted: int
    """Number of keys."""
    previous: tuple[KeyRecord, ...]
    """Records before, if asked for."""


OperationResult: TypeAlias = PutResult | KeyRange | DeleteResult


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Result of a transaction; true if all conditions held."""

    succeeded: bool
    revision: int
    results: tuple[OperationResult, ...]
    """Of the operations carried out, in order."""

    def __bool__(self) -> bool:
        return self.succeeded


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """Put or deletion of a key, as a watch reports it."""

    record: KeyRecord
    """Record after a put; of a deleted key only `key` and `mod_revision` are meant."""
    is_deletion: bool = False
    previous: KeyRecord | None = None
    """Record before, if asked for and present."""

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def value(self) -> bytes:
        return self.record.value

    @property
    def revision(self) -> int:
        """Revision of the change."""
        return self.record.mod_revision


@dataclass(frozen=True, slots=True)
class WatchPlace:
    """Place in the events of a job from which a watch goes on."""

    revision: int
    """Of the next event, or a later one."""
    skip: int = 0
    """Number of the watch's events of that revision that are known."""


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """The next events of a watch, with the place behind them."""

    events: tuple[KeyEvent, ...]
    place: WatchPlace


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Times of a lease, in seconds, with its keys."""

    granted: float
    remaining: float
    keys: tuple[str, ...] = field(default=())
