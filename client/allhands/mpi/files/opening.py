"""Opening of a file by all ranks of a communicator: by all, or by none."""

import os

from allhands.mpi import errors
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import (
    ERR_AMODE,
    ERR_NOT_SAME,
    MODE_CREATE,
    MODE_EXCL,
    MODE_RDONLY,
    MODE_RDWR,
    MODE_SEQUENTIAL,
    MODE_WRONLY,
)
from allhands.mpi.files.agreement import fail_together
from allhands.mpi.files.pointers import SharedPointer
from allhands.mpi.files.storage import translate_errors
from allhands.mpi.startup import name_host

_WAYS = {MODE_RDONLY: os.O_RDONLY, MODE_WRONLY: os.O_WRONLY, MODE_RDWR: os.O_RDWR}


def open_together(comm: Intracomm, path: str, amode: int) -> tuple[int, SharedPointer | None]:
    """Return the descriptor of a file that all ranks open, and their pointer; a collective call.

    The first rank creates the file, before the others open it. The pointer is None where ranks
    share none: on several hosts.

    Raises:
        Exception: it cannot be opened on one of the ranks, so that it is open on none.
    """
    descriptor, pointer = -1, None
    try:
        with fail_together(comm):
            flags = read_mode(amode)
            if comm.Get_rank() == 0:
                with translate_errors(path):
                    descriptor = os.open(path, flags | _creation(amode), 0o666)
                pointer = SharedPointer.create(is_alone=comm.Get_size() == 1)
        said = comm._share((amode, name_host(), pointer.address if pointer else None))
        with fail_together(comm):
            if amode != said[0][0]:
                raise errors.make_error(
                    ERR_NOT_SAME, f"{path}: mode {amode} here is {said[0][0]} on rank 0"
                )
            if comm.Get_rank():
                with translate_errors(path):
                    descriptor = os.open(path, flags)
        if len({host for _, host, _ in said}) == 1 and comm.Get_rank():
            pointer = _open_pointer(said[0][2])
        if not all(comm._share(pointer is not None)) and pointer is not None:
            pointer.close()
            pointer = None
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        if pointer is not None:
            pointer.close()
        raise
    return descriptor, pointer


def read_mode(amode: int) -> int:
    """Return the flags of the system for a mode."""
    ways = [flag for mode, flag in _WAYS.items() if amode & mode]
    if len(ways) != 1:
        raise errors.make_error(
            ERR_AMODE, "a file is opened with one of MODE_RDONLY, MODE_WRONLY and MODE_RDWR"
        )
    if amode & MODE_RDONLY and amode & (MODE_CREATE | MODE_EXCL):
        raise errors.make_error(ERR_AMODE, "a file is not created to be read only")
    if amode & MODE_RDWR and amode & MODE_SEQUENTIAL:
        raise errors.make_error(ERR_AMODE, "a sequential file is read or written, not both")
    return ways[0] | os.O_CLOEXEC


def _creation(amode: int) -> int:
    created = os.O_CREAT if amode & MODE_CREATE else 0
    return created | (os.O_EXCL if amode & MODE_EXCL else 0)


def _open_pointer(address: tuple[int, int, bytes]) -> SharedPointer | None:
    try:
        return SharedPointer.open(address)
    except OSError:
        return None
