"""What requests stand for: sends, receives, collectives under way, and several of these together.

A transfer is polled by whoever waits for it, and finished once, by the first that sees its end.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from allhands.engine.work.work import Work
from allhands.mpi import errors
from allhands.mpi.constants import ANY_SOURCE, ANY_TAG, ERR_TRUNCATE, PROC_NULL
from allhands.mpi.progress.frames import Bytes, FrameHead


class Target(Protocol):
    """Memory that a message is received into: a `SimpleMessage`."""

    nbytes: int

    def target(self) -> Bytes | None:
        """Return writable memory for the packed data; None: it is to be unpacked."""

    def unpack(self, data: Bytes) -> None:
        """Store packed data."""


class Canceller(Protocol):
    """What receives are posted at: an `Engine`."""

    def cancel_receive(self, receive: Any) -> None:
        """End a receive that has no message yet."""


class Transfer:
    """One thing under way; base class."""

    __slots__ = ("cancelled", "context", "done", "error", "nbytes", "result", "source", "tag")

    def __init__(self) -> None:
        self.context = -1
        self.done = False
        self.error: BaseException | None = None
        self.source = ANY_SOURCE
        self.tag = ANY_TAG
        self.nbytes = 0
        self.cancelled = False
        self.result: Any = None

    def poll(self) -> bool:
        """Say whether it has ended, without waiting."""
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        """Carry it on for some time here, if it is nothing that frames end; return `poll()`."""
        return self.poll()

    @property
    def needs_frames(self) -> bool:
        """Whether frames from other ranks end it."""
        return True

    def describe(self) -> str:
        """Name it, for errors."""
        return "a request"

    def list_awaited(self) -> Sequence[int]:
        """Return the ranks of the world that it waits for."""
        return ()

    def cancel(self) -> None:
        """End it early, where that is possible."""


class Completed(Transfer):
    """A transfer that has ended already."""

    __slots__ = ()

    def __init__(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, nbytes: int = 0, result: Any = None
    ) -> None:
        super().__init__()
        self.done = True
        self.source, self.tag, self.nbytes, self.result = source, tag, nbytes, result

    @classmethod
    def from_nowhere(cls) -> "Completed":
        """Return a receive from PROC_NULL."""
        return cls(PROC_NULL, ANY_TAG)


class Receive(Transfer):
    """A receive, posted or matched; also a place in the table of posted ones."""

    __slots__ = ("_engine", "peers", "target", "wanted_source", "wanted_tag")

    def __init__(
        self,
        engine: Canceller,
        context: int,
        target: Target | None,
        source: int,
        tag: int,
        peers: Sequence[int],
    ) -> None:
        """Make a receive; without a target the data is kept as `result`.

        Args:
            peers: ranks of the world by their ranks in the sender's group.
        """
        super().__init__()
        self._engine = engine
        self.context = context
        self.target = target
        self.wanted_source = source
        self.wanted_tag = tag
        self.peers = peers

    def complete(self, head: FrameHead) -> None:
        """Note the message of a frame, whose data is where it belongs."""
        self.tag, self.source, self.nbytes = head.f0, head.f1, head.nbytes
        self.done = True

    def accept(self, source: int, tag: int, nbytes: int) -> Bytes | None:
        """Take the envelope of the message; return memory of that size to receive into.

        None: of the message too much would come; the receive has an error, and discards it.
        """
        self.source, self.tag = source, tag
        target = self.target
        if target is None:
            self.nbytes = nbytes
            self.result = np.empty(nbytes, np.uint8)
            return self.result  # type: ignore[no-any-return]
        if nbytes > target.nbytes:
            self.nbytes = target.nbytes
            self.error = errors.make_error(
                ERR_TRUNCATE,
                f"{self.describe()} has room for {target.nbytes} bytes, and the message has "
                f"{nbytes}",
            )
            return None
        self.nbytes = nbytes
        memory = target.target()
        return np.empty(nbytes, np.uint8) if memory is None else memory[:nbytes]

    def store(self, data: Bytes) -> None:
        """Store the packed data of the message, which `accept` has agreed to."""
        target = self.target
        if target is None:
            self.result = data.copy()
        elif (memory := target.target()) is not None:
            memory[: data.size] = data
        else:
            target.unpack(data)

    def store_apart(self, data: Bytes) -> None:
        """Store the packed data, if `accept` has given memory apart from the target's."""
        if self.target is not None and self.target.target() is None:
            self.target.unpack(data)

    def end(self) -> None:
        """Note that it has ended."""
        self.done = True

    def describe(self) -> str:
        source = "any rank" if self.wanted_source == ANY_SOURCE else f"rank {self.wanted_source}"
        tag = "any tag" if self.wanted_tag == ANY_TAG else f"tag {self.wanted_tag}"
        return f"a receive from {source} with {tag}"

    def list_awaited(self) -> Sequence[int]:
        if self.wanted_source == ANY_SOURCE:
            return self.peers
        return (self.peers[self.wanted_source],)

    def cancel(self) -> None:
        self._engine.cancel_receive(self)


