"""Messages that a probe has taken, to be received by whoever has them."""

from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.buffers.messages import parse_receive
from allhands.mpi.constants import ANY_SOURCE, ANY_TAG, ERR_REQUEST, PROC_NULL
from allhands.mpi.handles import Handle
from allhands.mpi.p2p.object_messages import load_object
from allhands.mpi.p2p.requests import Request, fill_status
from allhands.mpi.progress.engine import Arrival
from allhands.mpi.progress.transfers import Completed, Receive, Target, Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.status import Status


class Message(Handle):
    """A matched message; null once it was received."""

    _arrival: Arrival | None
    _comm: Any
    _is_from_nowhere: bool

    def __new__(cls, message: "Message | None" = None) -> Self:
        self = super().__new__(cls, message)
        if message is None:
            self._arrival = self._comm = None
            self._is_from_nowhere = False
        return self

    def _identity(self) -> object:
        return "no process" if self._is_from_nowhere else self._arrival

    def _free(self) -> None:
        """Do nothing: a message lives until it is received."""

    @classmethod
    def Probe(
        cls,
        comm: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Self:
        """Wait for a message, and take it."""
        if source == PROC_NULL:
            return cls._from_nowhere(status)
        comm._wait_for_arrival(source, tag)
        found = cls.Iprobe(comm, source, tag, status)
        while found is None:  # another thread was first
            comm._wait_for_arrival(source, tag)
            found = cls.Iprobe(comm, source, tag, status)
        return found

    @classmethod
    def Iprobe(
        cls,
        comm: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Self | None:
        """Take a message if one has come."""
        if source == PROC_NULL:
            return cls._from_nowhere(status)
        comm._check_source(source, tag)
        engine = runtime.engine
        engine.progress()
        with engine.lock:
            arrival = engine.table.take(comm._p2p_context, source, tag)
        if arrival is None:
            return None
        self = cls.__new__(cls)
        self._arrival, self._comm = arrival, comm
        fill_status(status, Completed(arrival.source, arrival.tag, arrival.nbytes))
        return self

    @classmethod
    def _from_nowhere(cls, status: Status | None) -> Self:
        fill_status(status, Completed.from_nowhere())
        return cls.__new__(cls, MESSAGE_NO_PROC)

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive it into a buffer of its size or larger."""
        transfer = self._receive(None if self._is_from_nowhere else parse_receive(buf))
        runtime.engine.wait(transfer)
        fill_status(status, transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)

    def Irecv(self, buf: Any) -> Request:
        """Begin to receive it into a buffer of its size or larger."""
        return Request._of(self._receive(None if self._is_from_nowhere else parse_receive(buf)))

    @classmethod
    def probe(
        cls,
        comm: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Self:
        """Wait for a message of an object, and take it."""
        return cls.Probe(comm, source, tag, status)

    @classmethod
    def iprobe(
        cls,
        comm: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Self | None:
        """Take a message of an object if one has come."""
        return cls.Iprobe(comm, source, tag, status)

    def recv(self, status: Status | None = None) -> Any:
        """Receive its object."""
        transfer = self._receive(None)
        runtime.engine.wait(transfer)
        fill_status(status, transfer)
        if transfer.error is not None:
            raise errors.translate(transfer.error)
        return load_object(transfer)

    def irecv(self) -> Request:
        """Begin to receive its object, which `wait` returns."""
        return Request._of(self._receive(None), load_object)

    def _receive(self, target: Target | None) -> Transfer:
        if self._is_from_nowhere:
            if not self._is_constant:
                self._make_null()
            return Completed.from_nowhere()
        arrival, comm = self._arrival, self._comm
        if arrival is None or comm is None:
            raise errors.make_error(ERR_REQUEST, "a null message cannot be received")
        self._arrival = self._comm = None
        engine = runtime.engine
        receive = Receive(
            engine, comm._p2p_context, target, arrival.source, arrival.tag, comm._peers
        )
        engine.deliver(arrival, receive)
        return receive


MESSAGE_NULL = Message()._name_constant("MESSAGE_NULL")
"""The null message."""
MESSAGE_NO_PROC = Message()._name_constant("MESSAGE_NO_PROC")
"""The message that comes from PROC_NULL: nothing."""
MESSAGE_NO_PROC._is_from_nowhere = True
