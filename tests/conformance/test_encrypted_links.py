"""Attacks on encrypted links: somebody in between, and peers without the secret of the job."""

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from allhands.runtime import native_core
from allhands.testing.link_suite import RecordingReceiver, make_frame
from allhands.transport.grpc_stream import GrpcFabric, GrpcListener
from allhands.transport.handshake import Identity
from allhands.transport.link import Link, LinkBroken
from allhands.transport.socket_inbound import InboundLink
from allhands.transport.socket_stream import SocketFabric, SocketListener

SECONDS = 30.0
needs_core = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")


def identity(rank: int) -> Identity:
    return Identity("job", "incarnation", b"s" * 32, f"member-{rank}", rank, 2)


OTHER = replace(identity(1), secret=b"t" * 32)


class Relay:
    """A listener in between that passes bytes on, and may change those towards the target."""

    def __init__(self, listener: SocketListener) -> None:
        self.listener = listener
        self._target = listener.port
        self.seen = b""
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        for task in (
            asyncio.create_task(self._pass_on(reader, back, is_forward=True)),
            asyncio.create_task(self._pass_on(there, writer, is_forward=False)),
        ):
            self._tasks.add(task)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_forward: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_forward:
                    self.seen += data
                    data = self.change(data)
                writer.write(data)
                await writer.drain()
        writer.close()


class Pair:
    """Rank 1 that dials rank 0 through a relay."""

    def __init__(
        self, relay: Relay, link: Link, recorder: RecordingReceiver, listener: SocketListener
    ) -> None:
        self.relay, self.link, self.recorder, self.listener = relay, link, recorder, listener

    async def send(self, number: int) -> None:
        await self.link.send([make_frame(number)])


@asynccontextmanager
async def open_sockets(
    me: Identity, *, encrypts: tuple[bool, bool] = (True, True)
) -> AsyncIterator[tuple[Relay, SocketFabric, RecordingReceiver]]:
    recorder = RecordingReceiver()
    ports = [SocketListener(), SocketListener()]
    for port, is_encrypted in zip(ports, encrypts, strict=True):
        port.encrypts = is_encrypted
        port.start("127.0.0.1")
    relay = Relay(ports[0])
    async with relay.listen() as between:
        fabrics = [
            SocketFabric(ports[0], identity(0), {}, recorder),
            SocketFabric(ports[1], me, {0: ("127.0.0.1", between)}, RecordingReceiver()),
        ]
        try:
            yield relay, fabrics[1], recorder
        finally:
            for fabric in fabrics:
                await fabric.aclose()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with open_sockets(identity(1)) as (relay, fabric, recorder):
        made = Pair(relay, await fabric.dial(0), recorder, relay.listener)
        await made.send(1)
        await made.recorder.wait_counts(frames=1)
        yield made
        made.link.abort()


async def test_nobody_in_between_can_read_frames(pair: Pair) -> None:
    assert pair.recorder.frames == [(1, make_frame(1))]
    secret = os.urandom(64)
    await pair.link.send([make_frame(2, secret)])
    await pair.recorder.wait_counts(frames=2)
    assert pair.recorder.frames[1] == (1, make_frame(2, secret))
    assert len(pair.relay.seen) > 1000
    assert secret[:8] not in pair.relay.seen
    assert make_frame(2, secret)[:8] not in pair.relay.seen


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "one bit": flip,
    "replayed": lambda data: data + data,
    "a frame in plaintext before": lambda data: make_frame(9) + data,
    "left out": lambda data: data[len(data) // 2 :],
}


