"""Results of requests about keys with their records."""

from typing import TypeAlias

from allhands_server.machine.changes import KeyPut
from allhands_server.machine.fast_dataclass import fast_dataclass


@fast_dataclass
class PutResult:
    revision: int
    previous: KeyPut | None = None


@fast_dataclass
class RangeResult:
    revision: int
    """Of the job's keys, now."""
    records: tuple[KeyPut, ...] = ()
    count: int = 0
    """Number of keys in the range."""
    has_more: bool = False
    """Whether the range has more keys than there are records here."""
    keys_only: bool = False
    """Whether the values of the records were not asked for."""
    oldest: int = 0
    """Not 0: the revision asked for is compacted, and this is the first that is not."""


@fast_dataclass
class DeleteRangeResult:
    revision: int
    deleted: int
    """Number of keys."""
    previous: tuple[KeyPut, ...] = ()


OperationResult: TypeAlias = PutResult | RangeResult | DeleteRangeResult
