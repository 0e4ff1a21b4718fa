"""A host and a coordinator as an examination has read them: values, without any I/O."""

from collections.abc import Mapping
from dataclasses import field

from allhands.runtime.interfaces import NetworkInterface
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SharedDirectory:
    """/dev/shm."""

    nbytes: int
    free: int
    is_writable: bool


@dataclass(frozen=True, slots=True)
class MemoryTrial:
    """Outcome of sharing memory between two processes, neither the parent of the other."""

    map_problem: str = ""
    """Why one could not map memory of the other; empty: it could."""
    attach_problem: str = ""
    """Why one could not read memory of the other (process_vm_readv); empty: it could."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of the control group of this process and of those around it."""

    cpus: float | None = None
    """Processors' worth of time; None: not limited."""
    memory: int | None = None
    """Bytes; None: not limited."""


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Limit of a process; None: not limited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """This host and this process."""

    environ: Mapping[str, str] = field(repr=False)
    hostname: str
    name_addresses: tuple[str, ...]
    """What the host's own name resolves to here; empty: nothing."""
    interfaces: tuple[NetworkInterface, ...]
    outside_address: str
    """Of this host on its default route; empty: it has none beside loopback."""
    advertise_addresses: tuple[str, ...]
    """What ALLHANDS_ADVERTISE resolves to here; empty: it is not set, or resolves to nothing."""
    taken_ports: tuple[int, ...]
    """Ports of ALLHANDS_PORT_RANGE that have a listener now."""
    runtime_directory: str
    runtime_problem: str
    """Why that directory cannot be used; empty: it can."""
    shm: SharedDirectory | None
    """None: there is none."""
    trial: MemoryTrial
    ptrace_scope: int | None
    """Of the Yama security module; None: it is not there."""
    has_seccomp: bool
    """Whether a filter of system calls is on this process, as in most containers."""
    core_problem: str
    """Why the native core is not loaded; empty: it is."""
    compiler: str
    """Path of a C compiler; empty: there is none."""
    open_files: ResourceLimit
    locked_bytes: ResourceLimit
    usable_cpus: int
    host_cpus: int
    memory: int
    """Bytes."""
    cgroup: CgroupLimits
    versions: Mapping[str, str]
    """By distribution, those that are installed, and of Python."""


@dataclass(frozen=True, slots=True)
class CoordinatorReading:
    """What a coordinator has said."""

    url: str
    problem: str = ""
    """Why it cannot be reached, or refuses; empty: it has answered."""
    has_tls: bool = False
    is_loopback: bool = False
    """Whether it is dialled on a loopback address."""
    token: str = ""
    """Whose it accepted: `cluster` or `job`."""
    round_trip: float = 0.0
    """Seconds, for a call on an open connection."""
    clock_offset: float | None = None
    """What to add to this host's wall clock to get the coordinator's, in seconds; None: unknown."""
    versions: str = ""
    """Of the protocol, in words."""
    own_versions: str = ""
    is_reached_by_others: bool = False
    """Whether it listens where other hosts reach it."""
    role: str = ""
    """Of several daemons with one log."""
    leader: str = ""
    own_address: str = ""
    """Of this host on the way to it."""


@dataclass(frozen=True, slots=True)
class MemberReach:
    """Whether this host reaches the address of a rank."""

    rank: int
    host: str
    address: str
    problem: str = ""
    """Why it does not; empty: it does."""
    seconds: float = 0.0
    """For the connection."""
