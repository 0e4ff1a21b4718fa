"""Results of key-value calls that are more than a value."""

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CompareSetResult:
    """Result of a compare-and-set."""

    swapped: bool
    value: bytes | None
    """Value of the key now; None: no such key."""
