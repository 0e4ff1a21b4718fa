"""Buffers of buffered sends: what a program attaches, and the sends that use it."""

from dataclasses import field
from typing import Any

from allhands.mpi import errors
from allhands.mpi.constants import BSEND_OVERHEAD, ERR_BUFFER
from allhands.mpi.memory.buffer import buffer
from allhands.mpi.memory.special import BUFFER_AUTOMATIC
from allhands.mpi.memory.views import view_bytes
from allhands.mpi.p2p.requests import Request
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed, Together, Transfer
from allhands.mpi.runtime import runtime
from allhands_proto.quick_dataclass import dataclass


@dataclass(slots=True)
class SendBuffer:
    """Room for messages that have left their senders' hands.

    The data is copied elsewhere: what is attached says how much may be under way.
    """

    attached: Any = None
    capacity: int = 0
    _sends: list[tuple[Transfer, int]] = field(default_factory=list)

    def attach(self, buf: Any) -> None:
        """Set the buffer; BUFFER_AUTOMATIC: as much as is needed."""
        if self.attached is not None:
            raise errors.make_error(ERR_BUFFER, "a buffer is attached already: detach it first")
        if buf is BUFFER_AUTOMATIC or buf is None:
            self.attached, self.capacity = BUFFER_AUTOMATIC, -1
        else:
            view = view_bytes(buf, writeable=True)
            self.attached, self.capacity = buffer._over(view, buf), view.size

    def detach(self) -> Any:
        """Wait for the sends that use the buffer, and return it."""
        self.flush()
        attached, self.attached, self.capacity = self.attached, None, 0
        return attached

    def flush(self) -> None:
        """Wait for the sends that use the buffer."""
        runtime.engine.wait(self.start_flush())

    def start_flush(self) -> Transfer:
        """Begin to wait for the sends that use the buffer now."""
        sends, self._sends = [send for send, _ in self._sends], []
        return Together("the flush of buffered sends", sends) if sends else Completed()

    def keep(self, data: Bytes) -> Bytes:
        """Return a copy of the data of a message.

        Raises:
            Exception: there is no room.
        """
        self._sends = [(send, size) for send, size in self._sends if not send.poll()]
        used = sum(size for _, size in self._sends)
        needed = data.size + BSEND_OVERHEAD
        if self.attached is None or 0 <= self.capacity < used + needed:
            raise errors.make_error(
                ERR_BUFFER,
                f"a buffered send of {data.size} bytes needs {needed} bytes of an attached "
                f"buffer, which has {max(self.capacity - used, 0)} left: attach a larger one "
                "(MPI.Attach_buffer)",
            )
        return data.copy()

    def note(self, send: Transfer | None, nbytes: int) -> None:
        """Count a send that uses the buffer."""
        if send is not None:
            self._sends.append((send, nbytes + BSEND_OVERHEAD))


def global_buffer() -> SendBuffer:
    """Return the buffer of all communicators that have none of their own."""
    buffer: SendBuffer = runtime.storage.setdefault("send buffer", SendBuffer())
    return buffer


def Attach_buffer(buf: Any) -> None:
    """Attach a buffer for buffered sends of all communicators."""
    global_buffer().attach(buf)


def Detach_buffer() -> Any:
    """Wait for the buffered sends, and return the buffer."""
    return global_buffer().detach()


def Flush_buffer() -> None:
    """Wait for the buffered sends."""
    global_buffer().flush()


def Iflush_buffer() -> Request:
    """Begin to wait for the buffered sends."""
    return Request._of(global_buffer().start_flush())
