"""A process's membership in one world, and the groups in it, for callers on any thread."""

import atexit
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from allhands.channel import Endpoint
from allhands.config import WorldConfig
from allhands.engine.arguments import AnyArray
from allhands.engine.order import Order
from allhands.group import Group
from allhands.loop_thread import LoopThread
from allhands.worker import WORLD, Worker


@dataclass(frozen=True, slots=True)
class NonMember:
    """What `new_group` gives to a rank that is not in the new group."""

    name: str
    order: ClassVar[Order] = Order()
    """Of calls that are never made."""


class World:
    """From joining to leaving; owns the thread that does the I/O."""

    def __init__(self, thread: LoopThread, worker: Worker) -> None:
        self._thread = thread
        self._worker = worker
        self._lock = threading.Lock()
        self._groups_made = 0
        self._closed = False
        self._pid = os.getpid()
        self.group = Group(worker.world, thread, worker.config.timeout)
        """All ranks."""
        atexit.register(self._at_exit)

    @classmethod
    def join(cls, config: WorldConfig) -> "World":
        """Join and wait until the world is complete; the errors are those of `Worker.start`."""
        thread = LoopThread(f"allhands {config.job}")
        try:
            return cls(thread, thread.run(Worker.start(config)))
        except BaseException:
            thread.stop()
            raise

    @property
    def job(self) -> str:
        return self._worker.config.job

    @property
    def endpoint(self) -> Endpoint:
        """The coordinator of this world."""
        return self._worker.meeting.endpoint

    def new_group(
        self, ranks: Sequence[int], timeout: float | None = None, verify: bool | None = None
    ) -> Group | NonMember:
        """Make a group of some ranks of the world; every rank of the world must call this.

        Raises:
            ValueError: no ranks, a rank twice, or one that the world does not have.
        """
        wanted = [int(rank) for rank in ranks]
        size = len(self._worker.members)
        if not wanted or len(set(wanted)) != len(wanted):
            raise ValueError(f"a group needs each of its ranks once, and at least one: {wanted}")
        if strangers := [rank for rank in wanted if not 0 <= rank < size]:
            raise ValueError(f"ranks {strangers} are not in the world, which has {size} ranks")
        with self._lock:
            self._groups_made += 1
            name = f"{WORLD}/{self._groups_made}"
        if self._worker.rank not in wanted:
            return NonMember(name)
        return self._open(name, wanted, timeout or self._worker.config.timeout, verify)

    def empty(self, shape: "int | tuple[int, ...]", dtype: npt.DTypeLike) -> AnyArray:
        """Return an array in the memory that this host's ranks share; see `ah.empty`."""
        found = np.dtype(dtype)
        if found.hasobject:
            raise TypeError(f"{found} arrays hold Python objects, which cannot be shared")
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(lengths)
        if any(length < 0 for length in lengths):
            raise ValueError(f"no array has the shape {lengths}")
        memory = self._worker.allocate(count * found.itemsize)
        return np.frombuffer(memory, found, count).reshape(lengths)

    def close_group(self, group: Group) -> None:
        """Forget a group when its calls have ended."""
        self._thread.run(self._worker.close_group(group.name))

    def close(self, error: str = "") -> None:
        """Leave: what was sent before is received first, unless `error` says why not. Idempotent.

        A rank that hosts the coordinator waits for the others to leave, 30 s at most.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._at_exit)
        try:
            self._thread.run(self._worker.leave(error))
        finally:
            self._thread.stop()

    def _open(self, name: str, ranks: Sequence[int], timeout: float, verify: bool | None) -> Group:
        engine = self._thread.run(self._worker.open_group(name, ranks, timeout, verify))
        return Group(engine, self._thread, timeout)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child is no member
        # What ended the interpreter, if it was an exception: the others should know.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.close(f"{type(error).__name__}: {error}" if error is not None else "")
