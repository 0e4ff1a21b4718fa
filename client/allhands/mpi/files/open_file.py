"""An open file: what all handles of it have in common on a rank, and its reads and writes."""

import os
import threading
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from allhands.mpi import errors
from allhands.mpi.buffers.messages import SimpleMessage
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import (
    ERR_ACCESS,
    ERR_ARG,
    ERR_FILE,
    ERR_READ_ONLY,
    ERR_REQUEST,
    ERR_UNSUPPORTED_OPERATION,
    MODE_APPEND,
    MODE_RDONLY,
    MODE_SEQUENTIAL,
    MODE_WRONLY,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
)
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.layouts import Offsets
from allhands.mpi.datatypes.packing import external_size, from_external, to_external
from allhands.mpi.datatypes.predefined import BYTE
from allhands.mpi.files.pointers import SharedPointer
from allhands.mpi.files.storage import RangeLocks, read_runs, translate_errors, write_runs
from allhands.mpi.files.views import View
from allhands.mpi.info import Info
from allhands.mpi.progress.frames import Bytes

EXTERNAL = "external32"


class OpenFile:
    """A file that the ranks of a communicator have opened, with this rank's view and position."""

    def __init__(
        self,
        comm: Intracomm,
        path: str,
        amode: int,
        descriptor: int,
        pointer: SharedPointer | None,
    ) -> None:
        self.comm = comm
        self.path = path
        self.amode = amode
        self.descriptor = descriptor
        self.info: Info | None = None
        self.etype: Datatype = BYTE
        self.filetype: Datatype = BYTE
        self.datarep = "native"
        self.view = View(0, 1, BYTE.layout)
        self.position = 0
        """Of this rank, in elements."""
        self.is_atomic = False
        self.is_closed = False
        self._pointer = pointer
        self._locks = RangeLocks(descriptor)
        self._lock = threading.Lock()
        self._split: tuple[str, int] | None = None
        """The split call that has begun, and how many bytes it has moved."""
        if amode & MODE_APPEND:
            self.position = self.measure()
            if pointer is not None and comm.Get_rank() == 0:
                pointer.move(self.position)

    def close(self) -> None:
        """Let the file of this rank go."""
        self.is_closed = True
        os.close(self.descriptor)
        if self._pointer is not None:
            self._pointer.close()

    def check_open(self) -> None:
        """Raise if it was closed by another handle."""
        if self.is_closed:
            raise errors.make_error(ERR_FILE, f"{self.path} is closed")

    def measure(self) -> int:
        """Return the bytes of the file."""
        with translate_errors(self.path):
            return os.fstat(self.descriptor).st_size

    # ------------------------------------------------------------ what the mode allows

    def check_readable(self) -> None:
        """Raise if it was opened to be written only."""
        if self.amode & MODE_WRONLY:
            raise errors.make_error(ERR_ACCESS, f"{self.path} was opened to be written only")

    def check_writable(self) -> None:
        """Raise if it was opened to be read only."""
        if self.amode & MODE_RDONLY:
            raise errors.make_error(ERR_READ_ONLY, f"{self.path} was opened to be read only")

    def check_random(self) -> None:
        """Raise if it was opened to be accessed from the beginning to the end."""
        if self.amode & MODE_SEQUENTIAL:
            raise errors.make_error(
                ERR_UNSUPPORTED_OPERATION,
                f"{self.path} was opened with MODE_SEQUENTIAL: only the forms with a shared "
                "pointer are for it (Read_shared, Write_ordered)",
            )

    # ------------------------------------------------------------ data

    def read(self, offset: int, message: SimpleMessage) -> int:
        """Read at an element; return the bytes of data read."""
        offsets, lengths = self._find_runs(offset, message)
        is_native = self.datarep != EXTERNAL
        target = message.target() if is_native else None
        data: Bytes = np.empty(message.nbytes, np.uint8) if target is None else target
        with translate_errors(self.path), self._keep_out_others(offsets, lengths, False):
            found = read_runs(self.descriptor, offsets, lengths, data)
        if target is not None:
            return found
        if not is_native and found:
            # Elements that are cut by the end of the file cannot be converted.
            whole = found // message.datatype.size
            found = whole * message.datatype.size
            data = from_external(data[:found], message.datatype.layout.basics, whole)
        message.unpack(data[:found])
        return found

    def write(self, offset: int, message: SimpleMessage) -> int:
        """Write at an element; return the bytes of data written."""
        offsets, lengths = self._find_runs(offset, message)
        data: Bytes = message.pack()
        if self.datarep == EXTERNAL:
            data = to_external(data, message.datatype.layout.basics, message.count)
        with translate_errors(self.path), self._keep_out_others(offsets, lengths, True):
            write_runs(self.descriptor, offsets, lengths, data)
        return data.size

    def _find_runs(self, offset: int, message: SimpleMessage) -> tuple[Offsets, Offsets]:
        if offset < 0:
            raise errors.make_error(ERR_ARG, f"element {offset} lies before the view")
        if self.datarep == EXTERNAL:
            check_external(message.datatype)
        view = self.view
        if message.nbytes and not view.tile.size:
            raise errors.make_error(ERR_ARG, f"the view of {self.path} has no data")
        return view.find_runs(offset * view.unit, message.nbytes)

    def _keep_out_others(
        self, offsets: Offsets, lengths: Offsets, exclusive: bool
    ) -> AbstractContextManager[None]:
        if not self.is_atomic or not offsets.size:
            return nullcontext()
        stop = int((offsets + lengths).max())
        return self._locks.hold(int(offsets.min()), stop, exclusive)

    def count(self, message: SimpleMessage) -> int:
        """Return how many elements of the view a message is."""
        return -(-message.nbytes // self.view.unit)

    # ------------------------------------------------------------ positions

    def advance(self, count: int) -> int:
        """Move this rank's position on; return where it was."""
        with self._lock:
            before = self.position
            self.position = before + count
        return before

    def find_position(self, offset: int, whence: int, current: int) -> int:
        """Return the element that a seek goes to."""
        match whence:
            case _ if whence == SEEK_SET:
                found = offset
            case _ if whence == SEEK_CUR:
                found = current + offset
            case _ if whence == SEEK_END:
                found = self.view.measure(self.measure()) // self.view.unit + offset
            case _:
                raise errors.make_error(ERR_ARG, f"{whence} is no way to seek")
        if found < 0:
            raise errors.make_error(ERR_ARG, f"element {found} lies before the view")
        return found

    @property
    def has_pointer(self) -> bool:
        """Whether the ranks share a pointer."""
        return self._pointer is not None

    @property
    def pointer(self) -> SharedPointer:
        """The pointer of all ranks.

        Raises:
            NotImplementedError: they are on several hosts.
        """
        if self._pointer is None:
            raise NotImplementedError(
                "ranks share a file pointer on one host only, where they see one another's "
                "processes: use explicit offsets (Read_at, Write_at), or a position of each rank "
                "(Seek, Read, Write)"
            )
        return self._pointer

    def take_ordered(self, message: SimpleMessage) -> int:
        """Return where this rank's part begins, behind those of lower ranks; a collective call."""
        comm, pointer = self.comm, self.pointer
        counts: list[int] = comm._share(self.count(message))
        # The first rank moves the pointer for all: what they call next finds it moved.
        start = pointer.take(sum(counts)) if comm.Get_rank() == 0 else None
        start = int(comm._tell(start, 0))
        return start + sum(counts[: comm.Get_rank()])

    # ------------------------------------------------------------ split collective calls

    def check_no_split(self) -> None:
        """Raise if a split call has begun."""
        if self._split is not None:
            raise errors.make_error(
                ERR_REQUEST, f"{self._split[0]}_begin was called: call {self._split[0]}_end first"
            )

    def begin_split(self, name: str, nbytes: int) -> None:
        """Keep what a split call has moved until it is ended."""
        self._split = name, nbytes

    def end_split(self, name: str) -> int:
        """Return how many bytes the split call has moved that was begun."""
        if self._split is None or self._split[0] != name:
            raise errors.make_error(ERR_REQUEST, f"{name}_begin was not called")
        (_, nbytes), self._split = self._split, None
        return nbytes


def check_external(datatype: Datatype) -> None:
    """Raise if elements have another size in external32 than in memory."""
    if external_size(datatype.layout.basics) != datatype.size:
        raise NotImplementedError(
            f"{datatype.Get_name() or 'the datatype'} has another size in external32 than here: "
            "say one of a fixed size, such as [buf, MPI.INT64_T] instead of MPI.LONG"
        )
