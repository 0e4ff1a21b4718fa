"""Members of a world, as announced by the coordinator."""

from dataclasses import dataclass

from allhands_proto.v1 import coordinator_pb2 as wire


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A rank of the world, as announced by the coordinator."""

    rank: int
    host: str
    pid: int
    address: str
    hosts_coordinator: bool
    data_port: int
    """At the host of `address`, for raw-socket links; 0: it has none."""
    memory: str
    """How processes of its host find its shared memory; empty: it has none."""
    pid_namespace: str = ""
    """Names the processes that can look at this one."""
    start_ticks: str = ""
    """When it began; see `notice.read_start_ticks`."""

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


def read_member(member: wire.Member) -> WorldMember:
    """Convert a member from its protobuf form."""
    return WorldMember(
        member.rank,
        member.host,
        member.pid,
        member.address,
        member.hosts_coordinator,
        member.data_port,
        member.memory,
        member.pid_namespace,
        member.start_ticks,
    )
