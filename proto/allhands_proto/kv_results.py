"""Results of key-value calls that are more than a value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompareSetResult:
    """Result of a compare-and-set."""

    swapped: bool
    value: bytes | None
    """Value of the key now; None: no such key."""
