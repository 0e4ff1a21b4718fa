"""Access to a coordinator: tokens, TLS, and the open methods."""

import contextlib
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands_proto.v1 import coordinator_pb2 as wire


@pytest.fixture
def target(daemon: DaemonProcess) -> str:
    return f"127.0.0.1:{daemon.notice.port}"


@pytest.mark.parametrize("token", [None, "", "wrong", "schön".encode().hex()])
async def test_a_call_without_the_token_is_refused(
    call_at: Callable[..., Any], target: str, token: str | None
) -> None:
    stranger = call_at(target, token)
    error = await stranger.refused("ListJobs", wire.ListJobsRequest())
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in error.details()


async def test_a_session_without_the_token_is_refused(
    call_at: Callable[..., Any], target: str
) -> None:
    join = wire.Join(job="j", rank=0, world_size=1, host="h", pid=1, port=1)
    stream = call_at(target, "wrong").stub.Session(metadata=(("authorization", "Bearer wrong"),))
    with contextlib.suppress(grpc.aio.AioRpcError):  # the refusal may be faster than the write
        await stream.write(wire.SessionRequest(join=join))
    assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stranger_does_not_learn_which_methods_exist(
    call_at: Callable[..., Any], target: str
) -> None:
    call = call_at(target, None).channel.unary_unary("/allhands.v1.Coordinator/NoSuch")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(b"")
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_token_needs_its_scheme(
    call_at: Callable[..., Any], daemon: DaemonProcess
) -> None:
    stub = call_at(f"127.0.0.1:{daemon.notice.port}", None).stub
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.ListJobs(
            wire.ListJobsRequest(), metadata=(("authorization", daemon.notice.token),)
        )
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_is_open_to_all(call_at: Callable[..., Any], target: str) -> None:
    health = health_pb2_grpc.HealthStub(call_at(target, None).channel)
    for service in ("", "allhands.v1.Coordinator"):
        reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services_to_who_has_the_token(
    call_at: Callable[..., Any], caller: Any, target: str
) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
    stream = stub.ServerReflectionInfo(iter([ask]), metadata=caller.metadata)
    reply = await stream.read()
    names = {one.name for one in reply.list_services_response.service}
    assert {"allhands.v1.Coordinator", "grpc.health.v1.Health"} <= names

    stub = reflection_pb2_grpc.ServerReflectionStub(call_at(target, None).channel)
    assert await stub.ServerReflectionInfo(iter([ask])).code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_notice_is_for_its_user_only(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        [path] = (tmp_path / "allhands").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        said = json.loads(path.read_text())
        assert said["pid"] == daemon.process.pid
        assert said["host"] == "127.0.0.1"
        assert len(said["token"]) >= 32
    assert list((tmp_path / "allhands").iterdir()) == []


async def test_the_log_names_who_was_refused_and_never_the_token(
    tmp_path: Path, call_at: Callable[..., Any]
) -> None:
    with run_daemon(tmp_path) as daemon:
        target = f"127.0.0.1:{daemon.notice.port}"
        await call_at(target, "guess-guess").refused("ListJobs", wire.ListJobsRequest())
        await call_at(target, daemon.notice.token).call("ListJobs", wire.ListJobsRequest())
    log = "".join(daemon.log_lines)
    assert log.count("ListJobs' from ipv4:127.0.0.1:") == 1
    assert "guess" not in log
    assert daemon.notice.token not in log


async def test_tls_and_the_token_let_in_together(
    tmp_path: Path, call_at: Callable[..., Any]
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    (tmp_path / "runtime").mkdir(mode=0o700)
    with run_daemon(tmp_path / "runtime", *files) as daemon:
        target = f"127.0.0.1:{daemon.notice.port}"
        ca = authority.cert_pem.bytes()
        member = call_at(target, daemon.notice.token, ca)
        assert (await member.call("ListJobs", wire.ListJobsRequest())).jobs == []
        error = await call_at(target, None, ca).refused("ListJobs", wire.ListJobsRequest())
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        plain = call_at(target, daemon.notice.token)
        error = await plain.refused("ListJobs", wire.ListJobsRequest())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
