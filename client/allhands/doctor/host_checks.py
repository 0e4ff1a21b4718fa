"""Checks of this host's memory, processors, limits and runtime directory. Pure."""

from collections.abc import Iterator

from allhands.doctor.finding import Finding, fail, ok, skip, warn
from allhands.doctor.machine import Machine

_MIB = 1 << 20
_GIB = 1 << 30
_SMALL_SHM = 64 * _MIB
"""What container engines give unless asked for more."""
_RANK_BYTES = 100 * _MIB
"""Of a Python with NumPy and allhands in a world, without any data."""
_OWN_FILES = 64
_FILES_PER_PEER = 3
"""Of a rank: two links, and a segment of shared memory or a call of gRPC."""
_LEAST_FILES = 1024


def check_host(machine: Machine, ranks: int, world_size: int) -> Iterator[Finding]:
    """Check what ranks of this host need of it; 0 ranks: unknown."""
    yield check_runtime_directory(machine)
    yield check_shared_memory(machine)
    yield check_attach(machine)
    yield check_shm_directory(machine)
    yield check_open_files(machine, world_size)
    yield check_memory(machine, ranks)
    yield check_processors(machine, ranks)
    yield check_threads(machine, ranks)


def check_runtime_directory(machine: Machine) -> Finding:
    """Check that notices can be left and found."""
    wanted = machine.environ.get("XDG_RUNTIME_DIR", "")
    if machine.runtime_problem:
        return fail(
            "runtime dir",
            machine.runtime_problem,
            "set XDG_RUNTIME_DIR to a directory of your own with mode 0700",
        )
    if wanted and not machine.runtime_directory.startswith(wanted):
        return warn(
            "runtime dir",
            f"{machine.runtime_directory}, as XDG_RUNTIME_DIR={wanted} is not there, not yours or "
            "not writable: processes with another value do not find each other",
            "unset XDG_RUNTIME_DIR, or set it to a directory of your own",
        )
    return ok("runtime dir", machine.runtime_directory)


def check_shared_memory(machine: Machine) -> Finding:
    """Check that ranks of this host can map memory of each other."""
    if machine.core_problem:
        return skip("shared memory", "it takes the native core, which is missing")
    if machine.trial.map_problem:
        return fail(
            "shared memory",
            f"a process cannot map memory of another: {machine.trial.map_problem}",
            "run all ranks of a host as one user and in one container, with /proc mounted without "
            "hidepid; until then they talk over links, which is slower",
        )
    return ok("shared memory", "another process maps it (/proc/PID/fd)")


def check_attach(machine: Machine) -> Finding:
    """Check that ranks may read memory of each other where that saves a copy."""
    if not machine.trial.attach_problem:
        return ok("memory attach", "another process reads memory (process_vm_readv)")
    causes, fixes = [], []
    if machine.ptrace_scope:
        causes.append(f"kernel.yama.ptrace_scope is {machine.ptrace_scope}")
        fixes.append("sysctl -w kernel.yama.ptrace_scope=0")
    if machine.has_seccomp:
        causes.append("a seccomp filter is on")
        fixes.append("start the container with --cap-add SYS_PTRACE")
    return warn(
        "memory attach",
        f"{machine.trial.attach_problem}{''.join(f'; {one}' for one in causes)}: large arrays are "
        "copied twice within the host",
        ", or ".join(fixes) or "run all ranks of a host as one user, with CAP_SYS_PTRACE",
    )


def check_shm_directory(machine: Machine) -> Finding:
    """Check /dev/shm, which is for other libraries: the memory of allhands has no files."""
    fix = "start the container with --shm-size 1g or --ipc host, or mount a tmpfs there"
    found = machine.shm
    if found is None or not found.is_writable:
        state = "is not there" if found is None else "cannot be written to"
        return warn("/dev/shm", f"it {state}; torch's DataLoader needs it, allhands does not", fix)
    size = f"{_format_bytes(found.free)} of {_format_bytes(found.nbytes)} free"
    if found.free < _SMALL_SHM or found.nbytes <= _SMALL_SHM:
        return warn(
            "/dev/shm", f"{size}: little for torch's DataLoader; allhands does not use it", fix
        )
    return ok("/dev/shm", f"{size}; allhands does not use it")


