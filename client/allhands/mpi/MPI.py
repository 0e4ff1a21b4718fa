"""The names of MPI, as `mpi4py.MPI` has them. Importing this joins the world: see `rc`."""

from atexit import register as _register
from collections.abc import Hashable as _Hashable
from threading import Lock as _Lock
from typing import Any as _Any

from allhands.mpi.communicators.cartesian import Compute_dims
from allhands.mpi.communicators.comm import Comm
from allhands.mpi.communicators.intercomm import Intercomm
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.communicators.predefined import COMM_NULL, COMM_SELF, COMM_WORLD
from allhands.mpi.communicators.topologies import Cartcomm, Distgraphcomm, Graphcomm, Topocomm
from allhands.mpi.constants import *  # noqa: F403
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.predefined import CONSTANTS as _DATATYPES
from allhands.mpi.datatypes.predefined import DATATYPE_NULL
from allhands.mpi.datatypes.predefined import typedict as _typedict
from allhands.mpi.datatypes.predefined import typedict_c as _typedict_c
from allhands.mpi.datatypes.predefined import typedict_f as _typedict_f
from allhands.mpi.environment import (
    Close_port,
    Finalize,
    Get_abi_fortran_info,
    Get_abi_info,
    Get_abi_version,
    Get_hw_resource_info,
    Get_library_version,
    Get_processor_name,
    Get_version,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
    Is_thread_main,
    Lookup_name,
    Open_port,
    Pcontrol,
    Publish_name,
    Query_thread,
    Unpublish_name,
    Wtick,
    Wtime,
    get_vendor,
)
from allhands.mpi.errhandlers import (
    ERRHANDLER_NULL,
    ERRORS_ABORT,
    ERRORS_ARE_FATAL,
    ERRORS_RETURN,
    Errhandler,
)
from allhands.mpi.errors import (
    Add_error_class,
    Add_error_code,
    Add_error_string,
    Exception,
    Get_error_class,
    Get_error_string,
    Remove_error_class,
    Remove_error_code,
    Remove_error_string,
)
from allhands.mpi.files.file import FILE_NULL, File, Register_datarep
from allhands.mpi.groups import GROUP_EMPTY, GROUP_NULL, Group
from allhands.mpi.handles import Handle
from allhands.mpi.info import INFO_ENV, INFO_NULL, Info
from allhands.mpi.memory.buffer import (
    Aint_add,
    Aint_diff,
    Alloc_mem,
    Free_mem,
    Get_address,
    buffer,
    memory,
)
from allhands.mpi.memory.special import (
    BOTTOM,
    BUFFER_AUTOMATIC,
    IN_PLACE,
    BottomType,
    BufferAutomaticType,
    InPlaceType,
)
from allhands.mpi.objects import Pickle, pickle
from allhands.mpi.operations.op import Op
from allhands.mpi.operations.predefined import CONSTANTS as _OPERATIONS
from allhands.mpi.operations.predefined import OP_NULL
from allhands.mpi.p2p.buffered import Attach_buffer, Detach_buffer, Flush_buffer, Iflush_buffer
from allhands.mpi.p2p.message import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from allhands.mpi.p2p.requests import REQUEST_NULL, Grequest, Prequest, Request
from allhands.mpi.runtime import runtime as _runtime
from allhands.mpi.sessions import SESSION_NULL, Session
from allhands.mpi.status import Status
from allhands.mpi.windows.win import WIN_NULL, Win

globals().update(_DATATYPES)
globals().update(_OPERATIONS)


def __getattr__(name: str) -> _Any:
    """Say what is not there."""
    raise AttributeError(f"module 'MPI' has no attribute {name!r}")


def _typecode(datatype: Datatype) -> str | None:
    """Return the code of a datatype; None: it has none."""
    basic = datatype._find_basic()
    return None if basic is None else basic.code


