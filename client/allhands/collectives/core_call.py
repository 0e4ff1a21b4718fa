"""Composite calls that the native core carries out as one call, where ranks share memory."""

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from allhands.collectives.buffer import Array
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest, mark_phase_signature, name_dtype
from allhands.collectives.signature import CallSignature, CoalescedSignature, Result, Shape
from allhands.data.serializer import UInt8Array
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import AsyncCall, ShmComm, ShmWork

Buffer: TypeAlias = bytes | NDArray[Any]
"""Bytes that are sent: an array is C-contiguous."""
Message: TypeAlias = tuple[Buffer, ...]
"""The bytes of one message, buffer after buffer."""
Received: TypeAlias = Sequence[UInt8Array | None]
"""A new array of bytes from each rank; None in the place of this rank."""


class Reading:
    """The result of a queued call, made once of what has come by a thread that asks for it."""

    __slots__ = ("_lock", "_read", "_received", "error", "result")

    def __init__(self, read: Callable[[Any], Result]) -> None:
        self._read: Callable[[Any], Result] | None = read
        self._received: object = None
        self._lock = threading.RLock()
        self.result: Result = None
        self.error: Exception | None = None
        """Why there is no result."""

    def finish(self, call: "AsyncCall") -> None:
        """Make the result of a call that has ended well, which may run code of users."""
        with self._lock:
            if (read := self._read) is None:
                return
            if self._received is None:
                self._received = call.take_received()
            try:
                self.result = read(self._received)
            except Exception as error:
                self.error = error
            self._read = self._received = None


class CoreCall(Protocol):
    """A composite call in the form of the native core."""

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        """Run the call to its end on this thread; return its result in a tuple.

        Args:
            sequence: number of a queued call; 0: now, if nothing is under way, else None is
                returned and nothing has happened.
            timeout: seconds that the call may take.
            deadline: end of that time on the monotonic clock.

        Raises:
            AllhandsError: the call failed.
        """

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool
    ) -> "ShmWork | None":
        """Queue the call at the communicator, as `CollectiveRequest.enqueue`; None: not possible.

        With `waits` the caller is about to wait for it.
        """


@dataclass(frozen=True, slots=True)
class InPlaceCall:
    """A call of which the core has a kind, and which writes its argument."""

    request: CollectiveRequest
    result: Result

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        ran = self.request.run(comm, sequence, timeout, deadline, label)
        return (self.result,) if ran else None

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool
    ) -> "ShmWork | None":
        return self.request.enqueue(comm, timeout, label, self.result, waits=waits)


@dataclass(frozen=True, slots=True)
class CoalescedReduction:
    """An all_reduce of several arrays of one dtype, packed and unpacked by the core."""

    arrays: list[Array]
    shapes: list[Shape]
    """Of the arrays as callers gave them."""
    op: ReduceOp
    result: Result

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        call = CoalescedSignature(name_dtype(self.arrays[0].dtype), self.shapes, self.op.name)
        ran = comm.all_reduce_coalesced(
            sequence,
            self.arrays,
            self.shapes,
            self.op,
            call,
            call.operation,
            timeout,
            deadline,
            label,
        )
        return (self.result,) if ran else None

    def enqueue(self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool) -> None:
        """Return None: the core's queue does not pack arrays."""


class SignedCall(NamedTuple):
    """A composite call and its signature, which takes longer to compute than a small call."""

    call: CallSignature
    signature: int


@lru_cache(maxsize=1024)
def sign_call(
    operation: str,
    dtype: str = "",
    root: int | None = None,
    count: int | None = None,
    reduce: str = "",
    shape: Shape | None = None,
) -> SignedCall:
    """Return a composite call as it travels, from some of its facts."""
    call = CallSignature(operation, dtype, count, reduce, root, shape=shape)
    return SignedCall(call, mark_phase_signature(call.signature))


class Exchange(NamedTuple):
    """Messages between all ranks, the sizes of which only their senders know."""

    signed: SignedCall
    messages: Message | list[Message] | dict[int, Message]
    """One message for all ranks, one for each, or some by ranks; that for this rank is not sent."""
    read: Callable[[Received], Result]
    """Makes the result of what has come."""
    root: int = -1
    """Rank that alone sends anything, as all ranks know; -1: all may."""
    to_root: bool = False
    """Whether that rank alone receives anything instead."""
    most: int = (1 << 63) - 1
    """Bytes of a message at most, as all ranks know."""

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        call, signature = self.signed
        received = comm.exchange(
            *(sequence, self.messages, call, call.operation, signature),
            *(timeout, deadline, label, self.root, self.to_root),
        )
        return None if received is False else (self.read(received),)

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool
    ) -> "ShmWork | None":
        call, signature = self.signed
        return comm.enqueue_exchange(
            *(self.messages, call, call.operation, signature, timeout, label),
            *(self.root, self.to_root, waits, Reading(self.read)),
        )


class RaggedReduction(NamedTuple):
    """A reduction of an array for each rank, of the same shapes on all ranks, by the core."""

    signed: SignedCall
    """Agrees on dtype, shapes and operation."""
    arrays: list[Array]
    """C-contiguous, of one dtype."""
    op: ReduceOp
    """One that the core knows."""
    store: Callable[[Array], Result]
    """Makes the result of this rank's reduction, a new array."""

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        found = comm.reduce_scatter_blocks(
            *(sequence, self._align(), self.op, self.signed.call, self.signed.signature),
            *(timeout, deadline, label),
        )
        return None if found is False else (self.store(found),)

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool
    ) -> "ShmWork | None":
        return comm.enqueue_reduce_scatter_blocks(
            *(self._align(), self.op, self.signed.call, self.signed.signature),
            *(timeout, label, Reading(self.store), waits),
        )

    def _align(self) -> list[Array]:
        return [one if one.flags.aligned else one.copy() for one in self.arrays]


class ArrayExchange(NamedTuple):
    """Arrays between all ranks, of one dtype, the shapes of which only their senders know.

    The result is a list of new arrays, by rank; None where this rank has none for itself.
    """

    signed: SignedCall
    arrays: Array | list[Array] | dict[int, Array]
    """One for all ranks, one for each, or some by ranks; C-contiguous."""
    root: int = -1
    """Rank that alone receives anything; -1: all may."""

    def run(
        self, comm: "ShmComm", sequence: int, timeout: float, deadline: float, label: str | None
    ) -> tuple[Result] | None:
        call, signature = self.signed
        found = comm.exchange_arrays(
            *(sequence, self.arrays, call, call.operation, signature),
            *(timeout, deadline, label, self.root, self.root >= 0),
        )
        return None if found is False else (found,)

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, *, waits: bool
    ) -> "ShmWork | None":
        call, signature = self.signed
        return comm.enqueue_array_exchange(
            *(self.arrays, call, call.operation, signature, timeout, label),
            *(self.root, self.root >= 0, waits),
        )