FIRST, SECOND = (1, make_frame(1)), (1, make_frame(2))
DELIVERED = {False: [[FIRST]], True: [[FIRST], [FIRST, SECOND]]}
"""Frames that may have come, by whether a frame was replayed: never the second one twice."""


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_in_between_breaks_the_link_and_delivers_nothing_wrong(
    pair: Pair, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pair.relay.change = CHANGES[change]
    with contextlib.suppress(LinkBroken):
        await pair.send(2)
    async with asyncio.timeout(SECONDS):
        while not pair.recorder.breaks:
            with contextlib.suppress(LinkBroken):
                await pair.send(3)  # what was left out is noticed by what follows
            await asyncio.sleep(0.001)
    [(peer, reason)] = pair.recorder.breaks
    assert peer == 1
    assert "not what the peer encrypted" in reason
    assert pair.recorder.frames in DELIVERED[change == "replayed"]
    assert "broke the link from rank 1" in caplog.text


class CoreReader:
    """A call of the native core that reads one message of the link to rank 0, as it lies there."""

    def __init__(self, inbound: InboundLink, nbytes: int) -> None:
        core, _ = native_core.find()
        assert core is not None
        self.state = state = core.LinkState(0)
        assert inbound.lend(state)
        asyncio.get_running_loop().remove_reader(inbound.descriptor)  # the loop does not run here
        self._inbound, self.output = inbound, np.zeros(nbytes, np.uint8)
        whole = (1, 0, nbytes)
        receives = ((0, 0, whole, False, False, True),)
        self.call = core.LinkCall(
            links=(state,),
            group=1,
            signature=0,
            part=0,
            op=-1,
            dtype=0,
            divisor=1,
            rounds=(((), (), (), receives),),
        )
        self.call.begin(2, (), (self.output,), ())

    async def read(self) -> int:
        """Go on with what has come until something stops the call; return what."""
        while (stopped := await self.read_once()) == _LATE:
            pass
        return stopped

    async def read_once(self) -> int:
        """Go on with what comes next; return what stopped the call."""
        waiting = [self._inbound.descriptor], [], [], SECONDS
        ready = await asyncio.to_thread(select.select, *waiting)
        assert ready[0], "nothing came"
        return self.call.run(0, 0)

    def give_back(self) -> None:
        self.call.withdraw()
        self._inbound.read_ahead()


_DONE, _LATE, _STUCK = 0, 1, 3
NBYTES = 100_000
AH_LINK_ROOM = 64 << 10
"""Memory of a link for what is read ahead, see links/link.h."""


def read_in_core(pair: Pair, nbytes: int = NBYTES) -> CoreReader:
    inbound = pair.listener.get_inbound(1)
    assert inbound is not None
    return CoreReader(inbound, nbytes)


class HoldingBack:
    """A change that passes the first bytes on, and the others together when all have come."""

    def __init__(self, first: int, total: int) -> None:
        self._first, self._total = first, total
        self._seen = b""

    def __call__(self, data: bytes) -> bytes:
        passed = len(self._seen[: self._first])
        self._seen += data
        if len(self._seen) >= self._total:
            return self._seen[passed:]
        return self._seen[passed : self._first]


@needs_core
async def test_the_core_reads_what_the_peer_encrypted(pair: Pair) -> None:
    secret = os.urandom(NBYTES)
    reader = read_in_core(pair)
    await pair.link.send([make_frame(2, secret)])
    assert await reader.read() == _DONE
    assert reader.output.tobytes() == secret
    assert secret[:8] not in pair.relay.seen


@needs_core
async def test_a_record_that_comes_in_two_pieces_has_room_behind_much_that_was_read_ahead(
    pair: Pair,
) -> None:
    """TLS keeps the first piece: of the second alone, less room would do than for the record."""
    secret = os.urandom(15_000)
    frame = make_frame(2, secret)
    reader = read_in_core(pair, len(secret))
    filler = bytes(AH_LINK_ROOM - 9_000)
    reader.state.unread(filler + frame[:10])
    reader.state.take(len(filler))
    pair.relay.change = HoldingBack(8_000, len(frame) + 100)
    await pair.link.send([frame[10:]])
    assert await reader.read_once() == _LATE
    await pair.link.send([make_frame(3, bytes(100))])
    assert await reader.read() == _DONE
    assert reader.output.tobytes() == secret


@needs_core
@pytest.mark.parametrize("change", ["one bit", "a frame in plaintext before"])
async def test_a_change_met_by_the_core_breaks_the_link_with_the_reason(
    pair: Pair, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reader = read_in_core(pair)
    pair.relay.change = CHANGES[change]
    with contextlib.suppress(LinkBroken):
        await pair.link.send([make_frame(2, bytes([7]) * NBYTES)])
    assert await reader.read() == _STUCK
    assert set(reader.output.tolist()) <= {0, 7}
    assert pair.recorder.breaks == []
    reader.give_back()
    [(peer, reason)] = pair.recorder.breaks
    assert peer == 1
    assert "not what the peer encrypted" in reason
    assert pair.recorder.frames == [FIRST]
    assert "broke the link from rank 1" in caplog.text


async def test_a_peer_without_the_secret_gets_no_further_than_tls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with open_sockets(OTHER) as (_, fabric, recorder):
        with pytest.raises(LinkBroken, match=r"does not hold the secret of this job \(TLS\)"):
            await fabric.dial(0)
        assert recorder.frames == []


async def test_somebody_in_between_with_certificates_of_its_own_is_noticed() -> None:
    """Who ends TLS on both sides needs the secret for either."""
    async with open_sockets(identity(1)) as (_, honest, _recorder):
        middle = SocketListener()
        middle.encrypts = True
        middle.start("127.0.0.1")
        swindler = SocketFabric(middle, replace(OTHER, rank=0), {}, RecordingReceiver())
        honest._addresses[0] = ("127.0.0.1", middle.port)
        with pytest.raises(LinkBroken, match="does not hold the secret"):
            await honest.dial(0)
        await swindler.aclose()


@pytest.mark.parametrize("encrypts", [(True, False), (False, True)])
async def test_a_side_without_tls_is_refused(encrypts: tuple[bool, bool]) -> None:
    async with open_sockets(identity(1), encrypts=encrypts) as (_, fabric, recorder):
        with pytest.raises(LinkBroken):
            await fabric.dial(0)
        assert recorder.frames == []


async def test_an_acceptor_that_learns_its_world_late_is_waited_for() -> None:
    ports = [SocketListener(), SocketListener()]
    for port in ports:
        port.encrypts = True
        port.start("127.0.0.1")
    recorder = RecordingReceiver()
    addresses = {0: ("127.0.0.1", ports[0].port)}
    dialler = SocketFabric(ports[1], identity(1), addresses, RecordingReceiver())
    dialling = asyncio.create_task(dialler.dial(0))
    done, _ = await asyncio.wait([dialling], timeout=0.2)
    assert not done  # nobody is admitted yet
    acceptor = SocketFabric(ports[0], identity(0), {}, recorder)
    async with asyncio.timeout(SECONDS):
        link = await dialling
        await link.close()
    for fabric in (acceptor, dialler):
        await fabric.aclose()


# ---------------------------------------------------------------- gRPC


@asynccontextmanager
async def open_streams(
    me: Identity, *, encrypts: tuple[bool, bool] = (True, True)
) -> AsyncIterator[tuple[GrpcFabric, RecordingReceiver]]:
    recorder = RecordingReceiver()
    ports = [GrpcListener(), GrpcListener()]
    for port, is_encrypted in zip(ports, encrypts, strict=True):
        port.encrypts = is_encrypted
        await port.start("127.0.0.1")
    fabrics = [
        GrpcFabric(ports[0], identity(0), {}, recorder),
        GrpcFabric(ports[1], me, {0: f"127.0.0.1:{ports[0].port}"}, RecordingReceiver()),
    ]
    try:
        yield fabrics[1], recorder
    finally:
        for fabric in fabrics:
            await fabric.aclose()


@pytest.mark.parametrize(
    ("me", "encrypts"),
    [(OTHER, (True, True)), (identity(1), (True, False)), (identity(1), (False, True))],
)
async def test_a_stream_of_the_wrong_kind_is_refused(
    me: Identity, encrypts: tuple[bool, bool]
) -> None:
    async with open_streams(me, encrypts=encrypts) as (fabric, recorder):
        with pytest.raises(LinkBroken):
            await fabric.dial(0)
        assert recorder.frames == []
