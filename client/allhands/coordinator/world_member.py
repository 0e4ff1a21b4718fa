"""Members of a world, as announced by the coordinator."""

import zlib
from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from allhands.errors import CoordinatorUnavailable
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

_LARGEST_MEMBER = 4_096
"""Bytes of a member in a list, at most: names have up to 256 characters."""


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


def read_members(formed: wire.WorldFormed) -> tuple[WorldMember, ...]:
    """Return the members of a world in their order, packed ones too.

    Raises:
        CoordinatorUnavailable: they cannot be unpacked, or have more bytes than members can.
    """
    if not formed.packed_members:
        return tuple(map(read_member, formed.members))
    largest = _LARGEST_MEMBER * max(1, formed.world_size)
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(formed.packed_members, largest)
        if not unpacker.eof:
            raise CoordinatorUnavailable(
                f"the coordinator's list of {formed.world_size:,} members has more than "
                f"{largest:,} bytes, or is cut off"
            )
        return tuple(map(read_member, wire.WorldFormed.FromString(data).members))
    except (zlib.error, DecodeError) as error:
        text = f"the coordinator's list of members cannot be unpacked: {error}"
        raise CoordinatorUnavailable(text) from error


def list_departures(told: wire.MembersLeft) -> Iterator[wire.MemberLeft]:
    """Iterate over the members that have left, one by one."""
    for alike in told.left:
        for rank in alike.ranks:
            yield wire.MemberLeft(
                rank=rank,
                progress=alike.progress,
                error=alike.error,
                epoch=told.epoch,
                traceback=alike.traceback,
                aborts=alike.aborts,
            )


def pack_ranks(ranks: Sequence[int]) -> list[int]:
    """Return first rank and number of each span of ranks that count up; empty: no use."""
    spans: list[int] = []
    for rank in ranks:
        if spans and rank == spans[-2] + spans[-1]:
            spans[-1] += 1
        else:
            spans += (rank, 1)
    return spans if len(spans) < len(ranks) else []
