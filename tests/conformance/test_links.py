"""Every fabric through the link suite, and refusals specific to networks."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from allhands.testing.faults import faults
from allhands.testing.faulty_channel import FaultyChannels
from allhands.testing.faulty_link import FaultyFabric, FaultyNetwork
from allhands.testing.link_suite import LinkSuite, RecordingReceiver, make_frame
from allhands.transport.frame import HEADER_BYTES, MAX_FRAME_BYTES
from allhands.transport.grpc_port import GrpcPort
from allhands.transport.grpc_stream import GrpcFabric, GrpcListener
from allhands.transport.handshake import Identity
from allhands.transport.inproc import InprocFabric, InprocNetwork
from allhands.transport.link import Fabric, LinkBroken, Receiver
from allhands.transport.socket_stream import SocketFabric, SocketListener


def identity(rank: int, world_size: int = 2) -> Identity:
    return Identity("job", "incarnation", b"s" * 32, f"member-{rank}", rank, world_size)


class TestInproc(LinkSuite):
    @asynccontextmanager
    async def fabrics(self, receivers: Sequence[Receiver]) -> AsyncIterator[Sequence[Fabric]]:
        board = InprocNetwork()
        made = [InprocFabric(board, rank, one) for rank, one in enumerate(receivers)]
        yield made
        for fabric in made:
            await fabric.aclose()


class TestUnderAPlanWithoutFaults(LinkSuite):
    @asynccontextmanager
    async def fabrics(self, receivers: Sequence[Receiver]) -> AsyncIterator[Sequence[Fabric]]:
        board = FaultyNetwork(FaultyChannels(faults()))
        made = [FaultyFabric(board, rank, one) for rank, one in enumerate(receivers)]
        yield made
        for fabric in made:
            await fabric.aclose()


class TestGrpc(LinkSuite):
    encrypts = False

    @asynccontextmanager
    async def fabrics(self, receivers: Sequence[Receiver]) -> AsyncIterator[Sequence[Fabric]]:
        ports = [GrpcListener() for _ in receivers]
        for port in ports:
            port.encrypts = self.encrypts
            await port.start("127.0.0.1")
        addresses = {rank: f"127.0.0.1:{port.port}" for rank, port in enumerate(ports)}
        made = [
            GrpcFabric(port, identity(rank, len(receivers)), addresses, receiver)
            for rank, (port, receiver) in enumerate(zip(ports, receivers, strict=True))
        ]
        yield made
        for fabric in made:
            await fabric.aclose()


class TestDeferredGrpc(LinkSuite):
    encrypts = False

    @asynccontextmanager
    async def fabrics(self, receivers: Sequence[Receiver]) -> AsyncIterator[Sequence[Fabric]]:
        ports = [GrpcPort(is_deferred=True) for _ in receivers]
        for port in ports:
            await port.start("127.0.0.1", encrypts=self.encrypts)
        addresses = {rank: f"127.0.0.1:{port.port}" for rank, port in enumerate(ports)}
        for rank, (port, receiver) in enumerate(zip(ports, receivers, strict=True)):
            port.admit(identity(rank, len(receivers)), addresses, receiver)
        yield ports
        for port in ports:
            await port.aclose()


class TestSocket(LinkSuite):
    encrypts = False

    @asynccontextmanager
    async def fabrics(self, receivers: Sequence[Receiver]) -> AsyncIterator[Sequence[Fabric]]:
        ports = [SocketListener() for _ in receivers]
        for port in ports:
            port.encrypts = self.encrypts
            port.start("127.0.0.1")
        addresses = {rank: ("127.0.0.1", port.port) for rank, port in enumerate(ports)}
        made = [
            SocketFabric(port, identity(rank, len(receivers)), addresses, receiver)
            for rank, (port, receiver) in enumerate(zip(ports, receivers, strict=True))
        ]
        yield made
        for fabric in made:
            await fabric.aclose()


class TestEncryptedDeferredGrpc(TestDeferredGrpc):
    encrypts = True


class TestEncryptedGrpc(TestGrpc):
    encrypts = True


class TestEncryptedSocket(TestSocket):
    encrypts = True


class Stranger:
    """A process outside the world, dialing a worker's port."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.call = self.channel.stream_stream("/allhands.v1.Peer/Link")()

    async def said(self) -> str:
        text = f"{(await self.call.code()).name}: {await self.call.details()}"
        await self.channel.close()
        return text


@pytest.fixture
async def worker() -> AsyncIterator[tuple[GrpcListener, RecordingReceiver]]:
    """Rank 0 of 2 with a listening port."""
    port, recorder = GrpcListener(), RecordingReceiver()
    await port.start("127.0.0.1")
    fabric = GrpcFabric(port, identity(0), {1: "127.0.0.1:1"}, recorder)
    yield port, recorder
    await fabric.aclose()


