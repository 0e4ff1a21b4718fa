"""Files: opened by all ranks of a communicator, each with a view and a position of its own."""

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.buffers.messages import SimpleMessage, parse_receive, parse_send
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import (
    DISPLACEMENT_CURRENT,
    ERR_ACCESS,
    ERR_AMODE,
    ERR_ARG,
    ERR_DUP_DATAREP,
    ERR_FILE,
    ERR_REQUEST,
    ERR_UNSUPPORTED_DATAREP,
    MODE_APPEND,
    MODE_CREATE,
    MODE_DELETE_ON_CLOSE,
    MODE_EXCL,
    MODE_RDONLY,
    MODE_RDWR,
    MODE_SEQUENTIAL,
    MODE_WRONLY,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
)
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.packing import external_size, from_external, to_external
from allhands.mpi.datatypes.predefined import BYTE
from allhands.mpi.errhandlers import HasErrhandler
from allhands.mpi.files.storage import (
    SharedPointer,
    lock_range,
    read_runs,
    translate_errors,
    write_runs,
)
from allhands.mpi.files.views import View
from allhands.mpi.groups import Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.p2p.requests import Request, fill_status
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed
from allhands.mpi.runtime import runtime
from allhands.mpi.status import Status

_BYTES = View(0, 1, BYTE.layout)
_NATIVE = ("native", "internal")


