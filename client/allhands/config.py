"""Configuration of a process in a world, from arguments and environment.

Opens nothing but the token in ALLHANDS_TLS_DIR; the environment is a mapping. Places to meet:
    Daemon      a coordinator that runs already
    Hosted      rank 0 embeds one at a known address
    Gathering   rank 0 embeds one on loopback and leaves a note that the others on its host find
    Alone       a world of one
"""

import hashlib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias, Unpack
from urllib.parse import urlsplit

from allhands.options import WORLD_DEFAULTS, WorldOptions, get_group_policy
from allhands.runtime import slurm
from allhands.suggestions import describe_foreign_backend
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.tls_files import apply_tls_directory

DEFAULT_JOB = "default"
RECORDER_SIZE = 2048
MAX_RECORDER_SIZE = 1 << 20

LinkKind = Literal["socket", "grpc"]
"""socket: raw TCP, and gRPC to peers that cannot be reached so; grpc: nothing else."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Ways of a world's data from rank to rank."""

    links: LinkKind = "socket"
    """Links between ranks that do not share memory."""
    shares_memory: bool = True
    """Whether ranks of one host use shared memory where they can."""
    has_links: bool = True
    """Whether a group that cannot share memory uses links; else it is an error."""

    @property
    def listening_ports(self) -> int:
        """Number of ports on which a rank listens."""
        return 1 if self.links == "grpc" else 2


BACKENDS: Mapping[str, Backend] = {
    "auto": Backend(),
    "shm": Backend(has_links=False),
    "socket": Backend(shares_memory=False),
    "grpc": Backend("grpc", shares_memory=False),
    "threads": Backend(),
    "fake": Backend(),
}
"""By name. threads: the ranks are threads of one process; fake: there is no other rank."""


ON_FAILURE = ("raise", "shrink", "wait")
"""What a group does that loses ranks. raise: its calls fail; shrink: it goes on with the others;
wait: it goes on once others have come in their places."""


ResolvedLimits = tuple[int, int, int]
"""slot_max, chunk and attach_min."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of shared memory in bytes; None: the measured default for the group's size.

    Equal on all ranks of a group, or the group does without shared memory.
    """

    slot_max: int | None = None
    """Of a rank's contribution: up to here it travels in a slot, in one round."""
    chunk: int | None = None
    """Of what a rank has in the staging buffers at a time."""
    attach_min: int | None = None
    """From here on data that is only moved is read out of its owner's memory; -1: never."""

    def __post_init__(self) -> None:
        slot_max, chunk, attach_min = self.resolve((0, 1 << 12, -1))
        if slot_max < 0 or chunk < 1 << 12 or attach_min < -1:
            raise ValueError(
                f"no sensible limits of shared memory: {self}; slots take 0 bytes or more, chunks "
                f"{1 << 12} or more, and -1 stands for no cross-memory attach"
            )

    def resolve(self, measured: ResolvedLimits) -> ResolvedLimits:
        """Return the limits of a group: the set values, else the measured ones."""
        own = (self.slot_max, self.chunk, self.attach_min)
        slot_max, chunk, attach_min = (
            theirs if mine is None else mine for mine, theirs in zip(own, measured, strict=True)
        )
        return slot_max, chunk, attach_min


def hash_limits(limits: ResolvedLimits) -> int:
    """Return a 64-bit hash of the limits, equal in all processes."""
    text = "/".join(map(str, limits))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class Daemon:
    url: str
    """`ah://host:port` or `ah://host:port/job`."""
    source: str = field(default="", compare=False)
    """Name of the variable that holds the URL, for errors; empty: it was given as an argument."""


@dataclass(frozen=True, slots=True)
class HostedByRank0:
    host: str
    port: int
    """0: any free one, which `announce` tells."""
    on_listening: Callable[[str, str], None] | None = field(default=None, compare=False)
    """Called in rank 0 with `ah://host:port` once it listens there, or with "" and why not."""
    source: str = field(default="", compare=False)
    """What names host and port, in words, for errors."""
    spans_hosts: bool = field(default=False, compare=False)
    """Whether ranks are known to be on other hosts, whatever the name of this one means here."""


@dataclass(frozen=True, slots=True)
class FileRendezvous:
    notice_path: str
    """File name in the user's runtime directory, or an absolute path."""


@dataclass(frozen=True, slots=True)
class SingleProcess:
    pass


