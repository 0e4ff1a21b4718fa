"""Messages from point to point on a communicator."""

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from allhands.mpi import errors
from allhands.mpi.buffers.messages import SimpleMessage, parse_receive, parse_send
from allhands.mpi.buffers.plain_specs import view_spec
from allhands.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_BUFFER,
    ERR_RANK,
    ERR_TAG,
    PROC_NULL,
)
from allhands.mpi.p2p.buffered import SendBuffer, global_buffer
from allhands.mpi.p2p.message import Message
from allhands.mpi.p2p.object_messages import ObjectBuffer, dump_object, load_bytes, load_object
from allhands.mpi.p2p.partitioned import ReceiveParts, SendParts
from allhands.mpi.p2p.requests import Prequest, Request, fill_status
from allhands.mpi.progress.engine import Arrival
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed, Receive, Target, Together, Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.status import Status

TAG_LIMIT = (1 << 31) - 1
_CONTEXTS = 4
"""Contexts of a communicator: the program's messages, its parts, internal messages, one spare."""


class PointToPoint:
    """Messages with the ranks of a communicator; mixin of `Comm`.

    Ranks are those of the remote group where the communicator has one.
    """

    _context: int
    _rank: int
    _peers: tuple[int, ...]
    """Ranks of the world by the numbers that `dest` and `source` give."""
    _send_buffer: SendBuffer | None

    @property
    def _p2p_context(self) -> int:
        return self._context * _CONTEXTS

    @property
    def _partition_context(self) -> int:
        return self._context * _CONTEXTS + 1

    @property
    def _internal_context(self) -> int:
        return self._context * _CONTEXTS + 2

    # ------------------------------------------------------------ checks

    def _check_alive(self) -> None:
        """Raise if the communicator is null or freed."""

    def _check_dest(self, dest: int, tag: int) -> int:
        self._check_alive()
        if not 0 <= dest < len(self._peers) and dest != PROC_NULL:
            raise errors.make_error(
                ERR_RANK, f"dest={dest} is no rank: they go from 0 to {len(self._peers) - 1}"
            )
        if not 0 <= tag <= TAG_LIMIT:
            raise errors.make_error(ERR_TAG, f"tag={tag} is not from 0 to {TAG_LIMIT}")
        return dest

    def _check_source(self, source: int, tag: int) -> int:
        self._check_alive()
        if not 0 <= source < len(self._peers) and source not in (ANY_SOURCE, PROC_NULL):
            raise errors.make_error(
                ERR_RANK, f"source={source} is no rank: they go from 0 to {len(self._peers) - 1}"
            )
        if not 0 <= tag <= TAG_LIMIT and tag != ANY_TAG:
            raise errors.make_error(ERR_TAG, f"tag={tag} is not from 0 to {TAG_LIMIT}")
        return source

    # ------------------------------------------------------------ in one place

    def _start_send(self, data: Bytes, dest: int, tag: int, awaits_match: bool = False) -> Transfer:
        return (
            runtime.engine.start_send(
                self._peers[dest],
                self._context * _CONTEXTS,
                self._rank,
                tag,
                data,
                awaits_match=awaits_match,
            )
            or _SENT
        )

    def _start_receive(self, target: Target | None, source: int, tag: int) -> Transfer:
        if source == PROC_NULL:
            return Completed.from_nowhere()
        engine = runtime.engine
        return engine.start_receive(
            Receive(engine, self._context * _CONTEXTS, target, source, tag, self._peers)
        )

    def _begin_send(self, buf: Any, dest: int, tag: int, awaits_match: bool = False) -> Transfer:
        if not awaits_match and self._send_direct(buf, dest, tag, False):
            return _SENT
        self._check_dest(dest, tag)
        if dest == PROC_NULL:
            return Completed.from_nowhere()
        return self._start_send(parse_send(buf).pack(), dest, tag, awaits_match)

    def _send_direct(self, buf: Any, dest: int, tag: int, waits: bool) -> bool:
        """Send at once; False: nothing has happened, and the arguments are not checked.

        With `waits` data that is too large for a frame may be waited for.
        """
        return (
            dest.__class__ is int
            and 0 <= dest < len(self._peers)
            and 0 <= tag <= TAG_LIMIT
            and runtime.engine.try_send(
                self._peers[dest], self._context * _CONTEXTS, self._rank, tag, buf, waits
            )
        )

    def _begin_receive(self, buf: Any, source: int, tag: int) -> Transfer:
        self._check_source(source, tag)
        return self._start_receive(None if source == PROC_NULL else parse_receive(buf), source, tag)

    def _begin_buffered(self, data: Bytes, dest: int, tag: int) -> Transfer:
        self._check_dest(dest, tag)
        if dest == PROC_NULL:
            return Completed.from_nowhere()
        buffer = self._send_buffer or global_buffer()
        kept = buffer.keep(data)
        send = self._start_send(kept, dest, tag)
        buffer.note(send, kept.size)
        return _SENT

    def _complete(self, transfer: Transfer, status: Status | None = None) -> Transfer:
        """Wait for a transfer, and raise its error."""
        if not transfer.done:
            runtime.engine.wait(transfer)
        if status is not None:
            fill_status(status, transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)
        return transfer

    # ------------------------------------------------------------ blocking

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; return when it may be changed, received or not."""
        if self._send_direct(buf, dest, tag, True):
            return
        if self._check_dest(dest, tag) != PROC_NULL:
            runtime.engine.send(
                self._peers[dest],
                self._context * _CONTEXTS,
                self._rank,
                tag,
                parse_send(buf).pack(),
            )

    def Recv(
        self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> None:
        """Receive a message into a buffer of its size or larger."""
        if (
            status is None
            and source.__class__ is int
            and -1 <= source < len(self._peers)  # -1: ANY_SOURCE
            and -1 <= tag <= TAG_LIMIT
            and runtime.engine.receive_next(self._context * _CONTEXTS, source, tag, buf)
        ):
            return
        self._complete(self._begin_receive(buf, source, tag), status)

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a copy of a buffer, which goes by itself; see `Attach_buffer`."""
        data = _NOTHING if dest == PROC_NULL else parse_send(buf).pack()
        self._begin_buffered(data, dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; return when its receive has begun."""
        self._complete(self._begin_send(buf, dest, tag, awaits_match=True))

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer whose receive was posted before."""
        self.Send(buf, dest, tag)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a message and receive another, in whatever order they come."""
        if (
            source.__class__ is int
            and -1 <= source < len(self._peers)  # -1: ANY_SOURCE
            and -1 <= recvtag <= TAG_LIMIT
            and view_spec(recvbuf, True, False, 1) is not None
            and self._send_direct(sendbuf, dest, sendtag, False)
        ):
            self.Recv(recvbuf, source, recvtag, status)
            return
        receive = self._begin_receive(recvbuf, source, recvtag)
        try:
            send = self._begin_send(sendbuf, dest, sendtag)
        except BaseException:
            receive.cancel()
            raise
        self._complete(send)
        self._complete(receive, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send the content of a buffer and receive a message in its place."""
        self._complete(self._begin_replace(buf, dest, sendtag, source, recvtag), status)

    def _begin_replace(
        self, buf: Any, dest: int, sendtag: int, source: int, recvtag: int
    ) -> Transfer:
        self._check_dest(dest, sendtag)
        self._check_source(source, recvtag)
        message = None if dest == source == PROC_NULL else parse_receive(buf)
        receive = self._start_receive(message, source, recvtag)
        if dest == PROC_NULL or message is None:
            return receive
        send = self._start_send(message.pack().copy(), dest, sendtag)
        return _SendAndReceive(send, receive)

    # ------------------------------------------------------------ non-blocking

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send a buffer, which belongs to the request until it has ended."""
        return Request._of(self._begin_send(buf, dest, tag))

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive into a buffer, which belongs to the request until it has ended."""
        return Request._of(self._begin_receive(buf, source, tag))

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Send a copy of a buffer, which goes by itself; see `Attach_buffer`."""
        self.Bsend(buf, dest, tag)
        return Request._of(_SENT)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send a buffer; the request ends when its receive has begun."""
        return Request._of(self._begin_send(buf, dest, tag, awaits_match=True))

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send a buffer whose receive was posted before."""
        return self.Isend(buf, dest, tag)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Begin to send a message and to receive another."""
        receive = self._begin_receive(recvbuf, source, recvtag)
        return Request._of(_SendAndReceive(self._begin_send(sendbuf, dest, sendtag), receive))

    def Isendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Begin to send the content of a buffer and to receive a message in its place."""
        return Request._of(self._begin_replace(buf, dest, sendtag, source, recvtag))

    # ------------------------------------------------------------ probes

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Literal[True]:
        """Return when a message has come; it is left there."""
        if source == PROC_NULL:
            fill_status(status, Completed.from_nowhere())
            return True
        arrival = self._wait_for_arrival(source, tag)
        fill_status(status, Completed(arrival.source, arrival.tag, arrival.nbytes))
        return True

    def Iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """Say whether a message has come; it is left there."""
        self._check_source(source, tag)
        if source == PROC_NULL:
            fill_status(status, Completed.from_nowhere())
            return True
        engine = runtime.engine
        engine.progress()
        arrival = engine.table.find(self._p2p_context, source, tag)
        if arrival is None:
            return False
        fill_status(status, Completed(arrival.source, arrival.tag, arrival.nbytes))
        return True

    def Mprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message:
        """Wait for a message, and take it."""
        return Message.Probe(self, source, tag, status)

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """Take a message if one has come."""
        return Message.Iprobe(self, source, tag, status)

    def _wait_for_arrival(self, source: int, tag: int) -> Arrival:
        self._check_source(source, tag)
        engine, context = runtime.engine, self._p2p_context
        found: list[Arrival] = []

        def look() -> bool:
            with engine.lock:
                arrival = engine.table.find(context, source, tag)
            if arrival is not None:
                found.append(arrival)
            return arrival is not None

        awaited = self._peers if source == ANY_SOURCE else (self._peers[source],)
        which = "any rank" if source == ANY_SOURCE else f"rank {source}"
        engine.wait_until(look, f"a probe for a message of {which}", lambda: awaited)
        return found[0]

    # ------------------------------------------------------------ persistent

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepare a send."""
        message = self._prepare_send(buf, dest, tag)
        return Prequest._prepare(lambda: self._restart_send(message, dest, tag))

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Prepare a receive."""
        self._check_source(source, tag)
        message = None if source == PROC_NULL else parse_receive(buf)
        return Prequest._prepare(lambda: self._start_receive(message, source, tag))

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepare a buffered send."""
        message = self._prepare_send(buf, dest, tag)
        return Prequest._prepare(
            lambda: self._begin_buffered(_NOTHING if message is None else message.pack(), dest, tag)
        )

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepare a synchronous send."""
        message = self._prepare_send(buf, dest, tag)
        return Prequest._prepare(lambda: self._restart_send(message, dest, tag, True))

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Prepare a send whose receive will be posted before."""
        return self.Send_init(buf, dest, tag)

    def Psend_init(
        self, buf: Any, partitions: int, dest: int, tag: int = 0, info: Any = None
    ) -> Prequest:
        """Prepare a send in parts."""
        self._check_dest(dest, tag)
        if dest == PROC_NULL:
            return Prequest._prepare(Completed.from_nowhere)
        message = _check_parts(parse_send(buf), partitions)
        return SendParts.make(self, message, partitions, dest, tag)

    def Precv_init(
        self,
        buf: Any,
        partitions: int,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        info: Any = None,
    ) -> Prequest:
        """Prepare a receive in parts; source and tag must be given."""
        self._check_source(source, tag)
        if source == PROC_NULL:
            return Prequest._prepare(Completed.from_nowhere)
        if source == ANY_SOURCE or tag == ANY_TAG:
            raise errors.make_error(
                ERR_RANK if source == ANY_SOURCE else ERR_TAG,
                "a partitioned receive names its source and tag",
            )
        message = _check_parts(parse_receive(buf), partitions)
        return ReceiveParts.make(self, message, partitions, source, tag)

    def _prepare_send(self, buf: Any, dest: int, tag: int) -> SimpleMessage | None:
        self._check_dest(dest, tag)
        return None if dest == PROC_NULL else parse_send(buf)

    def _restart_send(
        self, message: SimpleMessage | None, dest: int, tag: int, awaits_match: bool = False
    ) -> Transfer:
        if message is None:
            return Completed.from_nowhere()
        return self._start_send(message.pack(), dest, tag, awaits_match)

    # ------------------------------------------------------------ buffers of buffered sends

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer for buffered sends on this communicator."""
        self._send_buffer = self._send_buffer or SendBuffer()
        self._send_buffer.attach(buf)

    def Detach_buffer(self) -> Any:
        """Wait for the buffered sends on this communicator, and return the buffer."""
        if self._send_buffer is None:
            return None
        buf = self._send_buffer.detach()
        self._send_buffer = None
        return buf

    def Flush_buffer(self) -> None:
        """Wait for the buffered sends on this communicator."""
        if self._send_buffer is not None:
            self._send_buffer.flush()

    def Iflush_buffer(self) -> Request:
        """Begin to wait for the buffered sends on this communicator."""
        buffer = self._send_buffer
        return Request._of(_SENT if buffer is None else buffer.start_flush())

    # ------------------------------------------------------------ objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object."""
        self._complete(self._begin_object(obj, dest, tag))

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object, which goes by itself; see `Attach_buffer`."""
        self._begin_buffered(_NOTHING if dest == PROC_NULL else dump_object(obj), dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; return when its receive has begun."""
        self._complete(self._begin_object(obj, dest, tag, True))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Receive an object and return it."""
        transfer, load = self._begin_object_receive(buf, source, tag)
        return load(self._complete(transfer, status))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send an object, and receive and return another."""
        send = self._begin_object(sendobj, dest, sendtag)
        receive, load = self._begin_object_receive(recvbuf, source, recvtag)
        result = load(self._complete(receive, status))
        self._complete(send)
        return result

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send an object."""
        return Request._of(self._begin_object(obj, dest, tag))

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Send an object, which goes by itself; see `Attach_buffer`."""
        self.bsend(obj, dest, tag)
        return Request._of(_SENT)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Begin to send an object; the request ends when its receive has begun."""
        return Request._of(self._begin_object(obj, dest, tag, True))

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Begin to receive an object, of any size, which `wait` returns."""
        self._check_source(source, tag)
        target = None if buf is None or source == PROC_NULL else _object_target(buf)
        load = load_object if target is None else target.load
        return Request._of(self._start_receive(target, source, tag), load)

    def probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Literal[True]:
        """Return when a message has come; it is left there."""
        return self.Probe(source, tag, status)

    def iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """Say whether a message has come; it is left there."""
        return self.Iprobe(source, tag, status)

    def mprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message:
        """Wait for a message of an object, and take it."""
        return Message.probe(self, source, tag, status)

    def improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """Take a message of an object if one has come."""
        return Message.iprobe(self, source, tag, status)

    def _begin_object(self, obj: Any, dest: int, tag: int, awaits_match: bool = False) -> Transfer:
        self._check_dest(dest, tag)
        if dest == PROC_NULL:
            return Completed.from_nowhere()
        data = dump_object(obj)
        if not awaits_match and self._send_direct(data, dest, tag, False):
            return _SENT
        return self._start_send(data, dest, tag, awaits_match)

    def _begin_object_receive(
        self, buf: Any, source: int, tag: int
    ) -> tuple[Transfer, Callable[[Transfer], Any]]:
        self._check_source(source, tag)
        if buf is not None:
            warnings.warn("the 'buf' argument is deprecated", UserWarning, stacklevel=3)
        if buf is None or source == PROC_NULL:
            return self._start_receive(None, source, tag), load_object
        target = _object_target(buf)
        return self._start_receive(target, source, tag), target.load

    # ------------------------------------------------------------ internal messages

    def _start_exchange(
        self,
        sends: Sequence[tuple[int, int, Bytes]],
        receives: Sequence[tuple[int, int, Target]],
        finish: Callable[[], Any] | None = None,
        what: str = "an exchange with neighbours",
    ) -> Request:
        """Begin messages of the communicator itself, each with a rank, a tag and its data."""
        return Request._of(self._exchange(sends, receives, finish, what))

    def _exchange(
        self,
        sends: Sequence[tuple[int, int, Bytes]],
        receives: Sequence[tuple[int, int, Target | None]],
        finish: Callable[[], Any] | None = None,
        what: str = "an exchange with neighbours",
    ) -> Together:
        engine, context = runtime.engine, self._internal_context
        parts: list[Transfer] = [
            engine.start_receive(Receive(engine, context, target, rank, tag, self._peers))
            for rank, tag, target in receives
            if rank != PROC_NULL
        ]
        for rank, tag, data in sends:
            if rank == PROC_NULL:
                continue
            send = engine.start_send(self._peers[rank], context, self._rank, tag, data)
            if send is not None:
                parts.append(send)
        return Together(what, parts, finish)


class _SendAndReceive(Together):
    """A send and a receive, of which the receive has the status."""

    __slots__ = ("_receive",)

    def __init__(self, send: Transfer, receive: Transfer) -> None:
        super().__init__("a send and a receive", [send, receive])
        self._receive = receive

    def _end(self) -> None:
        super()._end()
        receive = self._receive
        self.source, self.tag, self.nbytes = receive.source, receive.tag, receive.nbytes


class _Sent(Transfer):
    """A send that has gone at once."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.done = True


_SENT = _Sent()
_NOTHING: Bytes = np.empty(0, np.uint8)


def _object_target(buf: Any) -> ObjectBuffer:
    """Return memory for the bytes of an object: a buffer, or a number of bytes."""
    if hasattr(type(buf), "__index__"):
        return ObjectBuffer(bytearray(operator.index(buf)))
    return ObjectBuffer(buf)


def _check_parts(message: SimpleMessage, partitions: int) -> SimpleMessage:
    if partitions < 1 or message.count % partitions:
        raise errors.make_error(
            ERR_BUFFER, f"{message.count} elements cannot be cut into {partitions} equal parts"
        )
    return message


__all__ = ["PointToPoint", "load_bytes"]
