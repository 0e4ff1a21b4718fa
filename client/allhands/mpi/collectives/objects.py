"""Collective calls on objects, which travel pickled; and reductions of them in Python."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from allhands.mpi.constants import PROC_NULL, ROOT
from allhands.mpi.operations.predefined import SUM
from allhands.mpi.p2p.object_messages import dump_object, load_bytes
from allhands.mpi.progress.frames import Bytes

Reduce = Callable[[Any, Any], Any]


class ObjectCollectives:
    """Collectives on objects; mixin of `Comm`.

    Between the ranks of two groups those of the other group send, or the root is one of them.
    """

    _rank: int
    _peers: tuple[int, ...]

    def _exchange_bytes(
        self, name: str, brought: "Bytes | Sequence[Bytes] | None", root: int | None
    ) -> list[Bytes]:
        """Make the call of that name on bytes of any sizes; return what this rank receives."""
        raise NotImplementedError

    def _call_locked(
        self, name: str, brought: "Bytes | Sequence[Bytes] | None", root: int | None
    ) -> list[Bytes]:
        """Make the call while no other thread makes one of that name."""
        locks: dict[str, threading.Lock] = self.__dict__.setdefault("_locks", {})
        with locks.setdefault(name, threading.Lock()):
            return self._exchange_bytes(name, brought, root)

    def _share(self, value: Any) -> list[Any]:
        """Return the plain values of all ranks: for the interface itself, whatever is pickled."""
        data = np.frombuffer(msgpack.packb(value), np.uint8)
        came = self._exchange_bytes("allgather", data, None)
        return [msgpack.unpackb(one.tobytes()) for one in came]

    def _tell(self, value: Any, root: int) -> Any:
        """Return the plain value of the root."""
        data = np.frombuffer(msgpack.packb(value), np.uint8) if root == self._rank else None
        came = self._exchange_bytes("bcast", data, root)
        return msgpack.unpackb(came[0].tobytes())

    @property
    def _is_pair(self) -> bool:
        """Whether there are two groups."""
        return False

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self.Barrier()  # type: ignore[attr-defined]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the object of the root."""
        brings = root == ROOT if self._is_pair else root == self._rank
        came = self._call_locked("bcast", dump_object(obj) if brings else None, root)
        if root in (ROOT, PROC_NULL) and self._is_pair:
            return None
        return load_bytes(came[0])

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks on the root, and None elsewhere."""
        brings = not (self._is_pair and root in (ROOT, PROC_NULL))
        came = self._call_locked("gather", dump_object(sendobj) if brings else None, root)
        takes = root == ROOT if self._is_pair else root == self._rank
        return [load_bytes(one) for one in came] if takes else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Return this rank's object of those of the root."""
        brings = root == ROOT if self._is_pair else root == self._rank
        came = self._call_locked("scatter", self._dump_each(sendobj) if brings else None, root)
        if self._is_pair and root in (ROOT, PROC_NULL):
            return None
        return load_bytes(came[0])

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks."""
        return [
            load_bytes(one) for one in self._call_locked("allgather", dump_object(sendobj), None)
        ]

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Give each rank an object, and return those that the ranks gave."""
        came = self._call_locked("alltoall", self._dump_each(sendobj), None)
        return [load_bytes(one) for one in came]

    def reduce(self, sendobj: Any, op: Reduce = SUM, root: int = 0) -> Any | None:
        """Return the objects of all ranks combined, on the root; None elsewhere."""
        items = self.gather(sendobj, root)
        return None if items is None else functools.reduce(op, items)

    def allreduce(self, sendobj: Any, op: Reduce = SUM) -> Any:
        """Return the objects of all ranks combined, in the order of ranks."""
        return functools.reduce(op, self.allgather(sendobj))

    def _dump_each(self, objects: Sequence[Any] | None) -> list[Bytes]:
        items = [None] * len(self._peers) if objects is None else list(objects)
        if len(items) != len(self._peers):
            raise ValueError(f"expecting {len(self._peers)} items, got {len(items)}")
        return [dump_object(item) for item in items]


class ObjectPrefixes:
    """Prefix reductions of objects; mixin of `Intracomm`."""

    _rank: int

    def scan(self, sendobj: Any, op: Reduce = SUM) -> Any:
        """Return the objects of the ranks up to this one combined."""
        items = self.allgather(sendobj)  # type: ignore[attr-defined]
        return functools.reduce(op, items[: self._rank + 1])

    def exscan(self, sendobj: Any, op: Reduce = SUM) -> Any:
        """Return the objects of the ranks before this one combined; None on rank 0."""
        items = self.allgather(sendobj)  # type: ignore[attr-defined]
        return functools.reduce(op, items[: self._rank]) if self._rank else None