RendezvousMethod: TypeAlias = Daemon | HostedByRank0 | FileRendezvous | SingleProcess


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Configuration of one process in a world; `WorldOptions` describes the options among it."""

    rendezvous: RendezvousMethod
    job: str
    rank: int
    """-1: the coordinator assigns one."""
    world_size: int
    """0: whatever the others bring."""
    timeout: float
    """Seconds: for joining, and the default of every call."""
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_name: str | None = None
    """The name in the coordinator's certificate; None: the host that is dialled."""
    tls_cert: str | None = None
    """Path of this rank's certificate chain, and of a coordinator's that it hosts; PEM."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """Path of the authorities whose certificates the coordinator of rank 0 demands; None: none."""
    insecure: bool = False
    """Whether a coordinator beyond loopback may do without TLS, hosted by rank 0 or not."""
    data_dir: str | None = None  # for the log of the coordinator that rank 0 hosts
    advertise: str = ""
    """Name or address of this host that peers dial; empty: it is found."""
    interface: str = ""
    """Network interface on whose address this rank listens for peers; empty: it is found."""
    ports: range | None = None
    """On which this rank listens for peers; None: any that are free."""
    label: str = ""
    heartbeat_window: float = 0.0
    """Seconds; 0: the coordinator's default."""
    backend: str = WORLD_DEFAULTS["backend"]
    """Name of one of BACKENDS."""
    deterministic: bool = WORLD_DEFAULTS["deterministic"]
    on_failure: str = WORLD_DEFAULTS["on_failure"]
    """One of ON_FAILURE."""
    retryable: bool = WORLD_DEFAULTS["retryable"]
    min_size: int = WORLD_DEFAULTS["min_size"]
    max_size: int = WORLD_DEFAULTS["max_size"]
    abort_on_exception: bool = WORLD_DEFAULTS["abort_on_exception"]
    verify: bool = WORLD_DEFAULTS["verify"]
    allow_pickle: bool = WORLD_DEFAULTS["allow_pickle"]
    limits: Limits = field(default_factory=Limits)
    """Of shared memory."""
    traces_calls: bool = False
    """Whether calls have spans of OpenTelemetry."""
    recorder_size: int = RECORDER_SIZE
    """Operations of each group that the flight recorder remembers; 0: it is off."""
    dump_on_failure: str = ""
    """Directory to which the recorder is written when something fails; empty: it is not."""

    @property
    def is_elastic(self) -> bool:
        """Whether the running world admits newcomers."""
        return self.on_failure != "raise" or self.max_size > 0

    def __post_init__(self) -> None:
        if self.world_size < 0:
            raise ValueError(f"world_size must be positive, not {self.world_size}")
        if self.rank < -1:
            raise ValueError(f"rank must be from 0 up, or -1 to be given one, not {self.rank}")
        if self.world_size and self.rank >= self.world_size:
            raise ValueError(
                f"rank {self.rank} is not in a world of {self.world_size}: "
                f"ranks go from 0 to {self.world_size - 1}"
            )
        if self.backend not in BACKENDS:
            known = ", ".join(map(repr, BACKENDS))
            raise ValueError(
                f"backend must be one of {known}, not {self.backend!r}"
                f"{describe_foreign_backend(self.backend, ())}"
            )
        if self.on_failure not in ON_FAILURE:
            known = ", ".join(map(repr, ON_FAILURE))
            raise ValueError(f"on_failure must be one of {known}, not {self.on_failure!r}")
        if self.min_size < 1:
            raise ValueError(f"min_size must be positive, not {self.min_size}")
        if self.max_size and self.max_size < max(self.min_size, self.world_size):
            raise ValueError(
                f"max_size must be at least min_size ({self.min_size}) and world_size "
                f"({self.world_size}), not {self.max_size}"
            )
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds, not {self.timeout}")
        if self.traces_calls and find_spec("opentelemetry") is None:
            raise ValueError(
                "ALLHANDS_OTEL=1 needs the API of OpenTelemetry, which is not installed here: "
                "pip install 'allhands[otel]'"
            )
        if not 0 <= self.recorder_size <= MAX_RECORDER_SIZE:
            raise ValueError(
                f"ALLHANDS_RECORDER_SIZE must be from 0 to {MAX_RECORDER_SIZE}, "
                f"not {self.recorder_size}"
            )


# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?"
_RANK_SOURCES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", "WORLD_SIZE"),
)


def resolve_config(
    environ: Mapping[str, str],
    *,
    init_method: str | None = None,
    tls_name: str | None = None,
    tls_pair: tuple[str, str] | None = None,
    parent: str = "",
    attempt: int = 0,
    rendezvous: RendezvousMethod | None = None,
    **options: Unpack[WorldOptions],
) -> WorldConfig:
    """Resolve options, then environment, into a `WorldConfig`.

    `rendezvous` is where to meet, if that is known already; then `init_method` counts for nothing.
    `tls_pair` is the certificate to show there, with its key.
    `parent` names the process that started this one, so that the ranks of one launch find each
    other; `attempt` counts the worlds that this process has joined.

    Raises:
        ValueError: something is malformed, missing or contradictory; the text says what to give.
    """
    environ = apply_tls_directory(environ)
    _check_tracebacks(environ)
    settings: WorldOptions = {**WORLD_DEFAULTS, **options}
    launcher, rank, world_size = _resolve_rank(environ, settings)
    timeout, backend = settings["timeout"], _resolve_backend(environ, settings)
    if backend == "fake":
        rendezvous = _meet_nobody(rank, world_size)
    elif rendezvous is None:
        known = (launcher, rank, world_size, parent, attempt)
        rendezvous = _resolve_rendezvous(environ, init_method, *known)
        if isinstance(rendezvous, SingleProcess):
            rank, world_size = 0, 1
    _check_rank_is_known(rendezvous, rank, world_size)
    cert, key = tls_pair or map(environ.get, ("ALLHANDS_TLS_CERT", "ALLHANDS_TLS_KEY"))
    return WorldConfig(
        rendezvous=rendezvous,
        job=_resolve_job(environ, settings["job"], rendezvous, attempt),
        rank=rank,
        world_size=max(world_size, 0),
        timeout=timeout.total_seconds() if isinstance(timeout, timedelta) else timeout,
        token=settings["token"] or environ.get("ALLHANDS_TOKEN") or None,
        tls_ca=settings["tls"] or environ.get("ALLHANDS_TLS_CA") or None,
        tls_name=tls_name or environ.get("ALLHANDS_TLS_NAME") or None,
        tls_cert=cert or None,
        tls_key=key or None,
        tls_client_ca=environ.get("ALLHANDS_TLS_CLIENT_CA") or None,
        data_dir=environ.get("ALLHANDS_DATA_DIR") or None,
        advertise=read_host(environ.get("ALLHANDS_ADVERTISE", ""), "ALLHANDS_ADVERTISE"),
        interface=environ.get("ALLHANDS_INTERFACE", ""),
        ports=read_port_range(environ.get("ALLHANDS_PORT_RANGE", ""), "ALLHANDS_PORT_RANGE"),
        insecure=settings["insecure"] or environ.get("ALLHANDS_INSECURE", "") == "1",
        label=settings["label"] or "",
        heartbeat_window=settings["heartbeat_window"] or 0.0,
        backend=backend,
        limits=_read_limits(environ),
        traces_calls=environ.get("ALLHANDS_OTEL", "") == "1",
        recorder_size=_read_number(environ, "ALLHANDS_RECORDER_SIZE", RECORDER_SIZE),
        dump_on_failure=environ.get("ALLHANDS_DUMP_ON_FAILURE", ""),
        **get_group_policy(settings),
    )


def _meet_nobody(rank: int, world_size: int) -> RendezvousMethod:
    """Return the rendezvous of a fake world."""
    if rank == -1 or world_size == -1:
        raise ValueError("backend='fake' wants rank and world_size: any rank of any world")
    return SingleProcess()


_TRACEBACKS = "ALLHANDS_TRACEBACKS"


def _check_tracebacks(environ: Mapping[str, str]) -> None:
    if (value := environ.get(_TRACEBACKS, "")) not in ("", "short", "full"):
        raise ValueError(f"{_TRACEBACKS} must be 'short' or 'full', not {value!r}")


def keeps_full_tracebacks(environ: Mapping[str, str]) -> bool:
    """Return whether errors keep the frames of this package in their tracebacks."""
    return environ.get(_TRACEBACKS) == "full"