async def dial_as(me: Identity, port: GrpcListener | GrpcPort) -> None:
    """Dial rank 0 as somebody."""
    own, recorder = GrpcListener(), RecordingReceiver()
    await own.start("127.0.0.1")
    fabric = GrpcFabric(own, me, {0: f"127.0.0.1:{port.port}"}, recorder)
    try:
        link = await fabric.dial(0)
        await link.send([make_frame(1)])
        await link.close()
    finally:
        await fabric.aclose()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"secret": b"t" * 32}, "does not hold the secret"),
        ({"job": "other"}, "belongs to job 'other', this worker to 'job'"),
        ({"incarnation": "older"}, "another run of job 'job'"),
        ({"rank": 7, "world_size": 8}, "rank 7 is no peer in a world of 2"),
    ],
)
async def test_who_does_not_belong_to_the_world_is_refused_and_the_world_goes_on(
    worker: tuple[GrpcListener, RecordingReceiver],
    caplog: pytest.LogCaptureFixture,
    change: dict[str, object],
    reason: str,
) -> None:
    port, recorder = worker
    with pytest.raises(LinkBroken, match=reason):
        await dial_as(replace(identity(1), **change), port)  # type: ignore[arg-type]
    await dial_as(identity(1), port)
    assert recorder.frames == [(1, make_frame(1))]
    assert recorder.breaks == []


async def test_garbage_instead_of_a_greeting_is_dropped_with_one_log_line(
    worker: tuple[GrpcListener, RecordingReceiver], caplog: pytest.LogCaptureFixture
) -> None:
    port, recorder = worker
    stranger = Stranger(port.port)
    with caplog.at_level(logging.WARNING):
        await stranger.call.write(b"\xff" * 100)
        assert "UNAUTHENTICATED" in await stranger.said()
    assert len([one for one in caplog.records if "refused a link" in one.message]) == 1
    await dial_as(identity(1), port)
    assert recorder.frames == [(1, make_frame(1))]


async def test_a_message_longer_than_any_frame_is_refused_before_it_is_taken_in(
    worker: tuple[GrpcListener, RecordingReceiver],
) -> None:
    port, recorder = worker
    stranger = Stranger(port.port)
    await stranger.call.write(b"\0" * (MAX_FRAME_BYTES + 1))
    assert "RESOURCE_EXHAUSTED" in await stranger.said()
    await dial_as(identity(1), port)
    assert recorder.breaks == []


async def test_bytes_that_are_no_http2_harm_nobody(
    worker: tuple[GrpcListener, RecordingReceiver],
) -> None:
    port, recorder = worker
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * HEADER_BYTES)
    await writer.drain()
    async with asyncio.timeout(10):
        while await reader.read(4096):
            pass
    writer.close()
    await dial_as(identity(1), port)
    assert recorder.frames == [(1, make_frame(1))]


async def test_a_deferred_port_becomes_a_server_when_somebody_connects() -> None:
    port, recorder = GrpcPort(is_deferred=True), RecordingReceiver()
    await port.start("127.0.0.1")
    port.admit(identity(0), {1: "127.0.0.1:1"}, recorder)
    with pytest.raises(OSError, match="in use"):
        await GrpcPort(is_deferred=True).start("127.0.0.1", port.port)
    assert not port.is_open
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""  # closed when the server takes the port
    writer.close()
    assert port.is_open
    await dial_as(identity(1), port)
    assert recorder.frames == [(1, make_frame(1))]
    await port.aclose()


async def test_a_deferred_port_that_nobody_has_dialled_is_free_again_when_closed() -> None:
    first = GrpcPort(is_deferred=True)
    await first.start("127.0.0.1")
    _, writer = await asyncio.open_connection("127.0.0.1", first.port)
    await asyncio.sleep(0)
    await first.aclose()  # a stranger waits, the worker has no rank yet
    writer.close()
    again = GrpcPort(is_deferred=True)
    await again.start("127.0.0.1", first.port)
    await again.aclose()


async def test_a_peer_without_a_listener_is_known_at_once() -> None:
    own, gone = GrpcPort(is_deferred=True), GrpcPort(is_deferred=True)
    await own.start("127.0.0.1")
    await gone.start("127.0.0.1")
    await gone.aclose()
    where = f"127.0.0.1:{gone.port}"
    own.admit(identity(1), {0: where}, RecordingReceiver())
    with pytest.raises(LinkBroken, match=f"cannot connect to {where}"):
        await own.dial(0)
    assert not own.is_open
    await own.aclose()
