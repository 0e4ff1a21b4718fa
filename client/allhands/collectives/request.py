"""A collective request in the form of the native core."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from allhands.collectives.buffer import Array
from allhands.collectives.primitive_table import CORE_KINDS, Primitive
from allhands.collectives.reduction import OPS, ReduceOp, finish, get_dtype_name, must_fold_at_once
from allhands.collectives.signature import CallSignature, CoalescedSignature, Result, Shape
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import ShmComm, ShmWork

_FIRST_FOREIGN_DTYPE = 1 << 32
_FIRST_PHASE = 1 << 39


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """A collective on checked arrays, which are 1-D and contiguous."""

    kind: str
    """Name of the primitive."""
    dtype: "np.dtype[np.generic] | None" = None
    count: int = 0
    """Elements of the array, or of each rank's block; 0 where ranks may differ."""
    sources: Sequence[Array] = ()
    """One array for each rank, or one alone; of rooted calls only where they are read."""
    targets: Sequence[Array] = ()
    op: ReduceOp | None = None
    root: int = -1
    send: Sequence[int] | None = None
    """Elements for each rank, where ranks may differ."""
    recv: Sequence[int] | None = None
    crossing: tuple[int, int] | None = None
    """Of two ranks: how many of them go from rank 0 to rank 1, and back."""
    shape: Shape | None = None
    """What ranks must agree on beside the count; None: they may differ in it."""

    @property
    def primitive(self) -> Primitive:
        """The facts about collectives of this kind."""
        return CORE_KINDS[self.kind]

    @property
    def call(self) -> CallSignature:
        """The call's signature, compared with the other ranks'."""
        detail = ""
        if self.send is not None and self.recv is not None:
            detail = _describe_splits(self.send, self.recv)
        return CallSignature(
            self.kind,
            "" if self.dtype is None else name_dtype(self.dtype),
            self.count if self.dtype is not None and self.send is None else None,
            "" if self.op is None else self.op.name,
            self.root if self.root >= 0 else None,
            self.crossing,
            detail,
            shape=self.shape,
        )

    def is_ordered(self, size: int, deterministic: bool) -> bool:
        """Return whether this reduction folds all contributions at once over links."""
        if self.op is None or self.dtype is None:
            return False
        return deterministic or must_fold_at_once(self.op, self.dtype, size)

    def finish(self, size: int) -> None:
        """Turn the pairwise combination of contributions into the result."""
        if self.op is not None and self.targets:
            finish(self.op, self.targets[0], size)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's array, or block, or of all data it sends."""
        if self.dtype is None:
            return 0
        return (self.count if self.send is None else sum(self.send)) * self.dtype.itemsize

    def run(
        self,
        comm: "ShmComm",
        sequence: int,
        timeout: float,
        deadline: float,
        label: str | None,
        signature: int | None = None,
    ) -> bool:
        """Run the request to its end on this thread, by `ShmComm.run`.

        Where it is a phase of another call, `signature` is that call's.
        """
        return comm.run(
            sequence=sequence,
            kind=self.kind,
            dtype=self.dtype,
            typesig=_hash_foreign_dtype(self.dtype)
            if signature is None
            else mark_phase_signature(signature),
            op=self.op,
            root=self.root,
            count=self.count,
            sources=tuple(self.sources),
            targets=tuple(self.targets),
            send=None if self.send is None else tuple(self.send),
            recv=None if self.recv is None else tuple(self.recv),
            timeout=timeout,
            deadline=deadline,
            label=label,
            shape=self.shape if signature is None else None,
        )

    def enqueue(
        self, comm: "ShmComm", timeout: float, label: str | None, value: Result, *, waits: bool
    ) -> "ShmWork | None":
        """Queue the request at the communicator, by `ShmComm.enqueue`."""
        return comm.enqueue(
            kind=self.kind,
            dtype=self.dtype,
            typesig=_hash_foreign_dtype(self.dtype),
            op=self.op,
            root=self.root,
            count=self.count,
            sources=tuple(self.sources),
            targets=tuple(self.targets),
            send=None if self.send is None else tuple(self.send),
            recv=None if self.recv is None else tuple(self.recv),
            timeout=timeout,
            label=label,
            shape=self.shape,
            value=value,
            waits=waits,
        )


def read_call_signature(
    kind: str,
    dtype: object,
    count: int,
    op: int,
    root: int,
    shares: Sequence[int] | None,
    shape: Shape | None,
    label: str | None,
) -> CallSignature:
    """Return a call's signature from the result of `ShmComm.describe`.

    A composite call stands in the place of the dtype.
    """
    if isinstance(dtype, CoalescedSignature):
        dtype = dtype.describe()
    if isinstance(dtype, CallSignature):
        return dtype.with_label(label)
    assert dtype is None or isinstance(dtype, np.dtype), "as the core was given"
    counts = dtype is not None and not CORE_KINDS[kind].has_splits
    detail = ""
    if dtype is not None and shares is not None:
        counted = [nbytes // dtype.itemsize for nbytes in shares]
        half = len(counted) // 2
        detail = _describe_splits(counted[:half], counted[half:])
    return CallSignature(
        kind,
        "" if dtype is None else str(dtype),
        count if counts else None,
        OPS[op].name if op >= 0 else "",
        root if root >= 0 else None,
        detail=detail,
        shape=shape,
        label=label or "",
    )


@lru_cache(maxsize=64)
def name_dtype(dtype: "np.dtype[np.generic]") -> str:
    """Return how calls name a dtype."""
    return str(dtype)  # which takes NumPy some microseconds


def _describe_splits(send: Sequence[int], recv: Sequence[int]) -> str:
    return f"gives {list(send)}, expects {list(recv)}"


def mark_phase_signature(signature: int) -> int:
    """Return as much of a signature as travels; unlike any that stands for a dtype."""
    return signature & (_FIRST_PHASE - 1) | _FIRST_PHASE


def _hash_foreign_dtype(dtype: "np.dtype[np.generic] | None") -> int:
    """Return a hash for a dtype unknown to the core; 0 for a known dtype."""
    if dtype is None:
        return 0
    if get_dtype_name(dtype) is not None:
        return 0
    digest = hashlib.blake2b(str(dtype).encode(), digest_size=4).digest()
    return _FIRST_FOREIGN_DTYPE | int.from_bytes(digest)
