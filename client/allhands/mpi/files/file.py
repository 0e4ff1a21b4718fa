"""Files: opened by all ranks of a communicator, each with a view and a position of its own."""

import os
from collections.abc import Callable
from typing import Any, Self

from allhands.mpi import errors
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import (
    DISPLACEMENT_CURRENT,
    ERR_ARG,
    ERR_DUP_DATAREP,
    ERR_FILE,
    ERR_UNSUPPORTED_DATAREP,
    MAX_DATAREP_STRING,
    MODE_APPEND,
    MODE_DELETE_ON_CLOSE,
    MODE_RDONLY,
    SEEK_SET,
)
from allhands.mpi.datatypes.datatype import Datatype, new_handle
from allhands.mpi.datatypes.packing import external_size
from allhands.mpi.datatypes.predefined import BYTE
from allhands.mpi.errhandlers import HasErrhandler
from allhands.mpi.files.access import DataAccess
from allhands.mpi.files.agreement import fail_together
from allhands.mpi.files.open_file import EXTERNAL, OpenFile, check_external
from allhands.mpi.files.opening import open_together
from allhands.mpi.files.storage import translate_errors
from allhands.mpi.files.views import View
from allhands.mpi.groups import Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.runtime import runtime

_KNOWN = ("native", "internal", EXTERNAL)


