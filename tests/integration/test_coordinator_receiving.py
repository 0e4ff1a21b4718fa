"""Messages at the gRPC port that come in part: bounded memory, and calls of others go on."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.rpc.receive_room import GRACE_SECONDS
from support.http2_lines import Http2Line

_MIB = 1 << 20
_PATIENCE = 60.0
_CALLS = 200
_CROWD = 300
_PART, _LARGEST = int(7.9 * _MIB), 8 * _MIB
_SET = "/allhands.v1.Coordinator/Set"
_CHECK = "/grpc.health.v1.Health/Check"
_SESSION = "/allhands.v1.Coordinator/Session"
_SLOW = b"the message did not come within 1 s, and others wait: 8 messages are received"


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that receives eight messages at a time."""
    with run_daemon(tmp_path_factory.mktemp("runtime"), "--limit", "memory=256MiB") as running:
        yield running


@contextlib.asynccontextmanager
async def open_lines(
    daemon: DaemonProcess, count: int, host: str = "127.0.0.2", has_token: bool = True
) -> AsyncIterator[list[Http2Line]]:
    token = daemon.notice.token if has_token else None
    async with asyncio.timeout(_PATIENCE):
        lines = [await Http2Line.open(daemon.notice.port, token, host) for _ in range(count)]
        try:
            yield lines
        finally:
            for line in lines:
                line.close()


@contextlib.asynccontextmanager
async def stop_in_messages(lines: list[Http2Line], method: str) -> AsyncIterator[None]:
    """Begin calls with 7.9 of 8 MiB each, and leave it at that."""
    begun = [
        asyncio.create_task(lines[number % len(lines)].begin(method, bytes(_PART), _LARGEST))
        for number in range(_CALLS)
    ]
    try:
        yield
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)


def count_endings(lines: list[Http2Line]) -> int:
    return sum(len(line.endings) for line in lines)


def resident(daemon: DaemonProcess) -> int:
    return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGESIZE"
    )


async def test_messages_that_stop_are_bounded_and_calls_of_others_go_on(
    besieged: DaemonProcess, call_at: Any, job_name: str
) -> None:
    caller = call_at(f"127.0.0.1:{besieged.notice.port}", besieged.notice.token)
    members = [await caller.join(job_name, rank, 2, heartbeat_window=60) for rank in range(2)]
    await members[0].hear("world_formed")
    before, most, sequence = resident(besieged), 0, 0
    async with open_lines(besieged, 10) as lines, stop_in_messages(lines, _SET):
        while count_endings(lines) < 8:  # as many as there is room for
            sequence += 1
            put = wire.SetRequest(job=job_name, key="k", value=b"1")
            await caller.call("Set", put, _PATIENCE)
            barriers = [
                wire.MonitoredBarrierRequest(
                    job=job_name,
                    member_id=member.joined.member_id,
                    group="world",
                    sequence=sequence,
                    remaining=_PATIENCE,
                )
                for member in members
            ]
            await asyncio.gather(
                *(caller.call("MonitoredBarrier", one, _PATIENCE) for one in barriers)
            )
            most = max(most, resident(besieged) - before)
        endings = [text for line in lines for text in line.endings.values()]
    assert most < 110 * _MIB  # and not 1.6 GB
    assert all(_SLOW in text for text in endings)
    for member in members:
        await member.say(leave=wire.Leave())
        await member.hear("leave_accepted")


async def test_messages_of_strangers_that_stop_are_bounded(
    besieged: DaemonProcess, call_at: Any, job_name: str
) -> None:
    caller = call_at(f"127.0.0.1:{besieged.notice.port}", besieged.notice.token)
    before = resident(besieged)
    async with (
        open_lines(besieged, 10, has_token=False) as lines,
        stop_in_messages(lines, _CHECK),
    ):
        while count_endings(lines) < 4:
            await caller.call("Set", wire.SetRequest(job=job_name, key="k"), _PATIENCE)
        endings = [text for line in lines for text in line.endings.values()]
    assert resident(besieged) - before < 110 * _MIB
    assert all(b"4 messages of callers without a token" in text for text in endings)


async def test_all_ranks_of_a_crowd_get_in_though_room_is_little(
    besieged: DaemonProcess, call_at: Any, job_name: str
) -> None:
    caller = call_at(f"127.0.0.1:{besieged.notice.port}", besieged.notice.token)
    async with asyncio.timeout(_PATIENCE):
        members = await asyncio.gather(
            *(caller.join(job_name, rank, _CROWD) for rank in range(_CROWD))
        )
        for member in members:
            await member.hear("world_formed")


async def test_a_slow_message_is_received_as_long_as_nobody_waits(
    besieged: DaemonProcess, job_name: str
) -> None:
    message = wire.SetRequest(job=job_name, key="k", value=bytes(_MIB)).SerializeToString()
    async with open_lines(besieged, 1) as (line,):
        stream = await line.begin(_SET, message[:1000], len(message))
        await asyncio.sleep(GRACE_SECONDS + 0.5)  # what a slow network does
        assert stream not in line.endings
        await line.send_more(stream, message[1000:])
        assert b"grpc-status\x010" in await line.wait_end(stream)


@pytest.mark.parametrize("method", [_SET, _SESSION])
async def test_a_call_that_ends_without_a_request_is_refused_by_name(
    caller: Any, method: str
) -> None:
    call = caller.channel.stream_stream(method)(metadata=caller.metadata)
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await call.details()).endswith(
        ("its stream has ended without one", "a session begins with a Join")
    )


async def test_a_session_whose_message_stops_ends_by_name_within_its_window(
    besieged: DaemonProcess, job_name: str
) -> None:
    before = resident(besieged)
    async with open_lines(besieged, 1) as (line,):
        for number in range(12):
            join = wire.Join(
                job=f"{job_name}-{number}",
                rank=0,
                world_size=1,
                host="h",
                pid=1,
                port=7,
                heartbeat_window=0.5,
            )
            stream = await line.begin(_SESSION, wire.SessionRequest(join=join).SerializeToString())
            await line.send(stream, bytes(_PART), _LARGEST)
            assert b"no heartbeat for" in await line.wait_end(stream)
    assert resident(besieged) - before < 40 * _MIB  # and not 95


async def test_calls_that_wait_keep_no_bytes_that_nobody_knows(
    besieged: DaemonProcess, call_at: Any, job_name: str
) -> None:
    caller = call_at(f"127.0.0.1:{besieged.notice.port}", besieged.notice.token)
    call = caller.channel.unary_unary("/allhands.v1.Coordinator/Get")
    padding = b"\xfa\x7f\x80\x80\xc0\x02" + bytes(5 * _MIB)  # a field of 5 MiB with number 2047
    request = wire.GetRequest(job=job_name, key="absent", wait=True).SerializeToString() + padding
    before = resident(besieged)
    waiting = [call(request, metadata=caller.metadata, timeout=_PATIENCE) for _ in range(30)]

    async def count_waiting() -> int:
        asked = wire.DescribeCoordinatorRequest(with_limits=True)
        limits = (await caller.call("DescribeCoordinator", asked, _PATIENCE)).limits
        return next(one.used for one in limits if one.name == "job-waiters")

    async with asyncio.timeout(_PATIENCE):
        while await count_waiting() < len(waiting):
            pass
    assert resident(besieged) - before < 80 * _MIB  # and not 150
    await caller.call("Set", wire.SetRequest(job=job_name, key="absent", value=b"1"), _PATIENCE)
    assert {wire.GetReply.FromString(await one).value for one in waiting} == {b"1"}
