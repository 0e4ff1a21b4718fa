"""The daemon as a process: draining, ending at once, a taken port, garbage on the port."""

import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands_proto.v1 import coordinator_pb2 as wire

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def connect(call_at: Callable[..., Any]) -> Callable[[DaemonProcess], Any]:
    return lambda daemon: call_at(f"127.0.0.1:{daemon.notice.port}", daemon.notice.token)


def test_without_worlds_the_first_signal_ends_it_well(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(10) == 0
    assert "SIGINT: draining" in "".join(daemon.log_lines)


async def test_the_first_signal_waits_for_the_running_world(
    tmp_path: Path, connect: Callable[[DaemonProcess], Any]
) -> None:
    with run_daemon(tmp_path) as daemon:
        caller = connect(daemon)
        member = await caller.join("j", 0, 1)
        health = health_pb2_grpc.HealthStub(caller.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        daemon.process.terminate()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert "SIGTERM" in (await member.hear("draining")).draining.reason
        late = wire.Join(job="late", rank=0, world_size=1, host="h", pid=1, port=1)
        refused = await caller.open(wire.SessionRequest(join=late))
        code, text = await refused.ending()
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "is shutting down (it got SIGTERM)" in text
        await caller.call("Set", wire.SetRequest(job="j", key="k", value=b"still served"))
        assert daemon.process.poll() is None
        await member.say(leave=wire.Leave())
        assert (await member.ending())[0] is grpc.StatusCode.OK
        assert daemon.process.wait(10) == 0


async def test_a_second_signal_ends_it_at_once(
    tmp_path: Path, connect: Callable[[DaemonProcess], Any]
) -> None:
    with run_daemon(tmp_path) as daemon:
        caller = connect(daemon)
        member = await caller.join("j", 0, 1)
        waiting = caller.begin("Get", wire.GetRequest(job="j", key="k", wait=True), None)
        await caller.call("Count", wire.CountRequest(job="j"))  # behind it: it is waited for now
        daemon.process.terminate()
        await member.hear("draining")
        daemon.process.terminate()
        assert (await member.ending())[0] is grpc.StatusCode.UNAVAILABLE
        assert await waiting.code() is grpc.StatusCode.UNAVAILABLE
        assert daemon.process.wait(10) == 1
    assert list((tmp_path / "allhands").iterdir()) == []


async def test_a_drain_that_takes_too_long_cuts_the_world_off(
    tmp_path: Path, connect: Callable[[DaemonProcess], Any]
) -> None:
    with run_daemon(tmp_path, "--drain-timeout", "0.2") as daemon:
        member = await connect(daemon).join("j", 0, 1)
        daemon.process.terminate()
        assert (await member.ending())[0] is grpc.StatusCode.UNAVAILABLE
        assert daemon.process.wait(10) == 1


def test_a_port_that_is_taken_is_named_with_who_has_it(daemon: DaemonProcess) -> None:
    serve = [sys.executable, "-m", "allhands.cli.main", "serve"]
    address = f"127.0.0.1:{daemon.notice.port}"
    second = subprocess.run(
        [*serve, "--listen", address],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert f"{address} is taken" in second.stderr
    assert f"daemon coordinator of yours with pid {daemon.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert second.stdout == ""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 500,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        _PREFACE + b"\xff\xff\xff\x00\x00" + struct.pack(">I", 1) + b"x" * 1000,
        _PREFACE + b"\x00\x00\x08\x01\x04" + struct.pack(">I", 1) + b"\xff" * 8,
    ],
    ids=["noise", "http/1", "huge frame", "bad headers"],
)
async def test_garbage_is_dropped_and_the_job_goes_on(
    caller: Any, daemon: DaemonProcess, job_name: str, garbage: bytes
) -> None:
    member = await caller.join(job_name, 0, 1)
    with socket.create_connection(("127.0.0.1", daemon.notice.port), timeout=10) as stranger:
        stranger.sendall(garbage)
        while stranger.recv(4096):
            pass
    await member.say(heartbeat=wire.Heartbeat())
    reply = await caller.call("DescribeJob", wire.DescribeJobRequest(job=job_name))
    assert reply.state == "running"
    assert daemon.process.poll() is None


async def test_a_message_that_is_none_of_ours_is_refused_and_the_job_goes_on(
    caller: Any, job_name: str
) -> None:
    member = await caller.join(job_name, 0, 1)
    call = caller.channel.unary_unary("/allhands.v1.Coordinator/Set")
    with pytest.raises(grpc.aio.AioRpcError):
        await call(b"\xff" * 100, metadata=caller.metadata, timeout=10)
    await member.say(leave=wire.Leave())
    assert (await member.ending())[0] is grpc.StatusCode.OK


def test_who_connects_and_says_nothing_is_dropped(daemon: DaemonProcess) -> None:
    with socket.create_connection(("127.0.0.1", daemon.notice.port), timeout=10) as stranger:
        while stranger.recv(4096):
            pass