def _resolve_backend(environ: Mapping[str, str], options: WorldOptions) -> str:
    if options["backend"] != "auto":
        return options["backend"]
    return environ.get("ALLHANDS_BACKEND") or "auto"


def _resolve_rank(environ: Mapping[str, str], options: WorldOptions) -> tuple[str, int, int]:
    """Return the launcher's variable for ranks, the rank and the size; -1: not known."""
    rank, world_size = options["rank"], options["world_size"]
    launcher, size_name = next(
        (pair for pair in _RANK_SOURCES if pair[0] in environ), ("", "WORLD_SIZE")
    )
    if rank == -1 and launcher:
        rank = _read_number(environ, launcher)
    if world_size == -1 and size_name in environ:
        world_size = _read_number(environ, size_name)
    if world_size == 0 or world_size < -1:
        raise ValueError(f"world_size must be positive, not {world_size}")
    return launcher, rank, world_size


def _check_rank_is_known(rendezvous: RendezvousMethod, rank: int, world_size: int) -> None:
    if isinstance(rendezvous, HostedByRank0 | FileRendezvous) and (rank == -1 or world_size == -1):
        unsaid = [("RANK", rank), ("WORLD_SIZE", world_size)]
        missing = " and ".join(name for name, value in unsaid if value == -1)
        raise ValueError(
            "rank and world_size are needed where rank 0 hosts the coordinator: pass them, or set "
            f"{missing}; a running coordinator (ah://host:port/job) can assign ranks"
        )


def _resolve_job(
    environ: Mapping[str, str], job: str | None, rendezvous: RendezvousMethod, attempt: int
) -> str:
    named = urlsplit(rendezvous.url).path.strip("/") if isinstance(rendezvous, Daemon) else ""
    name = job or named or environ.get("ALLHANDS_JOB") or DEFAULT_JOB
    if isinstance(rendezvous, HostedByRank0) and attempt:
        # At that address rank 0 may still host the world before, which nobody may join any more.
        name = f"{name}.{attempt}"
    return name