def _typealign(datatype: Datatype) -> int | None:
    """Return the alignment of a predefined datatype; None: it is null or derived."""
    if not datatype or not datatype.is_predefined:
        return None
    return datatype.layout.align


def _datatype_create(
    datatype: Datatype, combiner: str, params: dict[str, _Any], free: bool = False
) -> Datatype:
    """Return the datatype of what `decode` returns."""
    made: Datatype = getattr(datatype, f"Create_{combiner.lower()}")(**params)
    return made.Commit()


def _datatype_decode(
    datatype: Datatype, mark: bool = False
) -> tuple[Datatype, str, dict[str, _Any]]:
    """Return what a datatype was made of."""
    return datatype.decode()


def _comm_lock_table(comm: Comm) -> dict[_Hashable, _Lock]:
    """Return the locks of a communicator, by what they are for."""
    table: dict[_Hashable, _Lock] = comm.__dict__.setdefault("_locks", {})
    return table


def _comm_lock(comm: Comm, key: _Hashable | None = None) -> _Lock:
    """Return a lock of a communicator."""
    return _comm_lock_table(comm).setdefault(key, _Lock())


def _commctx_intra(comm: Intracomm) -> tuple[Intracomm, int]:
    """Return a communicator of the same ranks for a library, and a tag of it."""
    table = comm.__dict__.setdefault("_library", {})
    if "dup" not in table:
        table["dup"], table["tag"] = comm.Dup(), -1
    table["tag"] = (table["tag"] + 1) % (1 << 20)
    return table["dup"], table["tag"]


def _commctx_inter(comm: Intercomm) -> tuple[Intercomm, int, Intracomm, bool]:
    """Return the same of two groups, with the ranks on this side, and whether they come last."""
    table = comm.__dict__.setdefault("_library", {})
    if "dup" not in table:
        table["dup"], table["tag"] = comm.Dup(), -1
        table["low"] = comm._ranks[0] > comm._peers[0]
    table["tag"] = (table["tag"] + 1) % (1 << 20)
    dup = table["dup"]
    return dup, table["tag"], dup._local, table["low"]


def _set_abort_status(status: int) -> None:
    """Set the exit status with which this process ends when it aborts."""
    _runtime.storage["abort status"] = status


def _check_handle(arg: _Any) -> _Any:
    """Return a handle or status, or raise TypeError."""
    if not isinstance(arg, Handle | Status | Message):
        raise TypeError(f"expected an object of MPI, not {type(arg).__name__}")
    return arg


def _sizeof(arg: _Any) -> int:
    """Return the bytes that an object of MPI would have in C."""
    if isinstance(arg, type):
        if not issubclass(arg, Handle | Status):
            raise TypeError(f"expected a class of MPI, not {arg.__name__}")
        return 24 if issubclass(arg, Status) else 8
    return 24 if isinstance(_check_handle(arg), Status) else 8


def _handleof(arg: _Any) -> int:
    """Return the number of a handle; of a status 0."""
    return 0 if isinstance(_check_handle(arg), Status) else int(arg.handle)


def _addressof(arg: _Any) -> int:
    """Return the address of an object of MPI."""
    return id(_check_handle(arg))


def _start() -> None:
    """Join the world, unless `rc` says that the program does."""
    import sys

    rc = getattr(sys.modules.get("mpi4py"), "rc", None)
    if getattr(rc, "initialize", True) and not Is_initialized():
        levels = ("single", "funneled", "serialized", "multiple")
        level = getattr(rc, "thread_level", "multiple")
        threads = getattr(rc, "threads", True)
        Init_thread(levels.index(level) if threads and level in levels else 0)
    if getattr(rc, "finalize", None) is not False:
        _register(_end)


def _end() -> None:
    """Leave the world at the end of the program, unless it did, or ends by an error."""
    import sys

    if Is_initialized() and not Is_finalized() and getattr(sys, "last_value", None) is None:
        Finalize()


_start()