def check_open_files(machine: Machine, world_size: int) -> Finding:
    """Check the limit of open files against the links of a rank."""
    soft, hard = machine.open_files.soft, machine.open_files.hard
    needed = max(_OWN_FILES + _FILES_PER_PEER * world_size, _LEAST_FILES)
    if soft is None or soft >= needed:
        return ok("open files", "not limited" if soft is None else f"{soft:,} for each process")
    why = f"{soft:,} for each process; a rank of {world_size} may take {needed:,}"
    detail = why if world_size else f"{soft:,} for each process; large worlds take more"
    fix = f"ulimit -n {needed} (systemd: LimitNOFILE={needed}; containers: --ulimit nofile)"
    if world_size and soft < _OWN_FILES + _FILES_PER_PEER * world_size:
        raised = "" if hard is None or hard >= needed else f", the hard limit of {hard:,} by root"
        return fail("open files", detail, fix + raised)
    return warn("open files", detail, fix)


def check_memory(machine: Machine, ranks: int) -> Finding:
    """Check the memory of this host and of this control group; locked memory is not needed."""
    limit = machine.cgroup.memory
    has = machine.memory if limit is None else min(limit, machine.memory)
    detail = f"{_format_bytes(machine.memory)}"
    if limit is not None and limit < machine.memory:
        detail = f"{_format_bytes(limit)} by the control group, of {detail}"
    locked = machine.locked_bytes.soft
    detail += f"; locked: {'any' if locked is None else _format_bytes(locked)}, none is needed"
    if has < max(ranks, 1) * _RANK_BYTES:
        return warn(
            "memory",
            f"{detail}; a rank takes {_format_bytes(_RANK_BYTES)} before any data",
            "raise the limit of the container or unit (memory.max), or run fewer ranks here",
        )
    return ok("memory", detail)


def check_processors(machine: Machine, ranks: int) -> Finding:
    """Check the processors that this process may use against the ranks."""
    usable, detail = count_processors(machine), f"{machine.usable_cpus} usable"
    if machine.usable_cpus < machine.host_cpus:
        detail += f" of {machine.host_cpus} (affinity)"
    if machine.cgroup.cpus is not None:
        detail += f", time of {machine.cgroup.cpus:g} by the control group"
    if not ranks:
        return ok("processors", f"{detail}")
    detail += f", for {ranks} rank{'s' if ranks > 1 else ''}"
    if usable < ranks:
        return warn(
            "processors",
            f"{detail}: those that wait delay the others",
            f"run {max(int(usable), 1)} here, or give the container or unit more (cpu.max, cpuset)",
        )
    return ok("processors", detail)


def check_threads(machine: Machine, ranks: int) -> Finding:
    """Check the threads of NumPy's and torch's own loops against the processors."""
    text = machine.environ.get("OMP_NUM_THREADS", "")
    if not text:
        return ok("threads", "no OMP_NUM_THREADS: `allhands run` gives each rank 1")
    first = text.split(",")[0]
    if not first.isdecimal() or not int(first):
        return warn(
            "threads", f"OMP_NUM_THREADS={text} is no number of threads", "set it to a number"
        )
    usable = count_processors(machine)
    detail = f"OMP_NUM_THREADS={text}"
    if ranks and int(first) * ranks > max(usable, ranks):
        return warn(
            "threads",
            f"{detail} in each of {ranks} ranks, on {usable:g} processors: they fight for them",
            f"OMP_NUM_THREADS={max(int(usable) // ranks, 1)}",
        )
    return ok("threads", detail)


def count_processors(machine: Machine) -> float:
    """Return the processors' worth of time that this process may take."""
    limit = machine.cgroup.cpus
    return machine.usable_cpus if limit is None else min(machine.usable_cpus, limit)


def _format_bytes(nbytes: int) -> str:
    if nbytes >= _GIB:
        return f"{nbytes / _GIB:.1f} GiB"
    return f"{nbytes / _MIB:.0f} MiB"
