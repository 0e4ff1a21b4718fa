"""The port for raw-socket links: connections to refuse, and peers to admit meanwhile."""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from allhands.testing.link_suite import RecordingReceiver, make_frame
from allhands.transport import handshake, socket_handshake, socket_stream
from allhands.transport.frame import HEADER_BYTES, MAX_PAYLOAD_BYTES, FrameKind, Header, MessageKey
from allhands.transport.handshake import Identity
from allhands.transport.link import LinkBroken, Unreachable
from allhands.transport.socket_stream import SocketFabric, SocketListener

PREAMBLE = struct.Struct("<2sBBI")
STEP = 0


def identity(rank: int, world_size: int = 2) -> Identity:
    return Identity("job", "incarnation", b"s" * 32, f"member-{rank}", rank, world_size)


class Worker:
    """Rank 0 of 2 with a listening port."""

    def __init__(self) -> None:
        self.port, self.recorder = SocketListener(), RecordingReceiver()
        self.port.start("127.0.0.1")
        self.fabric: SocketFabric | None = None

    def admit(self) -> None:
        addresses = {1: ("127.0.0.1", 1)}
        self.fabric = SocketFabric(self.port, identity(0), addresses, self.recorder)

    async def is_well(self) -> None:
        """Check that a peer is admitted and a frame of the peer arrives."""
        await dial_as(identity(1), self.port)
        assert self.recorder.frames == [(1, make_frame(1))]
        assert self.recorder.breaks == []


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker()
    made.admit()
    yield made
    await made.port.aclose()


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    return caplog


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [one.getMessage() for one in caplog.records]
    assert all(one.startswith("refused a link from 127.0.0.1:") for one in said), said
    return said


async def dial_as(me: Identity, port: SocketListener) -> None:
    """Dial rank 0 as somebody."""
    own, recorder = SocketListener(), RecordingReceiver()
    own.start("127.0.0.1")
    fabric = SocketFabric(own, me, {0: ("127.0.0.1", port.port)}, recorder)
    try:
        link = await fabric.dial(0)
        await link.send([make_frame(1)])
        await link.close()
    finally:
        await fabric.aclose()


class Stranger:
    """A connection to a worker's port with bytes foreign to any peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, port: SocketListener) -> "Stranger":
        return cls(*await asyncio.open_connection("127.0.0.1", port.port))

    async def dropped(self) -> bytes:
        """Wait until the worker has closed the connection; return the bytes before."""
        said = b""
        async with asyncio.timeout(10):
            try:
                while came := await self.reader.read(4096):
                    said += came
            except ConnectionResetError:
                pass
        self.writer.close()
        return said

    async def step(self) -> bytes:
        """Read one message of the worker's side of the handshake."""
        async with asyncio.timeout(10):
            *_, nbytes = PREAMBLE.unpack(await self.reader.readexactly(PREAMBLE.size))
            return await self.reader.readexactly(nbytes)

    async def prove(self) -> None:
        """Greet as rank 1 does, to the end."""
        me = identity(1)
        greeting = hello()
        self.writer.write(packed(greeting.SerializeToString()))
        challenge = handshake.peer_pb2.Challenge.FromString(await self.step())
        proof = handshake.make_proof(me.secret, "dial", greeting, challenge.nonce)
        self.writer.write(packed(handshake.peer_pb2.Proof(proof=proof).SerializeToString()))
        await self.step()


def hello() -> handshake.peer_pb2.Hello:
    return handshake.make_hello(
        job="job", incarnation="incarnation", member="member-1", rank=1, to_rank=0
    )


def packed(text: bytes, nbytes: int | None = None) -> bytes:
    return PREAMBLE.pack(b"AL", 1, STEP, len(text) if nbytes is None else nbytes) + text


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
    worker: Worker, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(LinkBroken, match=reason):
        await dial_as(replace(identity(1), **change), worker.port)  # type: ignore[arg-type]
    await worker.is_well()


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a greeting of this protocol"),
        (bytes(range(256)) * 64, "not a greeting of this protocol"),
        (packed(b"\xff" * 100), "not a greeting of this protocol"),
        (packed(b"", 1 << 31), "2147483648 bytes are too many for a greeting"),
        (packed(b"\0" * 4096, 4097), "4097 bytes are too many for a greeting"),
    ],
)
async def test_garbage_is_dropped_with_one_log_line(
    worker: Worker, caplog: pytest.LogCaptureFixture, garbage: bytes, reason: str
) -> None:
    stranger = await Stranger.at(worker.port)
    stranger.writer.write(garbage)
    await stranger.dropped()
    (said,) = refusals(caplog)
    assert said.endswith(reason)
    await worker.is_well()


