"""A message from point to point, as its caller wants it, whichever way it goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allhands.engine.buffer import Array
from allhands.engine.call import Call
from allhands.engine.verdict import Failure
from allhands.engine.work import Work

if TYPE_CHECKING:
    from allhands._native import Message


@dataclass(slots=True, eq=False)
class Exchange:
    """A message that this rank sends or receives."""

    work: Work
    call: Call
    array: Array
    """1-D and contiguous."""
    result: Array
    peer: int | None
    """A rank of the world; None: whoever sends."""
    tag: int
    timeout: float
    deadline: float
    has_touched: bool = False
    """Whether any of it has landed, over links."""
    message: "Message | None" = None
    """Itself, over shared memory, once it is under way there."""

    @property
    def receives(self) -> bool:
        return not self.work.operation.endswith("send")


def named(operation: str, ranks: Sequence[int], peer: int | None, tag: int) -> str:
    """Name a message, for people; `ranks` are those of the group."""
    other = "any rank" if peer is None else f"rank {ranks.index(peer)}"
    direction = "to" if operation.endswith("send") else "from"
    return f"{operation} {direction} {other} (tag {tag})"


def gone(peer: int | None, others: Sequence[int], left: Mapping[int, Failure]) -> Failure | None:
    """Return the failure of a message whose only possible peers have left."""
    candidates = others if peer is None else [peer]
    if not candidates or any(rank not in left for rank in candidates):
        return None
    return left[candidates[0]]
