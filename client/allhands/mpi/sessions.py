"""Sessions: sets of processes by name, without the world communicator."""

from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.constants import ERR_ARG, ERR_SESSION
from allhands.mpi.errhandlers import Errhandler, HasErrhandler
from allhands.mpi.groups import Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.p2p.buffered import SendBuffer
from allhands.mpi.p2p.requests import Request
from allhands.mpi.runtime import runtime

_SETS = ("mpi://WORLD", "mpi://SELF")


class Session(Handle, HasErrhandler):
    """A handle to the sets of processes."""

    _token: object | None
    _send_buffer: SendBuffer | None

    def __new__(cls, session: "Session | None" = None) -> Self:
        self = super().__new__(cls, session)
        if session is None:
            self._token = self._send_buffer = None
        return self

    def _identity(self) -> object:
        return self._token

    @classmethod
    def Init(cls, info: Info = INFO_NULL, errhandler: Errhandler | None = None) -> Self:
        """Return a new session."""
        self = cls.__new__(cls)
        self._token = object()
        if errhandler is not None:
            self.Set_errhandler(errhandler)
        return self

    def Finalize(self) -> None:
        """End the session."""
        self._check()
        self._make_null()

    _free = Finalize

    def Get_num_psets(self, info: Info = INFO_NULL) -> int:
        """Return the number of sets."""
        self._check()
        return len(_SETS)

    def Get_nth_pset(self, n: int, info: Info = INFO_NULL) -> str:
        """Return the name of a set by its place."""
        self._check()
        if not 0 <= n < len(_SETS):
            raise errors.make_error(ERR_ARG, f"there is no set number {n}: there are {len(_SETS)}")
        return _SETS[n]

    def Get_info(self) -> Info:
        """Return the hints of the session."""
        self._check()
        return Info.Create()

    def Get_pset_info(self, pset_name: str) -> Info:
        """Return what is known of a set: its size, as mpi_size."""
        return Info.Create({"mpi_size": str(self.Create_group(pset_name).Get_size())})

    def Create_group(self, pset_name: str) -> Group:
        """Return the processes of a set."""
        self._check()
        match pset_name:
            case "mpi://WORLD":
                return Group._of(range(runtime.engine.size))
            case "mpi://SELF":
                return Group._of((runtime.engine.rank,))
        raise errors.make_error(ERR_ARG, f"{pset_name!r} is no set: there are {', '.join(_SETS)}")

    def _buffer(self) -> SendBuffer:
        self._check()
        if self._send_buffer is None:
            self._send_buffer = SendBuffer()
        return self._send_buffer

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer for buffered sends on communicators of this session."""
        self._buffer().attach(buf)

    def Detach_buffer(self) -> Any:
        """Wait for the buffered sends, and return the buffer."""
        return self._buffer().detach()

    def Flush_buffer(self) -> None:
        """Wait for the buffered sends."""
        self._buffer().flush()

    def Iflush_buffer(self) -> Request:
        """Begin to wait for the buffered sends."""
        return Request._of(self._buffer().start_flush())

    def _check_errhandler(self) -> None:
        self._check()

    def _check(self) -> None:
        if self._token is None:
            raise errors.make_error(ERR_SESSION, "the session is null")


SESSION_NULL = Session()._name_constant("SESSION_NULL")
"""The null session."""
