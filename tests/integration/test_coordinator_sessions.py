"""Sessions over the wire: joining, the loss of a killed process, wrong beginnings."""

import os
import re
import signal
import subprocess
import sys
from typing import Any

import grpc
import pytest

from allhands.testing.daemon import DaemonProcess
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.coordinator import Coordinator
from allhands_server.machine.effects import Joined, MemberLeft, WorldFormed
from allhands_server.machine.member_messages import Join, Leave
from programs import coordinated
from support.ranks.launchers import as_script


async def test_members_get_their_introduction_and_then_their_world(
    caller: Any, job_name: str
) -> None:
    first = await caller.join(job_name, -1, 2, label="one", hosts_coordinator=True, data_port=4711)
    second = await caller.join(job_name, 1, 0, heartbeat_window=9.0)
    assert first.joined.rank == 0
    assert first.joined.address == "127.0.0.1:7"
    assert len(first.joined.secret) == 32
    assert first.joined.secret == second.joined.secret
    assert first.joined.incarnation == second.joined.incarnation
    assert (second.joined.heartbeat_window, second.joined.heartbeat_interval) == (5.0, 1.0)
    formed = (await first.hear("world_formed")).world_formed
    assert formed == (await second.hear("world_formed")).world_formed
    assert (formed.epoch, formed.world_size) == (1, 2)
    assert [one.rank for one in formed.members] == [0, 1]
    assert formed.members[0].label == "one"
    assert [one.data_port for one in formed.members] == [4711, 0]
    assert formed.members[0].hosts_coordinator
    assert formed.members[0].state == wire.MEMBER_STATE_JOINED


async def test_a_rank_that_is_taken_is_refused_at_once(caller: Any, job_name: str) -> None:
    await caller.join(job_name, 0, 2)
    join = wire.Join(job=job_name, rank=0, world_size=2, host="other", pid=9, port=1)
    session = await caller.open(wire.SessionRequest(join=join))
    code, text = await session.ending()
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "host other, pid 9" in text
    assert "host h, pid 1" in text


async def test_who_leaves_is_let_go_and_the_other_hears_of_it(caller: Any, job_name: str) -> None:
    first, second = [await caller.join(job_name, rank, 2) for rank in range(2)]
    progress = [wire.Progress(group="world", sequence=4, completed=4)]
    await second.say(leave=wire.Leave(progress=progress, error="KeyError"))
    await second.hear("leave_accepted")
    assert (await second.ending())[0] is grpc.StatusCode.OK
    left = (await first.hear("member_left")).member_left
    assert (left.rank, left.error, left.epoch) == (1, "KeyError", 2)
    assert list(left.progress) == progress


async def test_who_is_silent_is_shown_out_with_aborted_and_lost_to_the_others(
    caller: Any, job_name: str
) -> None:
    first = await caller.join(job_name, 0, 2, heartbeat_window=0.5)
    silent = await caller.join(job_name, 1, 2)
    while not (event := await first.hear("probe", "member_lost")).HasField("member_lost"):
        await first.say(heartbeat=wire.Heartbeat(probe=event.probe.probe))
    lost = event.member_lost
    assert lost.rank == 1
    said = re.fullmatch(r"no heartbeat for ([0-9.]+) s", lost.reason)
    assert said is not None
    assert float(said[1]) >= 0.5  # more, where the processor was busy
    code, text = await silent.ending()
    assert code is grpc.StatusCode.ABORTED
    assert lost.reason in text


async def test_a_process_that_is_killed_is_lost_to_the_others_before_its_heartbeats_are_missed(
    caller: Any, daemon: DaemonProcess, job_name: str
) -> None:
    first = await caller.join(job_name, 0, 3)
    place = (daemon.notice.port, daemon.notice.token, job_name)
    script = as_script(coordinated.stay_in_a_session, *place)
    with subprocess.Popen(  # noqa: ASYNC220  # the loop may wait for its first line
        [sys.executable, *script], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "joined\n"
        third = await caller.join(job_name, 2, 3)
        assert worker.stdout.readline() == "world_formed\n"
        os.kill(worker.pid, signal.SIGKILL)
    for survivor in (first, third):
        lost = (await survivor.hear("member_lost")).member_lost
        assert (lost.rank, lost.host, lost.reason) == (1, "doomed", "its session broke")
    reply = await caller.call("DescribeJob", wire.DescribeJobRequest(job=job_name))
    assert reply.state == "degraded"
    assert [one.state for one in reply.members] == [
        wire.MEMBER_STATE_JOINED,
        wire.MEMBER_STATE_LOST,
        wire.MEMBER_STATE_JOINED,
    ]


async def test_who_ends_its_half_without_leaving_is_lost(caller: Any, job_name: str) -> None:
    first, second = [await caller.join(job_name, rank, 2) for rank in range(2)]
    await second.stream.done_writing()
    assert (await first.hear("member_lost")).member_lost.rank == 1
    assert (await second.ending())[0] is grpc.StatusCode.ABORTED


@pytest.mark.parametrize(
    "first",
    [
        wire.SessionRequest(),
        wire.SessionRequest(heartbeat=wire.Heartbeat()),
        wire.SessionRequest(join=wire.Join(job="j", world_size=1, host="h", port=0)),
        wire.SessionRequest(join=wire.Join(job="j", host="h", port=1, data_port=1 << 16)),
        wire.SessionRequest(join=wire.Join(job="j", world_size=1, host="", port=1)),
        wire.SessionRequest(join=wire.Join(job="", world_size=1, host="h", port=1)),
    ],
)
async def test_a_session_that_begins_wrongly_is_refused(
    caller: Any, first: wire.SessionRequest
) -> None:
    code, text = await (await caller.open(first)).ending()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text


async def test_a_session_that_ends_before_it_began_is_refused(caller: Any) -> None:
    session = await caller.open()
    await session.stream.done_writing()
    assert (await session.ending())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_who_takes_batches_gets_what_is_said_at_once_in_one_message(
    caller: Any, job_name: str
) -> None:
    join = wire.Join(job=job_name, world_size=1, host="h", pid=1, port=7, takes_batches=True)
    session = await caller.open(wire.SessionRequest(join=join))
    event = await session.stream.read()
    assert event.WhichOneof("event") is None
    assert [one.WhichOneof("event") for one in event.batch] == ["joined", "world_formed"]
    await session.say(leave=wire.Leave())
    assert (await session.hear("leave_accepted")).WhichOneof("event") == "leave_accepted"


async def test_what_is_said_to_a_member_in_one_turn_goes_out_together() -> None:
    coordinator = Coordinator()
    streams = [
        coordinator.join(Join("j", rank, 16, "h", 1, f"127.0.0.1:{5000 + rank}"))
        for rank in range(16)
    ]
    for stream in streams[1:]:
        coordinator.on_message(stream.number, Leave())
    batches = streams[0].iterate_batches()
    batch = await anext(batches)
    assert [type(one) for one in batch] == [Joined, WorldFormed, *[MemberLeft] * 15]
    coordinator.close()