class Send(Transfer):
    """A send under way: works of its frame and its data, and whether its match is awaited."""

    __slots__ = ("_data", "_dst", "_works", "awaits_match", "number")

    def __init__(self, dst: int, works: list[Work], awaits_match: bool, data: Bytes | None) -> None:
        """Make a send to a rank of the world; `data` is kept until its end."""
        super().__init__()
        self._dst = dst
        self._works = works
        self._data = data
        self.awaits_match = awaits_match
        self.number = 0

    def poll(self) -> bool:
        if not self.done and not self.awaits_match and all(w.is_completed() for w in self._works):
            self._finish()
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        for work in self._works:
            if not work.is_completed() and not wait_for_work(work, seconds):
                return False
        return self.poll()

    @property
    def needs_frames(self) -> bool:
        return self.awaits_match

    def describe(self) -> str:
        return "a synchronous send" if self.awaits_match else "a send"

    def list_awaited(self) -> Sequence[int]:
        return (self._dst,)

    def _finish(self) -> None:
        for work in self._works:
            self.error = self.error or work.exception()
        self.done = True
        self._works, self._data = [], None


class WorkTransfer(Transfer):
    """A collective of allhands under way, and what is done with its result."""

    __slots__ = ("_finish", "_work", "name")

    def __init__(self, name: str, work: Work, finish: Callable[[Any], Any] | None = None) -> None:
        """`finish` gets the result of the work and returns that of the request."""
        super().__init__()
        self.name = name
        self._work = work
        self._finish = finish

    def poll(self) -> bool:
        if not self.done and self._work.is_completed():
            self._end()
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        if not self.done and wait_for_work(self._work, seconds):
            self._end()
        return self.done

    @property
    def needs_frames(self) -> bool:
        return False

    def describe(self) -> str:
        return self.name

    def _end(self) -> None:
        self.done = True
        try:
            result = self._work.result()
            if self._finish is not None:
                self.result = self._finish(result)
        except Exception as error:
            self.error = error


class InThread(Transfer):
    """A call that waits, on a thread of its own."""

    __slots__ = ("_call", "_thread", "name")

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        super().__init__()
        self.name = name
        self._call = call
        self._thread = threading.Thread(target=self._run, name=f"allhands mpi {name}", daemon=True)
        self._thread.start()

    def wait_briefly(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self.done

    @property
    def needs_frames(self) -> bool:
        return False

    def describe(self) -> str:
        return self.name

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.done = True


class Together(Transfer):
    """Several transfers at once, and what is done when all have ended."""

    __slots__ = ("_finish", "_left", "_parts", "name")

    def __init__(
        self, name: str, parts: Sequence[Transfer], finish: Callable[[], Any] | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self._parts = parts
        self._left = list(parts)
        self._finish = finish

    def list_receives(self) -> list[Receive]:
        """Return the receives among the parts."""
        return [part for part in self._parts if isinstance(part, Receive)]

    def set_finish(self, finish: Callable[[], Any]) -> None:
        """Set what is done when all have ended, which nobody has asked about yet."""
        self._finish = finish

    def poll(self) -> bool:
        if not self.done:
            self._left = [part for part in self._left if not part.poll()]
            if not self._left:
                self._end()
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        if self._left and not self._left[0].needs_frames:
            self._left[0].wait_briefly(seconds)
        return self.poll()

    @property
    def needs_frames(self) -> bool:
        return any(part.needs_frames for part in self._left)

    def describe(self) -> str:
        return f"{self.name}: {self._left[0].describe()}" if self._left else self.name

    def list_awaited(self) -> Sequence[int]:
        return [rank for part in self._left for rank in part.list_awaited()]

    def _end(self) -> None:
        self.done = True
        self.error = next((part.error for part in self._parts if part.error is not None), None)
        if self.error is None and self._finish is not None:
            try:
                self.result = self._finish()
            except Exception as error:
                self.error = error


def wait_for_work(work: Work, seconds: float) -> bool:
    """Wait some time for a work; return whether it has ended."""
    if not work.is_completed():
        with contextlib.suppress(Exception):  # whoever finishes the transfer finds it
            work.wait(seconds)
    return work.is_completed()
