"""Reading of this host: the only part of the examination that touches it."""

import contextlib
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from allhands.config import read_port_range
from allhands.doctor.cgroup import read_cgroup_limits
from allhands.doctor.machine import Machine, ResourceLimit, SharedDirectory
from allhands.doctor.memory_trial import run_trial
from allhands.runtime import interfaces, native_core
from allhands.transport.ports import is_free
from allhands_proto import notice

_DISTRIBUTIONS = ("allhands", "numpy", "grpcio", "torch")
_SHM = "/dev/shm"


def read_machine(
    environ: Mapping[str, str], proc: Path = Path("/proc"), sysfs: Path = Path("/sys")
) -> Machine:
    """Read this host; starts two processes for the trial of shared memory."""
    core, core_problem = native_core.find()
    runtime_directory, runtime_problem = _find_runtime_directory()
    return Machine(
        environ=environ,
        hostname=socket.gethostname(),
        name_addresses=_resolve(socket.gethostname()),
        interfaces=interfaces.list_interfaces(),
        outside_address=interfaces.find_outside_address() or "",
        advertise_addresses=_resolve(environ.get("ALLHANDS_ADVERTISE", "")),
        taken_ports=_find_taken_ports(environ),
        runtime_directory=runtime_directory,
        runtime_problem=runtime_problem,
        shm=_read_shared_directory(),
        trial=run_trial(),
        ptrace_scope=_read_number(proc / "sys/kernel/yama/ptrace_scope"),
        has_seccomp=_read_status(proc / "self/status").get("Seccomp", "0") != "0",
        core_problem="" if core is not None else core_problem,
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "",
        open_files=_read_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_read_limit(resource.RLIMIT_MEMLOCK),
        usable_cpus=len(os.sched_getaffinity(0)),
        host_cpus=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cgroup=read_cgroup_limits(_read(proc / "self/cgroup"), sysfs / "fs/cgroup"),
        versions=_find_versions(),
    )


def _find_runtime_directory() -> tuple[str, str]:
    """Return the runtime directory, tried, and the problem with it."""
    try:
        found = notice.directory()
        with tempfile.TemporaryFile(dir=found):
            pass
    except OSError as error:
        return "", str(error)
    return str(found), ""


def _resolve(name: str) -> tuple[str, ...]:
    if not name:
        return ()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(row[4][0]) for row in found))


def _find_taken_ports(environ: Mapping[str, str]) -> tuple[int, ...]:
    try:
        ports = read_port_range(environ.get("ALLHANDS_PORT_RANGE", ""), "ALLHANDS_PORT_RANGE")
    except ValueError:
        return ()  # the check of the setting says so
    return tuple(port for port in ports or () if not is_free("0.0.0.0", port))


def _read_shared_directory() -> SharedDirectory | None:
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None
    nbytes, free = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
    return SharedDirectory(nbytes, free, os.access(_SHM, os.W_OK | os.X_OK))


def _read_limit(which: int) -> ResourceLimit:
    soft, hard = (
        None if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which)
    )
    return ResourceLimit(soft, hard)


def _find_versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _read_status(file: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(file).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _read_number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