@pytest.mark.parametrize("half", [b"", b"AL", packed(b"", 50), packed(b"x" * 20, 50)])
async def test_who_stops_within_its_greeting_is_dropped(
    worker: Worker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    half: bytes,
) -> None:
    monkeypatch.setattr(socket_handshake, "STEP_SECONDS", 0.2)
    stranger = await Stranger.at(worker.port)
    stranger.writer.write(half)
    await worker.is_well()  # whom it does not keep waiting
    await stranger.dropped()
    (said,) = refusals(caplog)
    assert "a step of the handshake took more than" in said


async def test_who_stops_before_its_proof_is_dropped(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_handshake, "STEP_SECONDS", 0.2)
    stranger = await Stranger.at(worker.port)
    stranger.writer.write(packed(hello().SerializeToString()))
    await stranger.step()
    await stranger.dropped()
    assert len(refusals(caplog)) == 1
    await worker.is_well()


async def test_who_hangs_up_within_its_greeting_is_named_in_one_line(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = await Stranger.at(worker.port)
    stranger.writer.write(packed(b"x" * 20, 50))
    stranger.writer.write_eof()
    await stranger.dropped()
    (said,) = refusals(caplog)
    assert said.endswith("the stream ended within the handshake")


async def test_many_strangers_do_not_keep_a_peer_out(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_stream, "MAX_UNPROVEN", 4)
    strangers = [await Stranger.at(worker.port) for _ in range(20)]  # 8 of whom may stay
    for stranger in strangers[:12]:
        await stranger.dropped()
    await worker.is_well()
    assert all("too many connections" in said for said in refusals(caplog))
    await worker.port.aclose()
    for stranger in strangers[12:]:
        await stranger.dropped()


async def test_who_comes_before_the_worker_knows_its_world_gets_in_afterwards() -> None:
    early = Worker()
    dialling = asyncio.create_task(dial_as(identity(1), early.port))
    other = await Stranger.at(early.port)
    other.writer.write(b"AL\2\0" + bytes(4))
    await other.dropped()  # the worker has begun to greet
    assert not dialling.done()
    early.admit()
    await dialling
    assert early.recorder.frames == [(1, make_frame(1))]
    await early.port.aclose()


async def test_a_second_link_of_one_rank_is_refused(worker: Worker) -> None:
    first = await Stranger.at(worker.port)
    await first.prove()
    with pytest.raises(LinkBroken, match="rank 1 has a link already"):
        await dial_as(identity(1), worker.port)
    first.writer.close()
    await worker.recorder.wait_counts(breaks=1)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (
            Header(FrameKind.DATA, MessageKey(1, 1), 0, 1 << 40, 0, MAX_PAYLOAD_BYTES + 1).pack(),
            "1048576 are allowed",
        ),
        (
            Header(FrameKind.DATA, MessageKey(1, 1), 0, 0, 0, 0xFFFFFFFF).pack(),
            "4294967295 bytes of payload",
        ),
        (Header(FrameKind.NACK, MessageKey(1, 1), 0, 0, 0, 4097).pack(), "a frame that is no data"),
        (b"X" * HEADER_BYTES, "magic b'XX'"),
    ],
)
async def test_a_frame_too_long_breaks_the_link_before_its_payload_comes(
    worker: Worker, head: bytes, reason: str
) -> None:
    stranger = await Stranger.at(worker.port)
    await stranger.prove()
    stranger.writer.write(head)
    said = await stranger.dropped()
    assert reason.encode() in said
    ((peer, broken),) = worker.recorder.breaks
    assert peer == 1
    assert reason in broken


async def test_frames_that_come_in_bits_are_put_together(worker: Worker) -> None:
    stranger = await Stranger.at(worker.port)
    await stranger.prove()
    sent = [make_frame(number, bytes([number]) * (number * 31)) for number in range(9)]
    for byte in b"".join(sent):
        stranger.writer.write(bytes([byte]))
        await asyncio.sleep(0)
    await worker.recorder.wait_counts(frames=len(sent))
    assert worker.recorder.frames == [(1, one) for one in sent]
    stranger.writer.close()
    await worker.recorder.wait_counts(breaks=1)


async def test_where_nobody_listens_is_told_from_who_refuses() -> None:
    own = SocketListener()
    own.start("127.0.0.1")
    gone = SocketListener()
    gone.start("127.0.0.1")
    await gone.aclose()
    addresses = {1: ("127.0.0.1", gone.port)}
    fabric = SocketFabric(own, identity(0, 3), addresses, RecordingReceiver())
    for peer in (1, 2):
        with pytest.raises(Unreachable):
            await fabric.dial(peer)
    await fabric.aclose()


async def test_connections_that_are_reset_at_once_leave_no_descriptor_open(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    def reset() -> None:
        for _ in range(1000):
            with socket.socket() as stranger:
                stranger.settimeout(30)
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stranger.connect(("127.0.0.1", worker.port.port))

    before = len(os.listdir("/proc/self/fd"))
    await asyncio.to_thread(reset)
    await worker.is_well()
    await worker.port.aclose()
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert len(refusals(caplog)) <= 50
