"""Lists of members and of ranks in few bytes: each of n members gets, or sends, all n of them."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.machine import limits
from allhands_server.machine.effects import WorldFormed
from allhands_server.machine.refusals import Refused, Status

_LISTS_KEPT = 16


def pack_world(formed: WorldFormed) -> wire.WorldFormed:
    """Encode a world with the members compressed, and without what no peer needs."""
    members = [
        wire.Member(
            rank=one.rank,
            host=one.host,
            pid=one.pid,
            address=one.address,
            hosts_coordinator=one.hosts_coordinator,
            memory=one.memory,
            data_port=one.data_port,
            pid_namespace=one.pid_namespace,
            start_ticks=one.start_ticks,
        )
        for one in formed.members
    ]
    packed = zlib.compress(wire.WorldFormed(members=members).SerializeToString())
    return wire.WorldFormed(
        epoch=formed.epoch,
        world_size=formed.world_size,
        group=formed.group,
        packed_members=packed,
    )


def decode_ranks(message: wire.OpenGroup) -> tuple[int, ...]:
    """Return the ranks of a group that is opened; equal ones are the same object.

    Raises:
        Refused: the spans are none, or too many ranks.
    """
    if not message.spans:
        return tuple(message.ranks)
    return _list_ranks(tuple(message.spans))


@lru_cache(_LISTS_KEPT)
def _list_ranks(spans: Sequence[int]) -> tuple[int, ...]:
    firsts, counts = spans[::2], spans[1::2]
    if len(firsts) != len(counts) or min(spans) < 0:
        raise Refused(Status.INVALID_ARGUMENT, "the spans of a group's ranks are no spans")
    if sum(counts) > limits.LARGEST_WORLD:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"a group of {sum(counts):,} ranks: {limits.LARGEST_WORLD:,} is the most",
        )
    return tuple(
        rank
        for first, count in zip(firsts, counts, strict=True)
        for rank in range(first, first + count)
    )