class File(Handle, HasErrhandler, DataAccess):
    """An open file; null once it was closed."""

    _opened: OpenFile | None
    """What all handles of the file have in common."""

    def __new__(cls, file: "File | None" = None) -> Self:
        self = super().__new__(cls, file)
        if file is None:
            self._opened = None
        return self

    def _identity(self) -> object:
        return self._opened

    def _check(self) -> OpenFile:
        opened = self._opened
        if opened is None:
            raise errors.make_error(ERR_FILE, "the file is null")
        opened.check_open()
        return opened

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
        if not isinstance(comm, Intracomm):
            raise TypeError(f"expected an Intracomm, not {type(comm).__name__}")
        path = os.fsdecode(filename)
        own = comm.Dup()
        try:
            descriptor, pointer = open_together(own, path, amode)
        except (errors.Exception, NotImplementedError):
            own.Free()
            raise
        opened = OpenFile(own, path, amode, descriptor, pointer)
        opened.info = info.Dup() if info else None
        if amode & MODE_APPEND:
            # The first rank moves the pointer to the end for all.
            own.Barrier()
        self = cls.__new__(cls)
        self._opened = opened
        return self

    def Close(self) -> None:
        """Close the file; a collective call."""
        opened = self._check()
        comm = opened.comm
        opened.close()
        comm.Barrier()
        try:
            if opened.amode & MODE_DELETE_ON_CLOSE:
                with fail_together(comm), translate_errors(opened.path):
                    if comm.Get_rank() == 0:
                        os.unlink(opened.path)
        finally:
            comm.Free()
            self._make_null()

    _free = Close

    @classmethod
    def Delete(cls, filename: "str | bytes | os.PathLike[Any]", info: Info = INFO_NULL) -> None:
        """Delete a file."""
        with translate_errors(os.fsdecode(filename)):
            os.unlink(filename)

    # ------------------------------------------------------------ size and mode

    def Set_size(self, size: int) -> None:
        """Cut or extend the file; a collective call."""
        opened = self._check()
        opened.check_writable()
        _check_size(size)
        opened.comm.Barrier()
        with fail_together(opened.comm), translate_errors(opened.path):
            if opened.comm.Get_rank() == 0:
                os.ftruncate(opened.descriptor, size)

    def Preallocate(self, size: int) -> None:
        """Take room for so many bytes, and extend the file to them; a collective call."""
        opened = self._check()
        opened.check_writable()
        opened.check_random()
        _check_size(size)
        opened.comm.Barrier()
        with fail_together(opened.comm), translate_errors(opened.path):
            if opened.comm.Get_rank() == 0 and size:
                os.posix_fallocate(opened.descriptor, 0, size)

    def Get_size(self) -> int:
        """Return the bytes of the file."""
        return self._check().measure()

    size = property(Get_size, doc="Bytes of the file.")

    def Get_amode(self) -> int:
        """Return how it was opened."""
        return self._check().amode

    amode = property(Get_amode, doc="How it was opened.")

    def Get_group(self) -> Group:
        """Return the group of the ranks."""
        return self._check().comm.Get_group()

    group = property(Get_group, doc="Group of the ranks.")
    group_size = property(lambda self: self._check().comm.Get_size(), doc="Number of ranks.")
    group_rank = property(lambda self: self._check().comm.Get_rank(), doc="Rank of this process.")

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        info = self._check().info
        return Info.Create() if info is None else info.Dup()

    def Set_info(self, info: Info) -> None:
        """Set the hints, on all ranks alike."""
        self._check().info = info.Dup() if info else None

    info = property(Get_info, Set_info, doc="Hints.")

    # ------------------------------------------------------------ views

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
        opened = self._check()
        opened.check_no_split()
        comm = opened.comm
        chosen = datarep or "native"
        tile = etype if filetype is None else filetype
        with fail_together(comm):
            _check_view(etype, tile, chosen)
            if disp < 0 and disp != DISPLACEMENT_CURRENT:
                raise errors.make_error(ERR_ARG, f"a view cannot begin at byte {disp}")
            if disp == DISPLACEMENT_CURRENT:
                opened.pointer  # noqa: B018 (raises where there is none)
        # All ranks have come: none moves the pointer any more.
        if disp == DISPLACEMENT_CURRENT:
            disp = opened.view.find_byte(opened.pointer.get() * opened.view.unit)
            comm.Barrier()
        opened.view = View(disp, max(etype.size, 1), tile.layout)
        # Handles of this file: a program may free its own.
        opened.etype, opened.filetype = new_handle(etype), new_handle(tile)
        opened.datarep = chosen
        opened.position = 0
        if info:
            opened.info = info.Dup()
        if opened.has_pointer:
            if comm.Get_rank() == 0:
                opened.pointer.move(0)
            comm.Barrier()

    def Get_view(self) -> tuple[int, Datatype, Datatype, str]:
        """Return the displacement, the elements, the tile and the representation."""
        opened = self._check()
        etype, tile = new_handle(opened.etype), new_handle(opened.filetype)
        return opened.view.disp, etype, tile, opened.datarep

    def Get_type_extent(self, datatype: Datatype) -> int:
        """Return the bytes from one element to the next in the file."""
        if self._check().datarep == EXTERNAL and datatype.is_contiguous:
            return external_size(datatype.layout.basics)
        return datatype.extent

    # ------------------------------------------------------------ positions

    def Seek(self, offset: int, whence: int = SEEK_SET) -> None:
        """Set the position of this rank, in elements."""
        opened = self._check()
        opened.check_random()
        opened.position = opened.find_position(offset, whence, opened.position)

    def Get_position(self) -> int:
        """Return the position of this rank, in elements."""
        opened = self._check()
        opened.check_random()
        return opened.position

    def Get_byte_offset(self, offset: int) -> int:
        """Return the byte of the file at which an element lies."""
        opened = self._check()
        if offset < 0:
            raise errors.make_error(ERR_ARG, f"element {offset} lies before the view")
        return opened.view.find_byte(offset * opened.view.unit)

    def Seek_shared(self, offset: int, whence: int = SEEK_SET) -> None:
        """Set the position of all ranks, in elements; a collective call."""
        opened = self._check()
        opened.check_random()
        comm, pointer = opened.comm, opened.pointer
        # Where the pointer is now is known when all ranks have come.
        comm.Barrier()
        with fail_together(comm):
            if comm.Get_rank() == 0:
                pointer.move(opened.find_position(offset, whence, pointer.get()))

    def Get_position_shared(self) -> int:
        """Return the position of all ranks, in elements."""
        opened = self._check()
        opened.check_random()
        return opened.pointer.get()

    # ------------------------------------------------------------ consistency

    def Set_atomicity(self, flag: bool) -> None:
        """Set whether reads and writes of several ranks never mix; a collective call."""
        opened = self._check()
        opened.is_atomic = bool(flag)
        opened.comm.Barrier()

    def Get_atomicity(self) -> bool:
        """Say whether reads and writes of several ranks never mix."""
        return self._check().is_atomic

    atomicity = property(Get_atomicity, Set_atomicity, doc="Whether accesses never mix.")

    def Sync(self) -> None:
        """Have what was written be on the disk, for all ranks; a collective call."""
        opened = self._check()
        with fail_together(opened.comm), translate_errors(opened.path):
            os.fsync(opened.descriptor)


def _check_size(size: int) -> None:
    if size < 0:
        raise errors.make_error(ERR_ARG, f"no file has {size} bytes")


def _check_view(etype: Datatype, tile: Datatype, datarep: str) -> None:
    if datarep not in _KNOWN:
        raise errors.make_error(
            ERR_UNSUPPORTED_DATAREP, f"{datarep!r} is no data representation that files have"
        )
    if datarep == EXTERNAL:
        check_external(tile)
    if tile.size % max(etype.size, 1):
        raise errors.make_error(ERR_ARG, "the filetype does not consist of whole etypes")
    if tile.true_lb < 0:
        raise errors.make_error(ERR_ARG, "the filetype has data before its beginning")


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
    if len(os.fsencode(datarep)) > MAX_DATAREP_STRING:
        raise errors.make_error(
            ERR_ARG, f"the name of a representation has at most {MAX_DATAREP_STRING} bytes"
        )
    known: set[str] = runtime.storage.setdefault("data representations", set())
    if datarep in (*known, *_KNOWN):
        raise errors.make_error(ERR_DUP_DATAREP, f"there is a representation {datarep!r} already")
    known.add(datarep)


FILE_NULL = File()._name_constant("FILE_NULL")
"""The null file."""