class File(Handle, HasErrhandler):
    """An open file; null once it was closed."""

    _comm: Intracomm | None
    _path: str
    _amode: int
    _descriptor: int
    _info: Info | None
    _view: View
    _etype: Datatype
    _filetype: Datatype
    _datarep: str
    _position: int
    """Of this rank, in elements."""
    _is_atomic: bool
    _lock: threading.Lock
    _shared: SharedPointer | None
    """Of all ranks, once it was asked for."""

    def __new__(cls, file: "File | None" = None) -> Self:
        self = super().__new__(cls, file)
        if file is None:
            self._comm = None
        return self

    def _identity(self) -> object:
        return None if self._comm is None else self._comm._context

    def _check(self) -> Intracomm:
        if self._comm is None:
            raise errors.make_error(ERR_FILE, "the file is null")
        return self._comm

    # ------------------------------------------------------------ opening and closing

    @classmethod
    def Open(
        cls,
        comm: Intracomm,
        filename: "str | bytes | os.PathLike[Any]",
        amode: int = MODE_RDONLY,
        info: Info = INFO_NULL,
    ) -> Self:
        """Open a file on all ranks; a collective call.

        Args:
            amode: one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR, with others.

        Raises:
            Exception: it cannot be opened on one of the ranks, so that it is open on none.
        """
        path = os.fsdecode(filename)
        flags = _read_mode(amode)
        own = comm.Dup()
        try:
            descriptor, failure = -1, None
            try:
                with translate_errors(path):
                    descriptor = _open_in_turn(own, path, flags, amode)
            except errors.Exception as error:
                failure = error
            said = own._share(None if failure is None else (int(failure), str(failure)))
            if (first := next((one for one in said if one is not None), None)) is not None:
                if descriptor >= 0:
                    os.close(descriptor)
                raise errors.Exception(first[0], first[1]) from failure
        except BaseException:
            own.Free()
            raise
        self = cls.__new__(cls)
        self._comm, self._path, self._amode = own, path, amode
        self._descriptor = descriptor
        self._info = info.Dup() if info else None
        self._view, self._etype, self._filetype, self._datarep = _BYTES, BYTE, BYTE, "native"
        self._position = 0
        self._is_atomic = False
        self._lock = threading.Lock()
        self._shared, self._split = None, None
        if amode & MODE_APPEND:
            self._position = os.fstat(descriptor).st_size
        return self

    def Close(self) -> None:
        """Close the file; a collective call."""
        comm = self._check()
        os.close(self._descriptor)
        if self._shared is not None:
            self._shared.close()
        comm.Barrier()
        if self._amode & MODE_DELETE_ON_CLOSE and comm.Get_rank() == 0:
            with translate_errors(self._path):
                os.unlink(self._path)
        comm.Free()
        self._make_null()

    _free = Close

    @classmethod
    def Delete(cls, filename: "str | bytes | os.PathLike[Any]", info: Info = INFO_NULL) -> None:
        """Delete a file."""
        with translate_errors(os.fsdecode(filename)):
            os.unlink(filename)

    def Set_size(self, size: int) -> None:
        """Cut or extend the file; a collective call."""
        comm = self._check()
        if size < 0:
            raise errors.make_error(ERR_ARG, f"no file has {size} bytes")
        comm.Barrier()
        if comm.Get_rank() == 0:
            with translate_errors(self._path):
                os.ftruncate(self._descriptor, size)
        comm.Barrier()

    def Preallocate(self, size: int) -> None:
        """Take room for so many bytes, and extend the file to them; a collective call."""
        comm = self._check()
        comm.Barrier()
        if comm.Get_rank() == 0 and size > os.fstat(self._descriptor).st_size:
            with translate_errors(self._path):
                os.posix_fallocate(self._descriptor, 0, size)
        comm.Barrier()

    def Get_size(self) -> int:
        """Return the bytes of the file."""
        self._check()
        return os.fstat(self._descriptor).st_size

    size = property(Get_size, doc="Bytes of the file.")

    def Get_amode(self) -> int:
        """Return how it was opened."""
        self._check()
        return self._amode

    amode = property(Get_amode, doc="How it was opened.")

    def Get_group(self) -> Group:
        """Return the group of the ranks."""
        return self._check().Get_group()

    group = property(Get_group, doc="Group of the ranks.")
    group_size = property(lambda self: self._check().Get_size(), doc="Number of ranks.")
    group_rank = property(lambda self: self._check().Get_rank(), doc="Rank of this process.")

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._check()
        return Info.Create() if self._info is None else self._info.Dup()

    def Set_info(self, info: Info) -> None:
        """Set the hints, on all ranks alike."""
        self._check()
        self._info = info.Dup() if info else None

    info = property(Get_info, Set_info, doc="Hints.")

    # ------------------------------------------------------------ views and positions

    def Set_view(
        self,
        disp: int = 0,
        etype: Datatype = BYTE,
        filetype: Datatype | None = None,
        datarep: str | None = "native",
        info: Info = INFO_NULL,
    ) -> None:
        """Set what this rank sees of the file; a collective call. Positions are 0 then.

        Args:
            disp: first byte; DISPLACEMENT_CURRENT: where the shared pointer is.
            etype: elements in which offsets count.
            filetype: a tile of such elements, with gaps for what this rank does not see.
            datarep: native, internal, or external32.
        """
        comm = self._check()
        chosen = datarep or "native"
        tile = etype if filetype is None else filetype
        if chosen not in (*_NATIVE, "external32"):
            raise errors.make_error(
                ERR_UNSUPPORTED_DATAREP, f"{chosen!r} is no data representation that files have"
            )
        if chosen == "external32" and external_size(tile.layout.basics) != tile.size:
            raise NotImplementedError(
                "external32 is for elements that have the same size there: fixed ones such as "
                "MPI.INT64_T, not MPI.LONG"
            )
        if etype.size and tile.size % etype.size:
            raise errors.make_error(ERR_ARG, "the filetype does not consist of whole etypes")
        start = 0 if disp == DISPLACEMENT_CURRENT else disp
        if disp == DISPLACEMENT_CURRENT:
            start = self._view.find_byte(self._pointer().get() * self._view.unit)
        if start < 0:
            raise errors.make_error(ERR_ARG, f"a view cannot begin at byte {start}")
        self._view = View(start, max(etype.size, 1), tile.layout)
        self._etype, self._filetype, self._datarep = etype, tile, chosen
        self._position = 0
        if self._shared is not None:
            comm.Barrier()
            self._shared.move(0)
        comm.Barrier()

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        """Return the displacement, the elements, the tile and the representation."""
        self._check()
        etype, tile = (_new_handle(one) for one in (self._etype, self._filetype))
        return self._view.disp, etype, tile, self._datarep

    def Get_type_extent(self, datatype: Datatype) -> int:
        """Return the bytes from one element to the next in the file."""
        self._check()
        return datatype.extent

    def Seek(self, offset: int, whence: int = SEEK_SET) -> None:
        """Set the position of this rank, in elements."""
        self._check()
        self._position = self._find_position(offset, whence, self._position)

    def Get_position(self) -> int:
        """Return the position of this rank, in elements."""
        self._check()
        return self._position

    def Get_byte_offset(self, offset: int) -> int:
        """Return the byte of the file at which an element lies."""
        self._check()
        return self._view.find_byte(offset * self._view.unit)

    def _find_position(self, offset: int, whence: int, current: int) -> int:
        match whence:
            case _ if whence == SEEK_SET:
                found = offset
            case _ if whence == SEEK_CUR:
                found = current + offset
            case _ if whence == SEEK_END:
                found = self._view.measure(self.Get_size()) // self._view.unit + offset
            case _:
                raise errors.make_error(ERR_ARG, f"{whence} is no way to seek")
        if found < 0:
            raise errors.make_error(ERR_ARG, f"element {found} lies before the view")
        return found

    def _pointer(self) -> SharedPointer:
        """Return the shared pointer; the first such call is a collective one."""
        if self._shared is None:
            self._shared = SharedPointer.open(self._check())
        return self._shared

    def Seek_shared(self, offset: int, whence: int = SEEK_SET) -> None:
        """Set the position of all ranks, in elements; a collective call."""
        comm = self._check()
        pointer = self._pointer()
        found = self._find_position(offset, whence, pointer.get())
        comm.Barrier()
        if comm.Get_rank() == 0:
            pointer.move(found)
        comm.Barrier()

    def Get_position_shared(self) -> int:
        """Return the position of all ranks, in elements."""
        self._check()
        return self._pointer().get()

    # ------------------------------------------------------------ data

    def _read(self, offset: int, message: SimpleMessage) -> int:
        """Read at an element; return the bytes read."""
        if not self._amode & (MODE_RDONLY | MODE_RDWR):
            raise errors.make_error(ERR_ACCESS, f"{self._path} was opened to be written only")
        offsets, lengths = self._find_runs(offset, message)
        with translate_errors(self._path), self._keep_out_others(offsets, lengths, False):
            data = read_runs(self._descriptor, offsets, lengths)
        if self._datarep == "external32":
            count = data.size // message.datatype.size if message.datatype.size else 0
            data = from_external(data, message.datatype.layout.basics, count)
        message.unpack(data)
        return data.size

    def _write(self, offset: int, message: SimpleMessage) -> int:
        """Write at an element; return the bytes written."""
        if not self._amode & (MODE_WRONLY | MODE_RDWR):
            raise errors.make_error(ERR_ACCESS, f"{self._path} was opened to be read only")
        offsets, lengths = self._find_runs(offset, message)
        data: Bytes = message.pack()
        if self._datarep == "external32":
            data = to_external(data, message.datatype.layout.basics, message.count)
        with translate_errors(self._path), self._keep_out_others(offsets, lengths, True):
            write_runs(self._descriptor, offsets, lengths, data)
        return data.size

    def _find_runs(self, offset: int, message: SimpleMessage) -> Any:
        self._check()
        if offset < 0:
            raise errors.make_error(ERR_ARG, f"element {offset} lies before the view")
        return self._view.find_runs(offset * self._view.unit, message.nbytes)

    def _keep_out_others(self, offsets: Any, lengths: Any, exclusive: bool) -> Any:
        if not self._is_atomic or not offsets.size:
            return nullcontext()
        stop = int((offsets + lengths).max())
        return lock_range(self._descriptor, int(offsets.min()), stop, exclusive)

    def _advance(self, count: int) -> int:
        """Move this rank's position on; return where it was."""
        with self._lock:
            before = self._position
            self._position = before + count
        return before

    def _count(self, message: SimpleMessage) -> int:
        """Return how many elements of the view a message is."""
        return -(-message.nbytes // self._view.unit)

    def _take_ordered(self, message: SimpleMessage) -> int:
        """Return where this rank's part begins, behind those of the ranks before it."""
        comm = self._check()
        pointer = self._pointer()
        counts: list[int] = comm._share(self._count(message))
        start = pointer.get()
        comm.Barrier()
        if comm.Get_rank() == 0:
            pointer.move(start + sum(counts))
        comm.Barrier()
        return start + sum(counts[: comm.Get_rank()])

    def _finish(self, nbytes: int, status: Status | None) -> None:
        fill_status(status, Completed(nbytes=nbytes))

    def Read_at(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Read at an element."""
        self._finish(self._read(offset, parse_receive(buf)), status)

    def Read_at_all(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Read at an element; a collective call."""
        self.Read_at(offset, buf, status)

    def Write_at(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Write at an element."""
        self._finish(self._write(offset, parse_send(buf)), status)

    def Write_at_all(self, offset: int, buf: Any, status: Status | None = None) -> None:
        """Write at an element; a collective call."""
        self.Write_at(offset, buf, status)

    def Iread_at(self, offset: int, buf: Any) -> Request:
        """Read at an element; the request has ended."""
        return self._complete(self._read(offset, parse_receive(buf)))

    def Iread_at_all(self, offset: int, buf: Any) -> Request:
        """Read at an element, collectively; the request has ended."""
        return self.Iread_at(offset, buf)

    def Iwrite_at(self, offset: int, buf: Any) -> Request:
        """Write at an element; the request has ended."""
        return self._complete(self._write(offset, parse_send(buf)))

    def Iwrite_at_all(self, offset: int, buf: Any) -> Request:
        """Write at an element, collectively; the request has ended."""
        return self.Iwrite_at(offset, buf)

    def _complete(self, nbytes: int) -> Request:
        return Request._of(Completed(nbytes=nbytes))

    def _read_next(self, buf: Any) -> int:
        message = parse_receive(buf)
        return self._read(self._advance(self._count(message)), message)

    def _write_next(self, buf: Any) -> int:
        message = parse_send(buf)
        return self._write(self._advance(self._count(message)), message)

    def Read(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of this rank."""
        self._finish(self._read_next(buf), status)

    def Read_all(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of this rank; a collective call."""
        self.Read(buf, status)

    def Write(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of this rank."""
        self._finish(self._write_next(buf), status)

    def Write_all(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of this rank; a collective call."""
        self.Write(buf, status)

    def Iread(self, buf: Any) -> Request:
        """Read at the position of this rank; the request has ended."""
        return self._complete(self._read_next(buf))

    def Iread_all(self, buf: Any) -> Request:
        """Read at the position of this rank, collectively; the request has ended."""
        return self.Iread(buf)

    def Iwrite(self, buf: Any) -> Request:
        """Write at the position of this rank; the request has ended."""
        return self._complete(self._write_next(buf))

    def Iwrite_all(self, buf: Any) -> Request:
        """Write at the position of this rank, collectively; the request has ended."""
        return self.Iwrite(buf)

    def _read_shared(self, buf: Any) -> int:
        message = parse_receive(buf)
        return self._read(self._pointer().take(self._count(message)), message)

    def _write_shared(self, buf: Any) -> int:
        message = parse_send(buf)
        return self._write(self._pointer().take(self._count(message)), message)

    def Read_shared(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of all ranks."""
        self._finish(self._read_shared(buf), status)

    def Write_shared(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of all ranks."""
        self._finish(self._write_shared(buf), status)

    def Iread_shared(self, buf: Any) -> Request:
        """Read at the position of all ranks; the request has ended."""
        return self._complete(self._read_shared(buf))

    def Iwrite_shared(self, buf: Any) -> Request:
        """Write at the position of all ranks; the request has ended."""
        return self._complete(self._write_shared(buf))

    def Read_ordered(self, buf: Any, status: Status | None = None) -> None:
        """Read at the position of all ranks, in the order of ranks; a collective call."""
        message = parse_receive(buf)
        self._finish(self._read(self._take_ordered(message), message), status)

    def Write_ordered(self, buf: Any, status: Status | None = None) -> None:
        """Write at the position of all ranks, in the order of ranks; a collective call."""
        message = parse_send(buf)
        self._finish(self._write(self._take_ordered(message), message), status)

    # ------------------------------------------------------------ split collective calls

    def _begin(self, call: Callable[..., None], *arguments: Any) -> None:
        self._check()
        if self._split is not None:
            raise errors.make_error(ERR_REQUEST, "a split call has begun before: end it first")
        status = Status()
        call(*arguments, status)
        self._split = call.__name__, status

    def _end(self, call: Callable[..., None], status: Status | None) -> None:
        self._check()
        if self._split is None or self._split[0] != call.__name__:
            raise errors.make_error(ERR_REQUEST, f"{call.__name__}_begin was not called")
        (_, ended), self._split = self._split, None
        if status is not None:
            status.nbytes = ended.nbytes

    _split: tuple[str, Status] | None

    def Read_at_all_begin(self, offset: int, buf: Any) -> None:
        """Begin a `Read_at_all`."""
        self._begin(self.Read_at_all, offset, buf)

    def Read_at_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_at_all`."""
        self._end(self.Read_at_all, status)

    def Write_at_all_begin(self, offset: int, buf: Any) -> None:
        """Begin a `Write_at_all`."""
        self._begin(self.Write_at_all, offset, buf)

    def Write_at_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_at_all`."""
        self._end(self.Write_at_all, status)

    def Read_all_begin(self, buf: Any) -> None:
        """Begin a `Read_all`."""
        self._begin(self.Read_all, buf)

    def Read_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_all`."""
        self._end(self.Read_all, status)

    def Write_all_begin(self, buf: Any) -> None:
        """Begin a `Write_all`."""
        self._begin(self.Write_all, buf)

    def Write_all_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_all`."""
        self._end(self.Write_all, status)

    def Read_ordered_begin(self, buf: Any) -> None:
        """Begin a `Read_ordered`."""
        self._begin(self.Read_ordered, buf)

    def Read_ordered_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Read_ordered`."""
        self._end(self.Read_ordered, status)

    def Write_ordered_begin(self, buf: Any) -> None:
        """Begin a `Write_ordered`."""
        self._begin(self.Write_ordered, buf)

    def Write_ordered_end(self, buf: Any, status: Status | None = None) -> None:
        """End a `Write_ordered`."""
        self._end(self.Write_ordered, status)

    # ------------------------------------------------------------ consistency

    def Set_atomicity(self, flag: bool) -> None:
        """Set whether reads and writes of several ranks never mix; a collective call."""
        comm = self._check()
        self._is_atomic = bool(flag)
        comm.Barrier()

    def Get_atomicity(self) -> bool:
        """Say whether reads and writes of several ranks never mix."""
        self._check()
        return self._is_atomic

    atomicity = property(Get_atomicity, Set_atomicity, doc="Whether accesses never mix.")

    def Sync(self) -> None:
        """Have what was written be on the disk, for all ranks; a collective call."""
        comm = self._check()
        with translate_errors(self._path):
            os.fsync(self._descriptor)
        comm.Barrier()


def _read_mode(amode: int) -> int:
    """Return the flags of the system for a mode."""
    ways = [one for one in (MODE_RDONLY, MODE_WRONLY, MODE_RDWR) if amode & one]
    if len(ways) != 1:
        raise errors.make_error(
            ERR_AMODE, "a file is opened with one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR"
        )
    if amode & MODE_RDONLY and amode & (MODE_CREATE | MODE_EXCL):
        raise errors.make_error(ERR_AMODE, "a file is not created to be read only")
    if amode & MODE_RDWR and amode & MODE_SEQUENTIAL:
        raise errors.make_error(ERR_AMODE, "a sequential file is read or written, not both")
    flags = {MODE_RDONLY: os.O_RDONLY, MODE_WRONLY: os.O_WRONLY, MODE_RDWR: os.O_RDWR}[ways[0]]
    return flags | os.O_CLOEXEC


def _open_in_turn(comm: Intracomm, path: str, flags: int, amode: int) -> int:
    """Open a file on the first rank, which creates it, and then on the others."""
    created = (os.O_CREAT if amode & MODE_CREATE else 0) | (os.O_EXCL if amode & MODE_EXCL else 0)
    descriptor, failure = -1, None
    if comm.Get_rank() == 0:
        try:
            descriptor = os.open(path, flags | created, 0o666)
        except OSError as error:
            failure = error
    if comm._tell(failure is None, 0):
        if comm.Get_rank():
            descriptor = os.open(path, flags)
        return descriptor
    if failure is not None:
        raise failure
    raise OSError(5, "rank 0 could not open it")


def _new_handle(datatype: Datatype) -> Datatype:
    return datatype if datatype._builtin else Datatype(datatype)


def Register_datarep(
    datarep: str,
    read_fn: Callable[..., None] | None,
    write_fn: Callable[..., None] | None,
    extent_fn: Callable[[Datatype], int],
) -> None:
    """Register a data representation; files are not read or written in it.

    Raises:
        Exception: there is one of that name.
    """
    known: set[str] = runtime.storage.setdefault("data representations", set())
    if datarep in (*known, *_NATIVE, "external32"):
        raise errors.make_error(ERR_DUP_DATAREP, f"there is a representation {datarep!r} already")
    known.add(datarep)


FILE_NULL = File()._name_constant("FILE_NULL")
"""The null file."""
