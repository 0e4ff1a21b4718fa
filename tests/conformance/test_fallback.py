"""Fallback between two fabrics: peers within reach of only one fabric."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from allhands.testing.link_suite import LinkSuite, RecordingReceiver, make_frame
from allhands.transport.grpc_stream import GrpcLink
from allhands.transport.handshake import Identity
from allhands.transport.link import Fabric, LinkBroken, Receiver
from allhands.transport.ports import Ports
from allhands.transport.socket_link import SocketLink


@dataclass
class Introduced:
    rank: int
    address: str
    data_port: int


def name(rank: int) -> str:
    return f"rank {rank} (host h, pid 1)"


@asynccontextmanager
async def world(
    receivers: Sequence[Receiver],
    *,
    data_ports: bool = True,
    last: int | None = None,
    port_range: range | None = None,
    encrypts: bool = False,
) -> AsyncIterator[list[Fabric]]:
    """Yield the fabrics of a world; `last` is the last rank's announced data port."""
    ports = [Ports("socket" if data_ports else "grpc", port_range) for _ in receivers]
    for one in ports:
        await one.start("127.0.0.1", encrypts=encrypts)
    members = [
        Introduced(rank, f"127.0.0.1:{one.port}", one.data_port) for rank, one in enumerate(ports)
    ]
    if last is not None:
        members[-1].data_port = last
    identities = [
        Identity("job", "incarnation", b"s" * 32, f"member-{rank}", rank, len(members))
        for rank in range(len(members))
    ]
    fabrics = [
        one.make_fabric(me, members, receiver, name)
        for one, me, receiver in zip(ports, identities, receivers, strict=True)
    ]
    yield fabrics
    for fabric in fabrics:
        await fabric.aclose()


class TestBothWays(LinkSuite):
    def fabrics(self, receivers: Sequence[Receiver]):  # type: ignore[no-untyped-def]
        return world(receivers)


RANGE = range(31400, 31500)


class TestInARange(LinkSuite):
    encrypts = False

    def fabrics(self, receivers: Sequence[Receiver]):  # type: ignore[no-untyped-def]
        return world(receivers, port_range=RANGE, encrypts=self.encrypts)


class TestEncryptedInARange(TestInARange):
    encrypts = True


class TestOnlyTheSecond(LinkSuite):
    def fabrics(self, receivers: Sequence[Receiver]):  # type: ignore[no-untyped-def]
        return world(receivers, last=1)  # where nobody listens


async def test_links_are_raw_sockets_where_these_reach(caplog: pytest.LogCaptureFixture) -> None:
    async with world([RecordingReceiver(), RecordingReceiver()]) as fabrics:
        assert isinstance(await fabrics[0].dial(1), SocketLink)
        assert isinstance(await fabrics[1].dial(0), SocketLink)
    assert not caplog.records


async def test_links_are_of_grpc_where_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    async with world([RecordingReceiver(), RecordingReceiver()], data_ports=False) as fabrics:
        assert isinstance(await fabrics[0].dial(1), GrpcLink)
    assert not caplog.records


@pytest.mark.parametrize("data_ports", [False, True])
async def test_each_encrypted_listener_has_a_port_of_the_range(data_ports: bool) -> None:
    recorders = [RecordingReceiver() for _ in range(3)]
    async with world(recorders, data_ports=data_ports, port_range=RANGE, encrypts=True) as fabrics:
        for me, fabric in enumerate(fabrics):
            for peer in range(3):
                if peer != me:
                    await (await fabric.dial(peer)).send([make_frame(me)])
        for peer, recorder in enumerate(recorders):
            await recorder.wait_counts(frames=2)
            assert sorted(recorder.frames) == [
                (me, make_frame(me)) for me in range(3) if me != peer
            ]


@pytest.mark.parametrize("data_port", [0, 1])
async def test_who_cannot_be_reached_by_raw_socket_is_linked_by_grpc_and_named_once(
    caplog: pytest.LogCaptureFixture, data_port: int
) -> None:
    recorders = [RecordingReceiver(), RecordingReceiver()]
    with caplog.at_level(logging.WARNING):
        async with world(recorders, last=data_port) as fabrics:
            link = await fabrics[0].dial(1)
            assert isinstance(link, GrpcLink)
            await link.send([make_frame(1)])
            await link.close()
            assert recorders[1].frames == [(0, make_frame(1))]
            assert isinstance(await fabrics[1].dial(0), SocketLink)  # each way for itself
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("the link to rank 1 (host h, pid 1) goes over gRPC: ")


async def test_who_is_not_there_at_all_is_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world([RecordingReceiver(), RecordingReceiver()]) as fabrics:
        await fabrics[1].aclose()
        with pytest.raises(LinkBroken):
            await fabrics[0].dial(1)
    assert not caplog.records
