"""Worlds of many members in the log: what the machine takes in fits a frame."""

import pytest

from allhands_server.log.change_codec import decode_changes, encode_changes
from allhands_server.log.frame import (
    LARGEST_PAYLOAD,
    Frame,
    decode_frame,
    encode_frame,
    make_frame,
)
from allhands_server.machine import Machine, limits
from allhands_server.machine.member_messages import Join
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import DescribeJob
from allhands_server.machine.world.admission import measure_join
from allhands_server.machine.world_changes import MemberRecord, WorldCompleted
from allhands_server.testing import Transcript

LABEL = "l" * limits.LONGEST_NAME
SIZE = 20_000
NAMESPACE = "n" * 600


def make_frame_of(changes: bytes) -> Frame:
    return make_frame(1, 1, 0, changes)


def test_a_world_beyond_the_usual_size_of_a_frame_is_logged_and_restored() -> None:
    t = Transcript(machine=Machine(has_log=True))
    for rank in range(SIZE):
        t.join(rank, SIZE, label=LABEL, pid_namespace=NAMESPACE)
    [completed] = t.commits
    payload = encode_changes(completed)
    assert 16 << 20 < len(payload) <= LARGEST_PAYLOAD
    frame = decode_frame(encode_frame(make_frame_of(payload)), 1)
    restored = Transcript(machine=Machine(has_log=True))
    restored.machine.restore(decode_changes(frame.payload, 1))
    restored.machine.finish_restore(0.0)
    members = restored.ask_now(DescribeJob("j")).members
    assert [(one.rank, one.pid, one.label) for one in members] == [
        (rank, 1001 + rank, LABEL) for rank in range(SIZE)
    ]


def test_a_members_record_takes_no_more_than_its_estimate() -> None:
    longest = Join(
        job="j" * 256,
        rank=limits.LARGEST_WORLD,
        world_size=limits.LARGEST_WORLD,
        host="ü" * 256,
        pid=2**31 - 1,
        address="a" * 300,
        heartbeat_window=3600.0,
        label=LABEL,
        hosts_coordinator=True,
        memory="m" * 300,
        data_port=65535,
        elastic=True,
        max_members=limits.LARGEST_WORLD,
        pid_namespace=NAMESPACE,
        start_ticks="9" * 20,
        exit_is_reported=True,
        stack_channel="s" * 300,
    )
    record = MemberRecord("f" * 16, limits.LARGEST_WORLD, longest)
    some, more = (
        len(encode_changes([WorldCompleted("j", "i", b"s", 0.0, 1, (record,) * count)]))
        for count in (1, 2)
    )
    assert measure_join(longest) - 64 < more - some <= measure_join(longest)


def test_the_member_with_which_a_world_would_be_too_large_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = Transcript()
    first = t.join(0, 3, label=LABEL)
    taken = measure_join(Join("j", 0, 3, "host1", 1001, "127.0.0.1:5001", 0.0, LABEL))
    monkeypatch.setattr(limits, "LARGEST_MEMBERS", 2 * taken)
    second = t.join(1, 3, label=LABEL)
    third = t.join(2, 3, label=LABEL)
    assert first not in t.ends
    assert second not in t.ends
    refusal = t.ends[third]
    assert isinstance(refusal, Refusal)
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "rank 2 (host host3, pid 1003" in refusal.text
    assert "shorter names and labels" in refusal.text
    t.break_session(second)  # its place is free again, and so are its bytes
    assert t.join(2, 3, label=LABEL) not in t.ends
