"""Environment of a rank: place in the world, coordinator, network settings.

Pure: the environment to build on comes as a mapping.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from allhands.runtime.exit_notice import LAUNCH_VARIABLE
from allhands_proto.authority import format_authority
from allhands_proto.quick_dataclass import dataclass

OWN_VARIABLES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("ALLHANDS_URL", "ALLHANDS_JOB", "ALLHANDS_TOKEN", "ALLHANDS_INSECURE"),
        *("ALLHANDS_TLS_CA", "ALLHANDS_TLS_NAME", "ALLHANDS_TLS_CERT", "ALLHANDS_TLS_KEY"),
        *("ALLHANDS_TLS_DIR", "ALLHANDS_RESTART_COUNT", LAUNCH_VARIABLE),
    }
)
"""Variables that are the launcher's to set: what its own environment says of them counts not."""


_DEFAULTS = {
    # As many threads as cores in each of many ranks would fight for the cores.
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of this host among those of all hosts."""

    local_size: int
    nodes: int = 1
    node: int = 0
    counts: tuple[int, ...] = ()
    """Of the ranks of each node; empty: every node has equally many."""

    def __post_init__(self) -> None:
        if self.local_size < 1:
            raise ValueError(f"at least one rank must run on this host, not {self.local_size}")
        if self.nodes < 1:
            raise ValueError(f"at least one node must take part, not {self.nodes}")
        if not 0 <= self.node < self.nodes:
            raise ValueError(
                f"node rank {self.node} is not among {self.nodes} nodes: "
                f"node ranks go from 0 to {self.nodes - 1}"
            )

    @classmethod
    def of_counts(cls, counts: Sequence[int], node: int) -> "Placement":
        """Return the placement of a node where each node has its own number of ranks."""
        return cls(counts[node], len(counts), node, tuple(counts))

    @property
    def world_size(self) -> int:
        return sum(self.counts) or self.local_size * self.nodes

    @property
    def ranks(self) -> range:
        """The ranks of this host, in the world."""
        first = sum(self.counts[: self.node]) if self.counts else self.node * self.local_size
        return range(first, first + self.local_size)


@dataclass(frozen=True, slots=True)
class JobEndpoint:
    """Coordinator and job of the ranks of a launch."""

    host: str
    port: int
    job: str
    token: str | None = field(repr=False)
    tls_ca: str | None = None
    """Path of the authorities that vouch for the coordinator; None: it does not speak TLS."""
    insecure: bool = False
    """Whether ranks may send the token in plaintext beyond loopback."""
    tls_name: str | None = None
    """The name in the coordinator's certificate; None: the host."""
    tls_cert: str | None = None
    """Path of the certificate that the ranks show to the coordinator; None: none."""
    tls_key: str | None = None
    others: tuple[str, ...] = ()
    """`host:port` of the other daemons with the same log."""

    @property
    def url(self) -> str:
        own = format_authority(self.host, self.port)
        return f"ah://{','.join((own, *self.others))}/{self.job}"


ReportExit: TypeAlias = Callable[[str, str, int, str, int], Awaitable[object]]
"""Reports the end of a process: job, PID namespace, PID, start in ticks, exit status."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a launch meet."""

    endpoint: JobEndpoint
    report_exit: ReportExit | None = None
    """Reports to a coordinator in this process; None: it is in another one."""


def make_common_environment(base: Mapping[str, str], launch: str) -> dict[str, str]:
    """Return what all ranks of a launch have in common, and is known before there is a coordinator.

    It has all that an interpreter reads at its start.
    """
    kept = {name: value for name, value in base.items() if name not in OWN_VARIABLES}
    return {**_DEFAULTS, **kept, LAUNCH_VARIABLE: launch}


def make_rank_environment(
    base: Mapping[str, str],
    placement: Placement,
    endpoint: JobEndpoint,
    *,
    rank: int,
    launch: str,
    master_address: str,
    master_port: int,
    restart_count: int = 0,
) -> dict[str, str]:
    """Return `base` with torchrun's variables and those of `init_process_group`.

    allhands itself meets at ALLHANDS_URL; MASTER_ADDR and MASTER_PORT are for other libraries
    in the same script.
    """
    rendezvous_variables = {
        "ALLHANDS_URL": endpoint.url,
        "ALLHANDS_JOB": endpoint.job,
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
        LAUNCH_VARIABLE: launch,
        "ALLHANDS_RESTART_COUNT": str(restart_count),
    }
    secrets = {
        "ALLHANDS_TOKEN": endpoint.token,
        "ALLHANDS_TLS_CA": endpoint.tls_ca,
        "ALLHANDS_TLS_NAME": endpoint.tls_name,
        "ALLHANDS_TLS_CERT": endpoint.tls_cert,
        "ALLHANDS_TLS_KEY": endpoint.tls_key,
        "ALLHANDS_TLS_DIR": None,  # its files are among these
    }
    if endpoint.insecure:
        rendezvous_variables["ALLHANDS_INSECURE"] = "1"
    place_variables = {
        "RANK": rank,
        "WORLD_SIZE": placement.world_size,
        "LOCAL_RANK": rank - placement.ranks.start,
        "LOCAL_WORLD_SIZE": placement.local_size,
        "GROUP_RANK": placement.node,
        "GROUP_WORLD_SIZE": placement.nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": placement.world_size,
    }
    return {
        **_DEFAULTS,
        # Those that the launcher found in its own environment may be for another coordinator.
        **{name: value for name, value in base.items() if name not in secrets},
        **{name: value for name, value in secrets.items() if value is not None},
        **rendezvous_variables,
        **{name: str(value) for name, value in place_variables.items()},
    }
