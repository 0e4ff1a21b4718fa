"""Connections whose peers do not read, calls above a rate, and calls that wait for the log."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import allhands as ah
from allhands.coordinator.client import Control
from allhands.testing.daemon import run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.coordinator import Coordinator
from allhands_server.kv import connection as connection_module
from allhands_server.kv.listener import KvListener
from allhands_server.resource_limits import ResourceLimits
from support.faulty_log import FaultyEngine
from support.kv_lines import MIB, PATIENCE, SECRET, Line, get, listen, put, read_to_end, wait_until


async def test_a_peer_that_does_not_read_in_time_is_dropped_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "STALL_SECONDS", 0.3)
    caplog.set_level(logging.WARNING)
    async with asyncio.timeout(PATIENCE), listen(ResourceLimits()) as (_, listener):
        line = await Line.open(listener.port)
        await line.call(put(1, "k", bytes(4 * MIB)))
        await line.read_replies(1)
        await line.call(*(get(id, "k") for id in range(2, 40)))
        await wait_until(lambda: "has read nothing for 0.3 s" in caplog.text)
        await read_to_end(line)
        await wait_until(lambda: not listener._connections)
        line.close()
        other = await Line.open(listener.port)
        await other.call(get(1, "k"))
        assert len((await other.read_replies(1))[0].get.value) == 4 * MIB
        other.close()


async def test_a_slow_peer_that_reads_on_gets_all_its_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STALL_SECONDS", 20.0)
    async with asyncio.timeout(PATIENCE), listen(ResourceLimits()) as (_, listener):
        line = await Line.open(listener.port)
        await line.call(put(1, "k", bytes(MIB)))
        await line.read_replies(1)
        await line.call(*(get(id, "k") for id in range(2, 22)))
        replies = await line.read_replies(20)
        assert [reply.id for reply in replies] == list(range(2, 22))
        (connection,) = listener._connections
        assert connection._stall_timer is not None  # it has not read for a while
        assert connection._stall_timer.cancelled()
        line.close()


async def test_replies_to_waiting_calls_do_not_pile_up_for_a_peer_that_does_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    limits = ResourceLimits(client_bytes=8 * MIB)
    async with asyncio.timeout(PATIENCE), listen(limits) as (_, listener):
        line, writer = await Line.open(listener.port), await Line.open(listener.port)
        await line.call(*(get(id, f"k{id}", wait=True) for id in range(64)))
        for id in range(64):
            await writer.call(put(id, f"k{id}", bytes(MIB)))
            await writer.read_replies(1)
        await wait_until(lambda: "bytes of replies wait for its peer" in caplog.text)
        assert "--limit client-bytes=" in caplog.text
        await wait_until(lambda: len(listener._connections) == 1)
        line.close()
        writer.close()


async def test_a_connection_has_so_many_waiting_calls() -> None:
    async with (
        asyncio.timeout(PATIENCE),
        listen(ResourceLimits(client_waiters=3)) as (_, listener),
    ):
        line = await Line.open(listener.port)
        await line.call(*(get(id, "k", wait=True) for id in range(1, 5)))
        (refused,) = await line.read_replies(1)
        assert refused.id == 4
        assert "3 waiting calls" in refused.refused.text
        await line.call(put(5, "k"))
        assert sorted(reply.id for reply in await line.read_replies(4)) == [1, 2, 3, 5]
        line.close()


async def test_calls_above_a_rate_are_slowed_in_their_order() -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE), listen(ResourceLimits(client_rate=50)) as (_, listener):
        line = await Line.open(listener.port)
        begun = loop.time()
        await line.call(*(put(id, f"k{id}") for id in range(1, 101)))
        replies = await line.read_replies(100)
        assert [reply.id for reply in replies] == list(range(1, 101))
        assert not any(reply.HasField("refused") for reply in replies)
        assert loop.time() - begun >= 0.99  # never faster than the rate
        line.close()


async def test_keep_alives_are_not_slowed() -> None:
    async with asyncio.timeout(PATIENCE), listen(ResourceLimits(job_rate=1)) as (_, listener):
        line = await Line.open(listener.port)
        await line.call(wire.Call(id=1, lease_grant=wire.LeaseGrantRequest(job="j", ttl=60)))
        (granted,) = await line.read_replies(1)
        lease = granted.lease_grant.lease
        keep_alive = wire.LeaseKeepAliveRequest(job="j", lease=lease)
        await line.call(*(wire.Call(id=id, lease_keep_alive=keep_alive) for id in range(2, 200)))
        replies = await line.read_replies(198)
        assert not any(reply.HasField("refused") for reply in replies)
        line.close()


def is_refused(control: Control, errors: list[ah.LimitExceeded]) -> bool:
    """Make a call with little time; return whether it was above the rate."""
    try:
        control.put("k", b"", timeout=0.3)
    except ah.LimitExceeded as error:
        errors.append(error)
    except ah.StoreTimeout:
        return False  # on a busy host
    return bool(errors)


@pytest.mark.parametrize("use_lines", [True, False], ids=["lines", "gRPC"])
def test_clients_come_again_when_they_are_told_to(tmp_path: Path, use_lines: bool) -> None:
    errors: list[ah.LimitExceeded] = []
    with (
        run_daemon(tmp_path, "--limit", "job-rate=2") as daemon,
        Control(daemon.endpoint, job="j", use_lines=use_lines, timeout=60) as control,
    ):
        with ThreadPoolExecutor(8) as threads:  # together they are refused, and come again
            list(threads.map(lambda number: control.put(f"k{number}", b""), range(8)))
        poll_until(lambda: is_refused(control, errors), PATIENCE)
        assert "job j makes more than 2 calls a second" in str(errors[0])
        assert errors[0].retry_after is not None
        assert 0 < errors[0].retry_after < 2
        control.put("last", b"")
        assert control.count() >= 9


def test_asyncio_clients_come_again_when_they_are_told_to(tmp_path: Path) -> None:
    async def add_one() -> None:
        async with ah.aio.AsyncControl(daemon.endpoint, job="j", timeout=60) as control:
            await control.store.add("n", 1)

    async def add_together() -> None:
        await asyncio.gather(*(add_one() for _ in range(8)))

    with (
        run_daemon(tmp_path, "--limit", "job-rate=2") as daemon,
        Control(daemon.endpoint, job="j", timeout=60) as control,
    ):
        asyncio.run(add_together())
        assert control.get("n") == b"8"


def test_calls_over_grpc_are_slowed(tmp_path: Path) -> None:
    with (
        run_daemon(tmp_path, "--limit", "job-rate=2") as daemon,
        Control(daemon.endpoint, job="j", use_lines=False, timeout=60) as control,
    ):
        begun = time.monotonic()
        for number in range(4):
            control.put(f"k{number}", b"")
        assert time.monotonic() - begun >= 0.99  # never faster than the rate


async def test_a_client_that_writes_faster_than_the_log_is_held_back() -> None:
    engine, calls, limits = FaultyEngine(), 40, ResourceLimits(client_bytes=MIB)
    coordinator = await Coordinator.open(engine, limits=limits)
    listener = KvListener(coordinator, SECRET, hello_timeout=30.0)
    listener.listen(("127.0.0.1",), None)
    async with asyncio.timeout(PATIENCE):
        line = await Line.open(listener.port)
        engine.gate.clear()
        sending = asyncio.create_task(send_puts(line, calls, bytes(256 << 10)))
        await wait_until(lambda: listener.log_load.nbytes > MIB)
        (connection,) = listener._connections
        assert connection._load.is_log_full
        await wait_until(lambda: bool(connection._todo))
        assert len(connection._load.held) == 4
        engine.gate.set()
        replies = await line.read_replies(calls)
        assert [reply.id for reply in replies] == list(range(calls))
        await sending
        assert listener.log_load.nbytes == 0
        line.close()
    coordinator.close()
    listener.close()
    listener.abort()
    await coordinator.close_log()


async def send_puts(line: Line, count: int, value: bytes) -> None:
    for id in range(count):
        await line.call(put(id, f"k{id % 4}", value))
