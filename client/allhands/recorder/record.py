"""Records of operations and messages, and their outcomes."""

import os.path
from collections.abc import Iterable

from allhands.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    MembershipChanged,
    PeerFailed,
)
from allhands_proto.quick_dataclass import dataclass

OUTCOMES = ("running", "ok", "timeout", "mismatch", "aborted", "failed", "cancelled")
"""In the order in which the native core numbers them, which has the same names."""


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """A collective, or a message from point to point; times are monotonic nanoseconds."""

    group: str
    sequence: int
    """Number of the call on its group; 0 point to point."""
    operation: str
    nbytes: int
    """Of this rank's array, or block, or of all that it sends."""
    signature: str
    """What all ranks must agree on: dtype, count, reduce op, root."""
    created: int
    """When the program asked for it."""
    started: int
    """When its turn came; 0: not yet."""
    finished: int
    """0: not yet."""
    outcome: str
    """One of OUTCOMES."""
    label: str
    file: str
    """Where the program asked for it: the innermost frame outside of this package; "": unknown."""
    line: int
    function: str
    how: str
    """How it was carried out, in short."""
    waits_for: tuple[int, ...]
    """Ranks of the world that it was last seen to wait for; only while it runs."""

    @property
    def source(self) -> str:
        """Call site in readable form: "train.py:31 in step"."""
        return format_source(self.file, self.line, self.function)


def format_source(file: str, line: int, function: str) -> str:
    """Word a place in a program; "" where none is known."""
    return f"{os.path.basename(file)}:{line} in {function}" if file else ""


def classify_outcome(error: BaseException | None) -> str:
    """Return the item of OUTCOMES for an operation that ended with `error`."""
    match error:
        case None:
            return "ok"
        case CollectiveTimeout():
            return "timeout"
        case CollectiveMismatch():
            return "mismatch"
        case GroupAborted():
            return "aborted"
        case PeerFailed() | MembershipChanged():
            return "failed"
        case _:
            # What has no class of its own was ended by this rank: cancelled, interrupted, left.
            return "cancelled"


def sort_by_time(records: Iterable[OperationRecord]) -> list[OperationRecord]:
    """Return the records of several groups as one list, in order of creation."""
    return sorted(records, key=lambda one: (one.created, one.group, one.sequence))
