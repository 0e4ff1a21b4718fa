"""Coordinators on the running loop, beside whatever else runs there."""

import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from allhands_proto import notice
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server import embedded
from allhands_server.config import ServerConfig
from allhands_server.embedded import RunningCoordinator


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest_asyncio.fixture(loop_scope="session")
async def running() -> AsyncIterator[RunningCoordinator]:
    made = await embedded.start(ServerConfig(kind="embedded"))
    yield made
    await made.stop()


def target(coordinator: RunningCoordinator) -> str:
    return f"{coordinator.host}:{coordinator.port}"


async def test_two_in_one_process_keep_their_jobs_and_tokens_apart(
    running: RunningCoordinator, call_at: Callable[..., Any]
) -> None:
    other = await embedded.start(ServerConfig(kind="embedded"))
    assert other.port != running.port
    one = call_at(target(running), running.token)
    two = call_at(target(other), other.token)
    await one.call("Set", wire.SetRequest(job="j", key="k", value=b"one"))
    error = await two.refused("Get", wire.GetRequest(job="j", key="k"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    crossed = await call_at(target(other), running.token).refused(
        "ListJobs", wire.ListJobsRequest()
    )
    assert crossed.code() is grpc.StatusCode.UNAUTHENTICATED
    await other.stop()
    assert (await one.call("Get", wire.GetRequest(job="j", key="k"))).value == b"one"


async def test_its_notice_stands_as_long_as_it_runs(running: RunningCoordinator) -> None:
    found = notice.find(running.port)
    assert found is not None
    assert (found.token, found.kind, found.url) == (running.token, "embedded", running.url)
    await running.stop()
    assert notice.find(running.port) is None


async def test_without_a_notice_nothing_is_left_in_the_runtime_directory(tmp_path: Path) -> None:
    silent = await embedded.start(ServerConfig(post_notice=False))
    assert not (tmp_path / "allhands").exists()  # nothing else runs here
    await silent.stop()


async def test_stopping_waits_for_the_world_and_tells_nobody(
    running: RunningCoordinator, call_at: Callable[..., Any]
) -> None:
    caller = call_at(target(running), running.token)
    member = await caller.join("j", 0, 1)
    await member.hear("world_formed")
    await member.say(leave=wire.Leave())
    assert await running.stop(10.0)
    assert (await member.stream.read()).HasField("leave_accepted")


async def test_stopping_cuts_off_who_does_not_leave_in_time(
    running: RunningCoordinator, call_at: Callable[..., Any]
) -> None:
    caller = call_at(target(running), running.token)
    member = await caller.join("j", 0, 1)
    waiting = caller.begin("Get", wire.GetRequest(job="j", key="k", wait=True))
    await caller.call("Count", wire.CountRequest(job="j"))
    assert not await running.stop(0.05)
    assert await member.ending() == (
        grpc.StatusCode.UNAVAILABLE,
        "the coordinator has gone down",
    )
    assert await waiting.code() is grpc.StatusCode.UNAVAILABLE
    assert not await running.stop()


async def test_a_taken_port_is_an_os_error_that_names_it(running: RunningCoordinator) -> None:
    with pytest.raises(OSError, match=f"127.0.0.1:{running.port} is taken") as raised:
        await embedded.start(ServerConfig(port=running.port))
    assert raised.value.errno == errno.EADDRINUSE


async def test_a_host_of_another_machine_is_an_os_error_that_says_so() -> None:
    config = ServerConfig(host="192.0.2.1", insecure=True)
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0") as raised:
        await embedded.start(config)
    assert raised.value.errno == errno.EADDRNOTAVAIL


async def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for path in (cert, key):
        path.write_text("nothing of the kind")
    with pytest.raises(ValueError, match=r"cert\.pem and .*key\.pem are no certificate"):
        await embedded.start(ServerConfig(tls_cert=cert, tls_key=key))


async def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        await embedded.start(ServerConfig(tls_cert=missing, tls_key=missing))


async def test_a_session_has_little_time_to_begin(call_at: Callable[..., Any]) -> None:
    config = ServerConfig(post_notice=False, first_request_timeout=0.1)
    hasty = await embedded.start(config)
    session = await call_at(target(hasty), hasty.token).open()
    code, text = await session.ending()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "begins with a Join" in text
    await hasty.stop()


async def test_it_listens_on_ipv6_and_writes_addresses_in_brackets(
    call_at: Callable[..., Any],
) -> None:
    coordinator = await embedded.start(ServerConfig(host="::1", post_notice=False))
    assert coordinator.url == f"ah://[::1]:{coordinator.port}"
    caller = call_at(f"[::1]:{coordinator.port}", coordinator.token)
    member = await caller.join("j", 0, 1)
    assert member.joined.address == "[::1]:7"
    await coordinator.stop()