def _resolve_rendezvous(
    environ: Mapping[str, str],
    init_method: str | None,
    launcher: str,
    rank: int,
    world_size: int,
    parent: str,
    attempt: int,
) -> RendezvousMethod:
    method = init_method or "env://"
    if method.startswith("ah://"):
        return Daemon(method)
    if method.startswith("tcp://"):
        return _parse_tcp_url(method)
    if method.startswith("file://"):
        parts = urlsplit(method)
        path = Path(parts.path)
        if parts.netloc or not path.is_absolute() or not path.name:
            raise ValueError(f"file:// wants an absolute path, as file:///path, not {method!r}")
        return FileRendezvous(str(path.with_name(f"{path.name}.{attempt}")))
    if method != "env://":
        raise ValueError(
            f"init_method {method!r} is not known; give ah://host:port/job, env://, "
            f"tcp://host:port or file:///path{describe_foreign_backend(method, BACKENDS)}"
        )
    if url := environ.get("ALLHANDS_URL"):
        return Daemon(url, "ALLHANDS_URL")
    if "TORCHELASTIC_RUN_ID" in environ:
        _check_one_host(environ, "LOCAL_WORLD_SIZE", world_size, "torchrun")
        # The agent's own store listens on MASTER_PORT, so rank 0 cannot.
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
        return _make_file_rendezvous(environ, names, parent, attempt)
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        port = _read_number(environ, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise ValueError(f"MASTER_PORT must be from 1 to 65535, not {port}")
        local = environ.get("LOCAL_WORLD_SIZE", "")
        spans_hosts = local.isdecimal() and int(local) < world_size
        named = "MASTER_ADDR and MASTER_PORT"
        return HostedByRank0(environ["MASTER_ADDR"], port, source=named, spans_hosts=spans_hosts)
    match launcher:
        case "OMPI_COMM_WORLD_RANK":
            _check_one_host(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", world_size, "mpirun")
            return _make_file_rendezvous(environ, ("PMIX_NAMESPACE",), parent, attempt)
        case "PMI_RANK":
            _check_one_host(environ, "MPI_LOCALNRANKS", world_size, "mpirun")
            return _make_file_rendezvous(environ, (), parent, attempt)
        case "SLURM_PROCID":
            return _resolve_slurm(environ, world_size, attempt)
    # A rank without a world size is not alone either: an indexed job tells each pod its index only.
    if rank > 0 or world_size > 1 or (rank == 0 and world_size == -1):
        who = f"rank {rank}" if rank >= 0 else "this rank"
        of = f" of {world_size}" if world_size > 0 else ""
        raise ValueError(
            f"{who}{of} does not know where to meet the others: set ALLHANDS_URL "
            "(a running coordinator) or MASTER_ADDR and MASTER_PORT, or pass init_method"
        )
    return SingleProcess()


def _resolve_slurm(environ: Mapping[str, str], world_size: int, attempt: int) -> RendezvousMethod:
    """Return the rendezvous of a SLURM step's ranks: on its first node, if it has several."""
    nodes = slurm.count_nodes(environ) if world_size > 1 else 1
    variable, first = slurm.find_first_node(environ)
    if nodes > 1 and first:
        step = f"slurm/{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
        said = f"the first node of {variable}, and a port from SLURM_JOB_ID"
        return HostedByRank0(first, derive_port(step), source=said, spans_hosts=True)
    if nodes > 1:
        raise ValueError(
            f"srun has spread {world_size} ranks over {nodes} nodes, and SLURM_JOB_NODELIST does "
            "not name them: set MASTER_ADDR to the host of rank 0 and MASTER_PORT, or start a "
            "coordinator with `allhands serve` and set ALLHANDS_URL=ah://host:port/job"
        )
    if nodes == 0:
        _check_one_host(environ, "SLURM_NTASKS_PER_NODE", world_size, "srun")
    return _make_file_rendezvous(environ, ("SLURM_JOB_ID", "SLURM_STEP_ID"), "", attempt)


def read_port_range(text: str, name: str) -> range | None:
    """Read LOW-HIGH; None where the text is empty.

    Raises:
        ValueError: it is no range of ports; `name` is the setting that holds it.
    """
    if not text:
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal()):
        raise ValueError(f"{name} must be LOW-HIGH, as in 30000-30999, not {text!r}")
    if not 0 < int(low) <= int(high) < 1 << 16:
        raise ValueError(f"{name} must be from 1-65535, the lower port first, not {text!r}")
    return range(int(low), int(high) + 1)


def read_host(text: str, name: str) -> str:
    """Read the name or address of a host, IPv6 without brackets; it may be empty.

    Raises:
        ValueError: it has a port or a scheme, or means all addresses; `name` is the setting.
    """
    try:
        is_all = ipaddress.ip_address(text).is_unspecified
    except ValueError:
        if text and not re.fullmatch(_HOST, text, re.ASCII):
            raise ValueError(
                f"{name} must be the name or address of a host alone, not {text!r}"
            ) from None
        return text
    if is_all:
        raise ValueError(f"{name} must be one address that peers can dial, not {text!r}")
    return text


def derive_port(name: str) -> int:
    """Derive a port from a name, the same on all nodes.

    Below 32768, where Linux begins to hand out ports by itself.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return 20000 + int.from_bytes(digest[:4], "big") % 10000


def _parse_tcp_url(method: str) -> HostedByRank0:
    parts = urlsplit(method)
    if not parts.hostname or not parts.port:
        raise ValueError(f"tcp:// wants a host and a port, as tcp://host:29500, not {method!r}")
    return HostedByRank0(parts.hostname, parts.port, source=f"init_method {method!r}")


def _make_file_rendezvous(
    environ: Mapping[str, str], names: tuple[str, ...], parent: str, attempt: int
) -> FileRendezvous:
    text = "/".join([*(environ.get(name, "") for name in names), parent, str(attempt)])
    return FileRendezvous(f"gathering-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json")


def _check_one_host(environ: Mapping[str, str], name: str, world_size: int, launcher: str) -> None:
    local = environ.get(name, "")
    if local.isdigit() and int(local) < world_size:
        raise ValueError(
            f"{launcher} has spread {world_size} ranks over several hosts, {local} on this one: "
            "start a coordinator with `allhands serve` and set ALLHANDS_URL=ah://host:port/job"
        )


def _read_limits(environ: Mapping[str, str]) -> Limits:
    given = {
        field.name: _read_number(environ, name)
        for field in fields(Limits)
        if (name := f"ALLHANDS_ARENA_{field.name.upper()}") in environ
    }
    return Limits(**given)


def _read_number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    if name not in environ:
        return default
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {environ[name]!r}") from None
