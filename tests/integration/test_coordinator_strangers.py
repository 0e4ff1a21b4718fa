"""Costs of unauthenticated clients to a coordinator: descriptors, memory, time."""

import asyncio
import contextlib
import os
import re
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.errors import CoordinatorUnavailable
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.framing import PREFACE, FrameDecoder, encode_frame
from allhands_proto.kv_handshake import NONCE_BYTES, prove
from allhands_proto.unproven import GRACE_SECONDS
from allhands_proto.v1 import coordinator_pb2
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1.coordinator_pb2_grpc import CoordinatorStub

_DESCRIPTORS = 1024
_UNPROVEN_LINES = _DESCRIPTORS // 8
_RESETS = 3000
_PATIENCE = 60.0
"""Seconds for hundreds of connections to be seen by a daemon on a busy host."""
_RST = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """Limit processes started here to 1,024 descriptors, the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def besieged(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with 1,024 descriptors."""
    with contextlib.ExitStack() as stack:
        with few_descriptors():
            daemon = stack.enter_context(run_daemon(tmp_path))
        yield daemon


def described(endpoint: Endpoint) -> coordinator_pb2.CoordinatorDescription:
    with Control(endpoint, job=None) as control:
        return control._stub.DescribeCoordinator(
            coordinator_pb2.DescribeCoordinatorRequest(), metadata=control._channel_config.metadata
        )


def port_of(daemon: DaemonProcess, listener: str) -> int:
    return daemon.notice.port if listener == "gRPC" else described(daemon.endpoint).kv_port


