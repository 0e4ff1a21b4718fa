"""Status of the leadership, as one daemon of several knows it."""

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LeadershipStatus:
    """What one of several daemons knows of who leads."""

    role: str
    leader: str
    """Address; empty: none is known."""
    term: int
