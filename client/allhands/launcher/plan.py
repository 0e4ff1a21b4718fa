"""Immutable plan of a launch."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from allhands.config import derive_port
from allhands.launcher.environment import (
    JobEndpoint,
    Placement,
    ReportExit,
    make_common_environment,
    make_rank_environment,
)
from allhands.launcher.supervision import GRACE_SECONDS
from allhands.runtime.exit_notice import choose_directory
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands.launcher.event_sinks import EventOutlets
    from allhands.launcher.stall import StallPolicy  # which few launches need

StartWay: TypeAlias = Literal["auto", "fork", "exec"]
"""Whether ranks are forked from one interpreter, or each starts its own; auto: what is possible."""
START_WAYS: Final[tuple[StartWay, ...]] = get_args(StartWay)


@dataclass(frozen=True, slots=True)
class LaunchHost:
    """A host of a launch that spans several."""

    name: str
    command: tuple[str, ...]
    """What starts the agent there; it talks over its standard streams."""
    address: str = ""
    """Where other hosts reach it, if known here."""
    python: str = ""
    """Path of the Python there that takes the place of this one; empty: the same."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Program, placement and options of a launch."""

    program: tuple[str, ...]
    """Path of an executable and its arguments; of Python: a script or `-m MODULE`, then theirs."""
    placement: Placement
    endpoint: JobEndpoint
    environment: Mapping[str, str]
    """What the ranks' own variables are added to."""
    tees: Mapping[int, int]
    """For each rank the descriptor that gets a copy of its output; empty: none does."""
    master: tuple[str, int]
    """MASTER_ADDR and MASTER_PORT, where other libraries let rank 0 listen."""
    min_size: int = 0
    """Ranks may fail while so many run or have ended well; 0: none may."""
    grace: float = GRACE_SECONDS
    """How long ranks may take to end after SIGTERM, in seconds."""
    start: StartWay = "auto"
    is_python: bool = True
    """Whether `program` is a Python interpreter, which may be forked."""
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """For each rank the CPUs that it is bound to; empty: none is."""
    outlets: "EventOutlets | None" = None
    """Receivers of the job's events, of which the first node's launcher tells them."""
    stall: "StallPolicy | None" = None
    """What is done about calls that wait for long; None: nothing is."""
    max_restarts: int = 0
    """How often the ranks may be started anew after a failure of one, or a stall."""
    restart_count: int = 0
    """How often they have been."""
    hosts: tuple[LaunchHost, ...] = ()
    """Of nodes, in the order of `placement`; empty: all ranks are on this host."""
    shared_environment: Mapping[str, str] = field(default_factory=dict)
    """What is added to the environments of other hosts."""
    binds_cpus: bool = False
    """Whether each host deals its own CPUs to its ranks."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents of files in the directory of the launch, by name."""
    report_exit: ReportExit | None = None
    """Reports to a coordinator in this process; None: it is in another one."""
    directory: str = field(default_factory=choose_directory)
    """Of this launch and no other: what its processes say to the launcher goes through it."""

    def make_environment(self, rank: int) -> dict[str, str]:
        address, port = self.master
        return make_rank_environment(
            self.environment,
            self.placement,
            self.endpoint,
            rank=rank,
            launch=self.directory,
            master_address=address,
            master_port=port,
            restart_count=self.restart_count,
        )

    def make_common_environment(self) -> dict[str, str]:
        return make_common_environment(self.environment, self.directory)

    def renew(self) -> "LaunchPlan":
        """Return the plan of the next attempt, with names and a port that no rank has had."""
        count = self.restart_count + 1
        return replace(
            self,
            restart_count=count,
            directory=choose_directory(),
            master=choose_master(self.placement, self.endpoint, self.hosts, count),
        )


def choose_master(
    placement: Placement,
    endpoint: JobEndpoint,
    hosts: Sequence[LaunchHost] = (),
    restart_count: int = 0,
) -> tuple[str, int]:
    """Choose MASTER_ADDR and MASTER_PORT: a free port here, or one that all nodes derive alike."""
    if hosts:
        address = hosts[0].address or endpoint.host
        return address, derive_port(f"{endpoint.job}/{restart_count}")
    if placement.nodes > 1:
        return endpoint.host, derive_port(endpoint.job)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address, port = probe.getsockname()
    return address, port