def descriptors(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def resident(daemon: DaemonProcess) -> int:
    pages = Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def reset(port: int, count: int) -> None:
    """Connect and reset many times, faster than the server accepts."""
    for _ in range(count):
        with socket.socket() as stranger:
            stranger.settimeout(30)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            stranger.connect(("127.0.0.1", port))


def greet(port: int, secret: bytes) -> socket.socket:
    """Open a line and show the proof."""
    line = socket.create_connection(("127.0.0.1", port), timeout=30)
    try:
        prove_on(line, secret)
    except BaseException:
        line.close()
        raise
    return line


def prove_on(line: socket.socket, secret: bytes) -> None:
    cutter = FrameDecoder()
    nonce = bytes(NONCE_BYTES)

    def body() -> bytes:
        while True:
            come = line.recv(4096)
            if not come:
                raise ConnectionResetError("the line was closed")
            for found in cutter.feed(come):
                return found

    line.sendall(PREFACE + encode_frame(wire.KvHello(nonce=nonce).SerializeToString()))
    challenge = wire.KvChallenge.FromString(body())
    proof = prove(secret, "caller", nonce, challenge.nonce)
    line.sendall(encode_frame(wire.KvProof(proof=proof).SerializeToString()))
    assert not wire.KvWelcome.FromString(body()).HasField("refused")


def works(daemon: DaemonProcess) -> None:
    """Check that both ports serve a client with the token."""
    with Control(daemon.endpoint, job="j", timeout=30) as control:
        control.put("key", b"value")
        assert control.get("key") == b"value"
        assert control.jobs()
    known = described(daemon.endpoint)
    greet(known.kv_port, known.kv_secret).close()


def works_again(daemon: DaemonProcess) -> bool:
    """Return whether both ports serve a client with the token soon after a flood."""
    try:
        works(daemon)
    except CoordinatorUnavailable:
        return False
    return True


# ---------------------------------------------------------------- descriptors


@pytest.mark.parametrize("listener", ["lines", "gRPC"])
def test_connections_that_are_reset_at_once_leave_no_descriptor_open(
    besieged: DaemonProcess, listener: str
) -> None:
    works(besieged)
    before = descriptors(besieged)
    reset(port_of(besieged, listener), _RESETS)
    poll_until(lambda: works_again(besieged), _PATIENCE)
    poll_until(lambda: descriptors(besieged) <= before + 2, _PATIENCE)
    assert "Traceback" not in "".join(besieged.log_lines)


def test_connections_that_are_reset_before_tls_leave_no_descriptor_open(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    with run_daemon(runtime, "--tls-cert", cert, "--tls-key", key) as daemon:
        endpoint = Endpoint(daemon.endpoint.address, daemon.notice.token, ca)
        port = described(endpoint).kv_port
        before = descriptors(daemon)
        reset(port, 500)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        silent[0].sendall(b"no hello of TLS")
        for one in silent:  # the time for a handshake is limited
            one.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                while one.recv(4096):
                    pass
            one.close()
        with Control(endpoint, job="j", timeout=30) as control:
            control.put("key", b"value")
        poll_until(lambda: descriptors(daemon) <= before + 2, _PATIENCE)
        assert "Traceback" not in "".join(daemon.log_lines)


def test_lines_without_a_proof_are_bounded_and_keep_nobody_out(besieged: DaemonProcess) -> None:
    known = described(besieged.endpoint)
    before = descriptors(besieged)
    strangers = [socket.socket() for _ in range(4 * _UNPROVEN_LINES)]
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", known.kv_port))
    greet(known.kv_port, known.kv_secret).close()
    assert descriptors(besieged) < before + _UNPROVEN_LINES + 16
    for stranger in strangers:
        stranger.close()
    poll_until(lambda: descriptors(besieged) <= before + 2, _PATIENCE)
    told = [line for line in besieged.log_lines if "have shown no proof" in line]
    assert 0 < len(told) <= 50


def test_lines_of_many_ranks_that_come_at_once_are_all_let_in(besieged: DaemonProcess) -> None:
    known = described(besieged.endpoint)
    count = 3 * _UNPROVEN_LINES
    late: list[float] = []

    def come(_: int) -> socket.socket:
        while True:
            begun = time.monotonic()
            try:
                return greet(known.kv_port, known.kv_secret)
            except ConnectionError:
                # Only where the processor was too busy to show the proof within the grace.
                late.append(time.monotonic() - begun)
                assert late[-1] > GRACE_SECONDS

    with ThreadPoolExecutor(count) as ranks:
        lines = list(ranks.map(come, range(count)))
    for line in lines:
        line.close()
    refused = [said for said in besieged.log_lines if "refused a line" in said]
    assert bool(refused) == bool(late)


def test_lines_are_accepted_again_after_descriptors_ran_out(besieged: DaemonProcess) -> None:
    known = described(besieged.endpoint)
    lines = [
        greet(known.kv_port, known.kv_secret)
        for _ in range(_DESCRIPTORS - descriptors(besieged) - 2)
    ]
    for _ in range(16):
        lines.append(socket.create_connection(("127.0.0.1", known.kv_port)))
    poll_until(lambda: any("Too many open files" in said for said in besieged.log_lines), _PATIENCE)
    for line in lines:
        line.close()
    works(besieged)
    assert "Traceback" not in "".join(besieged.log_lines)


def test_connections_without_a_token_are_bounded_and_keep_nobody_out(
    besieged: DaemonProcess,
) -> None:
    works(besieged)
    before = descriptors(besieged)
    hello = (  # of HTTP/2: so they are connections that gRPC keeps
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\0\4\1\0\0\0\0"
    )
    with contextlib.ExitStack() as strangers:
        for _ in range(_DESCRIPTORS + 100):
            with contextlib.suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", besieged.notice.port))
                strangers.enter_context(stranger).send(hello)
        poll_until(lambda: descriptors(besieged) < before + _DESCRIPTORS // 4 + 16, _PATIENCE)
        # Until the daemon has looked at a flood, connections beyond gRPC's bound are closed.
        poll_until(lambda: works_again(besieged), _PATIENCE)
        assert any("have shown no token" in said for said in besieged.log_lines)
    poll_until(lambda: descriptors(besieged) <= before + 2, _PATIENCE)
    assert "Traceback" not in "".join(besieged.log_lines)


def test_a_member_keeps_its_connection_while_strangers_are_dropped(besieged: DaemonProcess) -> None:
    join = coordinator_pb2.Join(job="j", rank=0, world_size=1, host="h", pid=1, port=1)
    member = RawMember(besieged.endpoint, join)
    member.receive("world_formed")
    with contextlib.ExitStack() as strangers:
        for _ in range(_DESCRIPTORS // 2):
            strangers.enter_context(socket.create_connection(("127.0.0.1", besieged.notice.port)))
        poll_until(
            lambda: any("have shown no token" in said for said in besieged.log_lines), _PATIENCE
        )
    member.send(leave=coordinator_pb2.Leave())
    member.receive("leave_accepted")
    member.close()


# ---------------------------------------------------------------- memory


def test_large_messages_without_a_token_are_not_read(besieged: DaemonProcess) -> None:
    before = resident(besieged)
    body = b"\0" * int(7.9 * 2**20)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]

    async def stream(channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream("/allhands.v1.Coordinator/Session")()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(body)
        assert await call.code() is not grpc.StatusCode.OK

    async def attack() -> None:
        target = f"127.0.0.1:{besieged.notice.port}"
        channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(10)]
        await asyncio.gather(*[stream(channels[number % 10]) for number in range(300)])
        for channel in channels:
            await channel.close()

    asyncio.run(attack())
    # What a process had it does not give back at once: this is about the most it had.
    assert resident(besieged) - before < 100 << 20  # and not 2.5 GiB
    works(besieged)


@pytest.mark.parametrize("nbytes", [0, 1000, 60_000, 1 << 20, 4 << 20])
def test_unary_callers_learn_that_their_token_is_missing_whatever_they_send(
    daemon: DaemonProcess, nbytes: int
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{daemon.notice.port}") as channel:
        call = channel.unary_unary("/allhands.v1.Coordinator/Set")
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as raised:
                call(b"\0" * nbytes)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "token" in raised.value.details()


async def test_streams_learn_that_their_token_is_missing_while_they_write(
    daemon: DaemonProcess, call_at: Callable[..., Any]
) -> None:
    stub: CoordinatorStub = call_at(f"127.0.0.1:{daemon.notice.port}", None).stub
    join = coordinator_pb2.SessionRequest(
        join=coordinator_pb2.Join(job="j", rank=0, world_size=1, host="h" * 10_000, pid=1, port=1)
    )

    async def refused() -> grpc.StatusCode:
        stream = stub.Session()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.write(join)
        return await stream.code()

    for _ in range(10):
        codes = await asyncio.gather(*[refused() for _ in range(20)])
        assert {*codes} == {grpc.StatusCode.UNAUTHENTICATED}


# ---------------------------------------------------------------- the log


def test_a_flood_of_refusals_is_logged_in_a_few_lines(besieged: DaemonProcess) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{besieged.notice.port}") as channel:
        call = channel.unary_unary("/allhands.v1.Coordinator/Set")
        waiting = [call.future(b"") for _ in range(1000)]
        for one in waiting:
            assert one.exception().code() is grpc.StatusCode.UNAUTHENTICATED
    port = port_of(besieged, "lines")
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
    works(besieged)
    assert (
        len([line for line in besieged.log_lines if re.search(r"refused '/allhands", line)]) <= 50
    )
    assert len([line for line in besieged.log_lines if "refused a line" in line]) <= 50


# ---------------------------------------------------------------- requests that are none


@pytest.mark.parametrize(
    ("method", "is_open"),
    [
        ("allhands.v1.Coordinator/Set", False),
        ("allhands.v1.Coordinator/CollectReports", False),
        ("allhands.v1.Coordinator/Session", False),
        ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", False),
        ("grpc.health.v1.Health/Check", True),
        ("grpc.health.v1.Health/Watch", True),
    ],
)
async def test_a_request_that_cannot_be_decoded_is_an_invalid_argument(
    caller: Any, daemon: DaemonProcess, method: str, is_open: bool
) -> None:
    channel: grpc.aio.Channel = caller.channel
    call = channel.stream_stream(f"/{method}")(metadata=() if is_open else caller.metadata)
    await call.write(b"\xff" * 100)
    with contextlib.suppress(asyncio.InvalidStateError):
        await call.done_writing()
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "cannot be decoded" in await call.details()
    assert "Traceback" not in "".join(daemon.log_lines)


async def test_a_session_in_which_a_request_cannot_be_decoded_ends(
    caller: Any, daemon: DaemonProcess, job_name: str
) -> None:
    channel: grpc.aio.Channel = caller.channel
    stream = channel.stream_stream("/allhands.v1.Coordinator/Session")(metadata=caller.metadata)
    join = coordinator_pb2.Join(job=job_name, rank=0, world_size=1, host="h", pid=1, port=1)
    await stream.write(coordinator_pb2.SessionRequest(join=join).SerializeToString())
    await stream.read()
    await stream.write(b"\xff" * 100)
    async with asyncio.timeout(10):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in "".join(daemon.log_lines)


def test_a_flood_of_garbage_is_logged_in_a_few_lines(besieged: DaemonProcess) -> None:
    metadata = (("authorization", f"Bearer {besieged.notice.token}"),)
    with grpc.insecure_channel(f"127.0.0.1:{besieged.notice.port}") as channel:
        call = channel.unary_unary("/allhands.v1.Coordinator/Set")
        for one in [call.future(b"\xff" * 9, metadata=metadata) for _ in range(500)]:
            assert one.exception().code() is grpc.StatusCode.INVALID_ARGUMENT
    works(besieged)
    assert len(besieged.log_lines) < 60


# ---------------------------------------------------------------- what is shown

_HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\nforged: line"


def test_keys_are_listed_escaped_one_a_line(
    daemon: DaemonProcess, control: Control, job_name: str
) -> None:
    control.put(_HOSTILE, b"\x1b[31m")
    control.put("schön", b"")
    listed = daemon.run_command("kv", "ls", job_name)
    assert listed.stdout.splitlines() == [
        r"a\x1b[2J\x1b]0;title\x07\r\nforged: line",
        "schön",
    ]
    assert daemon.run_command("kv", "get", job_name, _HOSTILE).stdout == "\x1b[31m"  # as it is
    absent = daemon.run_command("kv", "get", job_name, "no\x1b[2J\nsuch")
    assert absent.returncode == 1
    assert "\x1b" not in absent.stderr
    assert len(absent.stderr.splitlines()) == 1


def test_what_members_say_reaches_others_the_log_and_status_escaped(
    daemon: DaemonProcess, join_job: Callable[[int, int], Any], control: Control, job_name: str
) -> None:
    first, second = [join_job(rank, 2) for rank in range(2)]
    first.receive("world_formed")
    second.receive("world_formed")
    second.send(leave=coordinator_pb2.Leave(error=_HOSTILE, traceback=_HOSTILE))
    left = first.receive("member_left").member_left
    assert left.error == "a\\x1b[2J\\x1b]0;title\\x07\\r\nforged: line"
    assert "\x1b" not in left.traceback
    shown = daemon.run_command("status", job_name).stdout
    assert r"\x1b[2J" in shown
    assert "\x1b" not in shown
    assert not [line for line in shown.splitlines() if line.startswith("forged")]
    control.abort(_HOSTILE, by=_HOSTILE)
    aborted = first.receive("aborted").aborted
    assert "\x1b" not in aborted.by + aborted.reason
    poll_until(lambda: any("was aborted by" in line for line in daemon.log_lines), _PATIENCE)
    assert not [line for line in daemon.log_lines if "\x1b" in line or line.startswith("forged")]


def test_a_name_that_would_garble_a_terminal_is_refused(
    daemon: DaemonProcess, job_name: str
) -> None:
    with Control(daemon.endpoint, job=job_name, timeout=10) as control:
        with pytest.raises(ValueError, match="is no name for a job") as raised:
            Control(daemon.endpoint, job="a\x1b[2J\nb", timeout=10).put("k", b"")
        assert "\x1b" not in str(raised.value)
        assert control.count() == 0
