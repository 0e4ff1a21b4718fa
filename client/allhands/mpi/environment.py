"""Begin, end and environment of MPI in this process."""

import importlib.metadata
import platform
import threading
import time
from typing import NoReturn

from allhands.mpi import errors
from allhands.mpi.constants import (
    ERR_OTHER,
    MAX_PROCESSOR_NAME,
    SUBVERSION,
    THREAD_MULTIPLE,
    VERSION,
)
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.runtime import runtime


def Init() -> None:
    """Join the world; a collective call."""
    Init_thread(THREAD_MULTIPLE)


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Join the world; return the level of thread support."""
    from allhands.mpi.communicators.predefined import open_predefined

    try:
        provided = runtime.initialize(required)
    except RuntimeError as error:
        raise errors.make_error(ERR_OTHER, str(error)) from error
    open_predefined()
    return provided


def Finalize() -> None:
    """Leave the world, when all ranks have come here; a collective call."""
    if not runtime.is_initialized or runtime.is_finalized:
        raise errors.make_error(ERR_OTHER, "MPI is not initialized, or is finalized already")
    runtime.finalize()


def Is_initialized() -> bool:
    """Say whether MPI was initialized."""
    return runtime.is_initialized


def Is_finalized() -> bool:
    """Say whether MPI was finalized."""
    return runtime.is_finalized


def Query_thread() -> int:
    """Return the level of thread support."""
    return runtime.thread_level


def Is_thread_main() -> bool:
    """Say whether this thread has initialized MPI."""
    return threading.get_ident() == runtime.main_thread


def Get_version() -> tuple[int, int]:
    """Return the version of the standard."""
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    """Return the name and version of the library."""
    return f"allhands {importlib.metadata.version('allhands')}"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return the name and version of the library."""
    numbers = [int(one) for one in importlib.metadata.version("allhands").split(".")[:3]]
    major, minor, micro = (*numbers, 0, 0, 0)[:3]
    return "allhands", (major, minor, micro)


def Get_abi_version() -> tuple[int, int]:
    """Return that there is no binary interface."""
    return -1, -1


def Get_abi_info() -> Info:
    """Return an info without items: there is no binary interface."""
    return Info.Create()


def Get_abi_fortran_info() -> Info:
    """Return an info without items: there is no binary interface."""
    return Info.Create()


def Get_processor_name() -> str:
    """Return the name of the host."""
    return platform.node()[: MAX_PROCESSOR_NAME - 1]


def Get_hw_resource_info() -> Info:
    """Return what is known of the hardware: nothing."""
    return Info.Create()


def Wtime() -> float:
    """Return seconds of a clock that never goes back."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of that clock, in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Pcontrol(level: int) -> None:
    """Do nothing: profilers would replace it."""


def Open_port(info: Info = INFO_NULL) -> NoReturn:
    """Refuse: worlds cannot be connected."""
    raise NotImplementedError(_PORTS)


def Close_port(port_name: str) -> NoReturn:
    """Refuse: worlds cannot be connected."""
    raise NotImplementedError(_PORTS)


def Publish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> NoReturn:
    """Refuse: worlds cannot be connected."""
    raise NotImplementedError(_PORTS)


def Unpublish_name(service_name: str, port_name: str, info: Info = INFO_NULL) -> NoReturn:
    """Refuse: worlds cannot be connected."""
    raise NotImplementedError(_PORTS)


def Lookup_name(service_name: str, info: Info = INFO_NULL) -> NoReturn:
    """Refuse: worlds cannot be connected."""
    raise NotImplementedError(_PORTS)


_PORTS = (
    "two worlds cannot be connected by a port: start all processes in one (`allhands run -n N`), "
    "and exchange names by the job's keys (allhands.connect().kv)"
)
