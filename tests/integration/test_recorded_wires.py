"""Recorded conversations of older clients with older daemons, replayed with today's sides."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint, configure_channel
from allhands.coordinator.session import Session
from allhands.transport.handshake import Identity
from allhands.transport.socket_stream import SocketListener
from allhands_proto import kv_handshake
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import peer_pb2
from allhands_proto.versions import write_versions
from allhands_server import embedded
from allhands_server.config import ServerConfig
from support import wires
from support.inbox_receiver import Receiver
from support.wires.older_daemon import OlderDaemon
from support.wires.replay import OlderClient, Recording

_FOLDER = Path(wires.__file__).parent
_NAMES = ("before_log", "before_versions")
_TOKEN = "token-of-a-test"
_METADATA = (("authorization", f"Bearer {_TOKEN}"),)
_PATIENCE = 60.0


@pytest.fixture(params=_NAMES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(_FOLDER / f"{request.param}.json")


@pytest.fixture
async def daemon() -> AsyncIterator[embedded.RunningCoordinator]:
    running = await embedded.start(ServerConfig(token=_TOKEN, post_notice=False, drain_timeout=0))
    yield running
    await running.stop()


async def test_an_older_client_understands_todays_daemon(
    daemon: embedded.RunningCoordinator, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proofs of the recorded client are of the secret and the nonces of its daemon."""
    told = recording.list_messages("DescribeCoordinator", "reply")[0][0]
    daemon._lines.secret = wire.CoordinatorDescription.FromString(told).kv_secret
    challenges = (one[0] for one in recording.list_messages("line", "reply"))
    nonces = [wire.KvChallenge.FromString(one).nonce for one in challenges]
    monkeypatch.setattr(kv_handshake, "new_nonce", lambda: nonces.pop(0))
    client = OlderClient(recording, daemon.port, _METADATA)
    try:
        await client.run()
    finally:
        await client.close()
    assert client.differences == []
    assert (client.replies > 20, nonces) == (True, [])


async def test_todays_client_understands_an_older_daemon(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nonce is that of the recorded client, for which its daemon made the proof."""
    line = max(recording.list_messages("line", "request"), key=len)
    nonce = wire.KvHello.FromString(line[0]).nonce
    monkeypatch.setattr(kv_handshake, "new_nonce", lambda: nonce)
    async with OlderDaemon(recording).run() as port:
        endpoint = Endpoint(Address("127.0.0.1", port), _TOKEN)
        joins = [
            wire.Join(job="j", rank=rank, world_size=2, host="h", pid=1, port=1)
            for rank in range(2)
        ]
        for join in joins:
            write_versions(join)
        sessions = await asyncio.gather(
            *(Session.join(configure_channel(endpoint), join, _PATIENCE) for join in joins)
        )
        for rank, session in enumerate(sessions):
            assert session.joined.rank == rank
            assert [one.rank for one in session.members] == [0, 1]
            await session.open_group("g", [0, 1])
            assert await session.wait_monitored_barrier("world", 1, _PATIENCE) is None
        with Control(endpoint, job="j", timeout=_PATIENCE) as control:
            assert await asyncio.to_thread(_use, control) == (b"v", 3, 1, [0, 1])
            assert control._kv_pool._connections
        for session in sessions:
            stream = session._stream
            assert stream is not None
            await stream.write(wire.SessionRequest(leave=wire.Leave()))
            async with asyncio.timeout(_PATIENCE):
                while not (await session._read_event(stream)).HasField("leave_accepted"):
                    pass  # what its peers did comes before
            await session.aclose()


def _use(control: Control) -> tuple[bytes, int, int, list[int]]:
    """Make the calls of the recorded program."""
    control.put("k", "v")
    control.wait(["k"])
    value, count = control.get("k"), control.add("n0", 3)
    generation = control.barrier("b", "p0", ["p0", "p1"])
    return value, count, generation, [one.rank for one in control.members()]


async def test_a_rank_of_an_older_version_is_refused_by_its_peer(recording: Recording) -> None:
    [[hello, _]] = recording.list_messages("link", "request")
    said = peer_pb2.Hello.FromString(hello[8:])
    listener = SocketListener()
    listener.start("127.0.0.1")
    identity = Identity(said.job, said.incarnation, b"secret", "member", said.to_rank, 2)
    listener.admit(identity, Receiver())
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(hello)
        async with asyncio.timeout(_PATIENCE):
            _, _, kind, nbytes = struct.unpack("<2sBBI", await reader.readexactly(8))
            text = (await reader.readexactly(nbytes)).decode()
        writer.close()
    finally:
        await listener.aclose()
    assert kind == 1
    older = f"rank {said.from_rank}"
    assert f"{older} version 1; {older} is older: upgrade allhands there" in text
