"""Events of sessions as bytes, shared by members, and conditions that supersede each other."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from allhands.coordinator.world_member import list_departures, pack_ranks, read_members
from allhands.errors import CoordinatorUnavailable
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdicts import AbsentRank
from allhands_server.machine.effects import (
    Condition,
    Conditions,
    EndSession,
    MemberLeft,
    MemberLost,
    MembersLeft,
    Newcomers,
    Notification,
    Probe,
    WorldFormed,
)
from allhands_server.machine.refusals import Refused
from allhands_server.machine.values import MemberView, Presence, Progress
from allhands_server.machine.world.absent_ranks import make_world_verdict
from allhands_server.machine.world.conditions import LARGEST_BATCH
from allhands_server.rpc.session_events import EventEncoder, EventForm
from allhands_server.rpc.world_codec import decode_ranks
from allhands_server.session_stream import ConditionMerger, SessionStream

NEWEST = EventForm(takes_batches=True, takes_conditions=True)


def make_condition(rank: int, seconds: float = 3.0, stack: str = "") -> Condition:
    absent = AbsentRank(rank, "stalled", f"rank {rank} is stalled", "h", 7, stack=stack)
    return Condition(rank, absent, seconds)


def make_conditions(*ranks: int) -> Conditions:
    return Conditions(tuple(map(make_condition, ranks)), 0)


def read_all(stream: SessionStream) -> list[Notification]:
    async def read() -> list[Notification]:
        stream.put(EndSession(stream.number))
        return [one async for batch in stream.iterate_batches() for one in batch]

    return asyncio.run(read())


def test_events_of_a_batch_are_one_message_in_their_order() -> None:
    lost = MemberLost(3, "h", 7, "its session broke", 2, make_world_verdict([], "lost"))
    batch = [Newcomers(1), lost, Probe(5, True), Newcomers(2)]
    encoder = EventEncoder()
    [data] = encoder.encode_batch(batch, NEWEST)
    read = wire.SessionEvent.FromString(data)
    assert [one.WhichOneof("event") for one in read.batch] == [
        *("newcomers", "member_lost", "probe", "newcomers")
    ]
    assert read.batch[1].member_lost.rank == 3
    singly = [wire.SessionEvent.FromString(one) for one in encoder.encode_batch(batch, EventForm())]
    assert singly == [*read.batch]


def test_a_lone_event_is_the_same_bytes_for_all_members() -> None:
    encoder = EventEncoder()
    told = make_conditions(1, 2, 3)
    found = [event for _ in range(5) for event in encoder.encode_batch([told], NEWEST)]
    assert [one is found[0] for one in found] == [True] * 5


def test_large_events_are_not_put_into_one_message() -> None:
    reports = [MemberLost(1, "h", 1, "x" * 700_000, 2, make_world_verdict([])) for _ in range(3)]
    found = [*EventEncoder().encode_batch(reports, NEWEST)]
    assert [wire.SessionEvent.FromString(one).member_lost.rank for one in found] == [1, 1, 1]


def test_of_many_conditions_the_first_are_told_in_full_and_the_others_in_few_bytes() -> None:
    again = Condition(600, None, 4.0)
    [data] = EventEncoder().encode_batch(
        [Conditions((*map(make_condition, range(500)), again), 7)], NEWEST
    )
    assert len(data) < 5_000
    told = wire.SessionEvent.FromString(data).conditions
    assert [one.absent.text for one in told.told] == [f"rank {n} is stalled" for n in range(8)]
    [silent] = told.silent
    assert (silent.state, [*silent.ranks]) == ("stalled", [*range(8, 500)])
    assert (set(silent.seconds), [*told.heard_again], told.more) == ({3.0}, [600], 7)


def test_stacks_of_one_message_are_bounded() -> None:
    told = Conditions(tuple(make_condition(n, stack="s" * 3_000) for n in range(8)), 0)
    [data] = EventEncoder().encode_batch([told], NEWEST)
    stacks = [one.absent.stack for one in wire.SessionEvent.FromString(data).conditions.told]
    assert stacks == ["s" * 3_000, *[""] * 7]


def test_an_older_client_gets_each_condition_as_it_knows_it() -> None:
    older = EventForm(takes_batches=True)
    [data] = EventEncoder().encode_batch([make_conditions(4, 5)], older)
    batch = wire.SessionEvent.FromString(data).batch
    assert [(one.condition.rank, one.condition.absent.state) for one in batch] == [
        (4, "stalled"),
        (5, "stalled"),
    ]


def test_conditions_that_a_member_has_not_read_are_superseded_by_later_ones() -> None:
    stream = SessionStream(1)
    stream.put(make_conditions(1, 2))
    stream.put(Newcomers(1))
    stream.put(Conditions((Condition(1, None, 4.0), make_condition(3)), 5))
    told, newcomers = read_all(stream)
    assert isinstance(told, Conditions)
    assert [(one.rank, one.absent is None) for one in told.changes] == [
        *((2, False), (1, True), (3, False))
    ]
    assert (told.more, newcomers) == (5, Newcomers(1))


def test_what_a_member_has_not_read_is_bounded_and_merged_once_for_all() -> None:
    merger = ConditionMerger()
    streams = [SessionStream(number, "", merger) for number in range(3)]
    for start in range(0, 4_000, 400):
        told = make_conditions(*range(start, start + 400))
        for stream in streams:
            stream.put(told)
    found = [read_all(stream) for stream in streams]
    assert len({id(one) for [one] in found}) == 1
    [[kept], *_] = found
    assert isinstance(kept, Conditions)
    assert [one.rank for one in kept.changes] == [*range(4_000 - LARGEST_BATCH, 4_000)]
    assert kept.more > 0


def test_what_is_read_is_merged_with_nothing() -> None:
    async def read() -> list[list[Notification]]:
        stream = SessionStream(1)
        batches = stream.iterate_batches()
        stream.put(make_conditions(1))
        first = await anext(batches)
        stream.put(make_conditions(2))
        return [first, await anext(batches)]

    assert asyncio.run(read()) == [[make_conditions(1)], [make_conditions(2)]]


def make_world(size: int) -> WorldFormed:
    members = tuple(
        MemberView(
            member_id=f"{rank:016x}",
            rank=rank,
            host=f"host{rank // 8}",
            pid=1000 + rank,
            address=f"10.0.0.{rank // 8 % 250}:{5000 + rank % 8}",
            label="",
            hosts_coordinator=rank == 3,
            memory=f"memory{rank // 8}",
            last_heartbeat=0.1 * rank,
            progress=(),
            presence=Presence.JOINED,
            reason="",
            data_port=6000 + rank % 8,
            pid_namespace=f"namespace{rank // 8}",
            start_ticks=f"{70_000 + rank}",
        )
        for rank in range(size)
    )
    return WorldFormed(3, size, members, "g")


def encode_world(size: int, form: EventForm) -> wire.WorldFormed:
    [data] = EventEncoder().encode_batch([make_world(size)], form)
    return wire.SessionEvent.FromString(data).world_formed


def test_a_packed_world_tells_peers_as_much_in_a_fraction_of_the_bytes() -> None:
    plain = encode_world(500, NEWEST)
    packed = encode_world(500, replace(NEWEST, takes_packed_members=True))
    assert (packed.epoch, packed.world_size, packed.group) == (3, 500, "g")
    assert len(packed.members) == 0
    assert read_members(packed) == read_members(plain)
    assert len(read_members(packed)) == 500
    assert packed.ByteSize() * 5 < plain.ByteSize()


def test_a_small_world_is_told_as_it_is() -> None:
    told = encode_world(4, replace(NEWEST, takes_packed_members=True))
    assert (len(told.members), told.packed_members) == (4, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"no stream",
        zlib.compress(b"\xff\xff"),
        zlib.compress(bytes(100_000)),
        zlib.compress(b"")[:-2],
    ],
)
def test_what_cannot_be_a_list_of_members_is_refused_before_it_takes_memory(data: bytes) -> None:
    with pytest.raises(CoordinatorUnavailable, match="list of"):
        read_members(wire.WorldFormed(world_size=2, packed_members=data))


@pytest.mark.parametrize("ranks", [range(1000), [0, 1, 2, 7, 8, 9, 3], [5], [4, 2, 0], []])
def test_a_groups_ranks_are_the_same_in_spans(ranks: Sequence[int]) -> None:
    spans = pack_ranks(ranks)
    assert len(spans) < len(ranks) or not spans
    opened = wire.OpenGroup(ranks=[] if spans else ranks, spans=spans)
    assert decode_ranks(opened) == tuple(ranks)


@pytest.mark.parametrize("spans", [[0], [0, 1, 5], [-1, 4], [0, -1], [0, 1 << 30]])
def test_spans_that_are_none_or_too_many_ranks_are_refused(spans: list[int]) -> None:
    with pytest.raises(Refused):
        decode_ranks(wire.OpenGroup(spans=spans))


def make_left(rank: int, completed: int = 7, error: str = "") -> MemberLeft:
    progress = (Progress("world", 7, completed, "all_reduce", elapsed=rank / 10),)
    return MemberLeft(rank, f"host{rank}", 1000 + rank, progress, error, 5 + rank, "", bool(error))


def test_members_that_have_left_are_one_event_of_few_bytes() -> None:
    gone = tuple(make_left(rank) for rank in range(100))
    [data] = EventEncoder().encode_batch(
        [MembersLeft((*gone, make_left(100, 6), make_left(101, 7, "ValueError: no")))],
        replace(NEWEST, takes_members_left=True),
    )
    assert len(data) < 250
    told = wire.SessionEvent.FromString(data).members_left
    assert told.epoch == 106
    found = list(list_departures(told))
    assert [left.rank for left in found] == list(range(102))
    assert [left.progress[0].completed for left in found[98:]] == [7, 7, 6, 7]
    assert [(left.error, left.aborts) for left in found[100:]] == [
        ("", False),
        ("ValueError: no", True),
    ]


def test_older_members_are_told_of_each_that_has_left() -> None:
    gone = tuple(make_left(rank) for rank in range(3))
    [data] = EventEncoder().encode_batch([MembersLeft(gone)], NEWEST)
    told = wire.SessionEvent.FromString(data).batch
    assert [(one.member_left.rank, one.member_left.epoch) for one in told] == [
        *((0, 5), (1, 6), (2, 7))
    ]
    assert told[1].member_left.host == "host1"
