"""Bytes and time of the operations that ended well."""

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Sums over the recorded operations of a group on this rank, since the group was made."""

    nbytes: int = 0
    """Of the arrays that this rank brought, or received in messages."""
    seconds: float = 0.0
    """From the beginning of each to its end, waiting for other ranks included."""
