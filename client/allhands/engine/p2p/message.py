"""A point-to-point message as its caller specified it, independent of the route."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from allhands.collectives.buffer import Array
from allhands.collectives.signature import CallSignature, Result
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveTimeout
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import Message


@dataclass(slots=True, eq=False)
class P2PRequest:
    """A message sent or received by this rank."""

    work: Work
    call: CallSignature
    array: Array
    """1-D and contiguous."""
    result: Result
    """What its work gives."""
    peer: int | None
    """A rank of the world; None: whoever sends."""
    tag: int
    timeout: float
    deadline: float
    has_touched: bool = False
    """Whether any of it has landed, over links."""
    shm_message: "Message | None" = None
    """Itself, over shared memory, once it is under way there."""

    @property
    def receives(self) -> bool:
        return not self.work.operation.endswith("send")


def name_message(operation: str, ranks: Sequence[int], peer: int | None, tag: int) -> str:
    """Name a message, for people; `ranks` are those of the group."""
    other = "any rank" if peer is None else f"rank {ranks.index(peer)}"
    direction = "to" if operation.endswith("send") else "from"
    return f"{operation} {direction} {other} (tag {tag})"


def add_intact(error: Exception, receives: bool, has_touched: bool) -> None:
    """Record in an error whether a failed receive touched its array."""
    if receives and isinstance(error, AllhandsError):
        error.add_intact(not has_touched, say=isinstance(error, CollectiveTimeout))


def describe_sent(nbytes: int, signature: int, sign: Callable[[str, int], int]) -> str:
    """Describe a sender's message from its byte count and signature, for a table.

    The row is the sender's own if the dtype has a name that is known here.
    """
    for name, itemsize in _DTYPES:
        count, rest = divmod(nbytes, itemsize)
        if not rest and sign(name, count) == signature:
            return f"message({name}[{count}])"
    return f"message({nbytes} bytes of a dtype that is not known here)"


_DTYPES = (
    ("bfloat16", 2),
    *((str(np.dtype(one)), np.dtype(one).itemsize) for one in "?bBhHiIqQefdFDgG"),
)
