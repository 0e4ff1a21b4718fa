"""Partitioned messages: sent in parts, as these become ready (MPI 4, chapter 4).

The parts of one message travel as messages of their own in a context that others do not use, under
the tag of the whole and the number of the start; both ends cut the bytes by the sender's parts.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np

from allhands.mpi import errors
from allhands.mpi.buffers.messages import SimpleMessage
from allhands.mpi.constants import ERR_ARG, ERR_REQUEST
from allhands.mpi.p2p.requests import Prequest
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Receive, Transfer
from allhands.mpi.runtime import runtime


class _Parts(Transfer):
    """One start of a partitioned message."""

    __slots__ = ("peer", "pending", "what")

    def __init__(self, what: str, peer: int) -> None:
        super().__init__()
        self.what = what
        self.peer = peer
        self.pending: dict[int, Transfer | None] = {}

    def poll(self) -> bool:
        if not self.done:
            parts = self.pending
            self.done = all(part is not None and part.poll() for part in parts.values())
            if self.done:
                self.error = next((p.error for p in parts.values() if p and p.error), None)
        return self.done

    def describe(self) -> str:
        return self.what

    def list_awaited(self) -> list[int]:
        return [self.peer]


class PartitionedRequest(Prequest):
    """A prepared partitioned message; base of both ends."""

    _count: int
    _message: SimpleMessage

    def _partitions(self) -> Any:
        return self

    def _check(self, partitions: Iterable[int]) -> list[int]:
        found = list(partitions)
        if wrong := [part for part in found if not 0 <= part < self._count]:
            raise errors.make_error(
                ERR_ARG, f"partitions {wrong} are not among the {self._count} of the message"
            )
        return found


class SendParts(PartitionedRequest):
    """The sending end."""

    @classmethod
    def make(cls, comm: Any, message: SimpleMessage, count: int, dest: int, tag: int) -> Self:
        """Prepare a message of `count` parts, of which each is the message given."""
        begin: Callable[[], Transfer] = lambda: self._start(comm, dest, tag)  # noqa: E731
        self = cls._prepare(begin)
        self._count, self._message = count, message
        return self

    def _start(self, comm: Any, dest: int, tag: int) -> Transfer:
        parts = _Parts(f"a partitioned send to rank {dest} with tag {tag}", comm._peers[dest])
        parts.pending = dict.fromkeys(range(self._count))
        engine = runtime.engine
        head = np.array([self._count, self._message.nbytes], np.int64).view(np.uint8)
        engine.start_send(parts.peer, comm._partition_context, comm._rank, tag * 2, head)
        self._send = lambda data: engine.start_send(
            parts.peer, comm._partition_context, comm._rank, tag * 2 + 1, data
        )
        return parts

    _send: Callable[[Bytes], Transfer | None]

    def mark(self, request: Prequest, partitions: Iterable[int]) -> None:
        """Send parts."""
        parts = request._transfer
        if not isinstance(parts, _Parts):
            raise errors.make_error(ERR_REQUEST, "a partitioned send must be started first")
        packed = self._message.pack()
        size = packed.size // self._count
        for part in self._check(partitions):
            if parts.pending[part] is not None:
                raise errors.make_error(ERR_ARG, f"partition {part} was marked as ready before")
            numbered: Bytes = np.empty(8 + size, np.uint8)
            numbered[:8] = np.array([part], np.int64).view(np.uint8)
            numbered[8:] = packed[part * size : (part + 1) * size]
            parts.pending[part] = self._send(numbered) or _SENT

    def has_arrived(self, request: Prequest, partition: int) -> bool:
        raise errors.make_error(ERR_REQUEST, "parts arrive at receives, and this is a send")


class ReceiveParts(PartitionedRequest):
    """The receiving end."""

    @classmethod
    def make(cls, comm: Any, message: SimpleMessage, count: int, source: int, tag: int) -> Self:
        """Prepare the receive of a message in `count` parts, whatever the sender cuts it into."""
        begin: Callable[[], Transfer] = lambda: self._start(comm, source, tag)  # noqa: E731
        self = cls._prepare(begin)
        self._count, self._message = count, message
        return self

    def _start(self, comm: Any, source: int, tag: int) -> Transfer:
        return _Arrivals(comm, self._message, source, tag)

    def mark(self, request: Prequest, partitions: Iterable[int]) -> None:
        raise errors.make_error(ERR_REQUEST, "parts are marked at sends, and this is a receive")

    def has_arrived(self, request: Prequest, partition: int) -> bool:
        """Say whether all bytes of a part are there."""
        (part,) = self._check([partition])
        arrivals = request._transfer
        if not isinstance(arrivals, _Arrivals):
            return True
        runtime.engine.progress()
        size = self._message.nbytes // self._count
        return arrivals.covers(part * size, (part + 1) * size)


class _Arrivals(Transfer):
    """One start of the receiving end."""

    __slots__ = ("_bytes", "_comm", "_head", "_message", "_parts", "_source", "_tag", "_there")

    def __init__(self, comm: Any, message: SimpleMessage, source: int, tag: int) -> None:
        super().__init__()
        self._comm, self._message, self._source, self._tag = comm, message, source, tag
        self._head = self._receive(tag * 2)
        self._parts: list[Receive] = []
        self._there: Bytes = np.zeros(0, np.uint8)
        self._bytes: Bytes = np.empty(message.nbytes, np.uint8)

    def poll(self) -> bool:
        if not self.done:
            self._advance()
        return self.done

    def covers(self, start: int, stop: int) -> bool:
        """Say whether those bytes have come."""
        self.poll()
        count = self._there.size
        if not count:
            return False
        size = self._bytes.size // count
        first, last = (0, count) if not size else (start // size, -(-stop // size))
        return bool(self._there[first:last].all())

    def describe(self) -> str:
        return f"a partitioned receive from rank {self._source} with tag {self._tag}"

    def list_awaited(self) -> list[int]:
        return [self._comm._peers[self._source]]

    def _receive(self, tag: int) -> Receive:
        engine, comm = runtime.engine, self._comm
        receive = Receive(engine, comm._partition_context, None, self._source, tag, comm._peers)
        return engine.start_receive(receive)

    def _advance(self) -> None:
        if not self._parts and not self._there.size:
            if not self._head.done:
                return
            count, nbytes = self._head.result.view(np.int64)
            if nbytes != self._bytes.size:
                self.error = errors.make_error(
                    ERR_ARG,
                    f"{self.describe()} has room for {self._bytes.size} bytes, and {nbytes} are "
                    "sent",
                )
                self.done = True
                return
            self._there = np.zeros(count, np.uint8)
            self._parts = [self._receive(self._tag * 2 + 1) for _ in range(count)]
        left = []
        for part in self._parts:
            if not part.done:
                left.append(part)
                continue
            number = int(part.result[:8].view(np.int64)[0])
            size = self._bytes.size // self._there.size
            self._bytes[number * size : (number + 1) * size] = part.result[8:]
            self._there[number] = 1
        self._parts = left
        if not left:
            self._message.unpack(self._bytes)
            self.nbytes = self._bytes.size
            self.source, self.tag = self._source, self._tag
            self.done = True


class _Sent(Transfer):
    """A part that has gone at once."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.done = True


_SENT = _Sent()
