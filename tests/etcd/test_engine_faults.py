"""The engine in etcd while nodes are killed, paused and away."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from allhands_server.etcd_address import parse_store
from allhands_server.log.engine import Appended, Slot, Taken
from allhands_server.log.errors import LogUnavailable
from allhands_server.log.etcd import EtcdEngine
from support.etcd_nodes import EtcdNodes


@asynccontextmanager
async def open_engine(nodes: EtcdNodes) -> AsyncIterator[EtcdEngine]:
    engine = await EtcdEngine.open(parse_store(nodes.url))
    try:
        yield engine
    finally:
        await engine.close()


async def append(engine: EtcdEngine, index: int, data: bytes) -> None:
    """Append a slot, again where the outcome is unknown."""
    while True:
        try:
            assert await engine.append(index, data) == Appended()
            return
        except LogUnavailable:
            continue


async def append_during(engine: EtcdEngine, nodes: EtcdNodes, fault: signal.Signals) -> list[Slot]:
    """Append while the cluster's leader has a fault; another daemon tails meanwhile."""
    slots = [Slot(index, b"%d" % index) for index in range(1, 301)]
    heard: list[Slot] = []
    async with open_engine(nodes) as other:

        async def follow() -> None:
            while len(heard) < len(slots):
                try:
                    async for slot in other.tail(len(heard) + 1):
                        heard.append(slot)
                        if len(heard) == len(slots):
                            return
                except LogUnavailable:
                    continue

        following = asyncio.create_task(follow())
        for slot in slots:
            if slot.index == 100:
                (await asyncio.to_thread(nodes.find_leader)).send(fault)
            await append(engine, slot.index, slot.data)
        async with asyncio.timeout(60):
            await following
    assert heard == slots
    return slots


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_no_slot_is_lost_or_doubled_where_a_node_ends_or_stops(
    nodes: EtcdNodes, fault: signal.Signals
) -> None:
    async with open_engine(nodes) as engine:
        slots = await append_during(engine, nodes, fault)
        assert list(await engine.read(1, 1000)) == slots


async def test_a_cluster_that_is_away_is_named_and_found_again(nodes: EtcdNodes) -> None:
    async with open_engine(nodes) as engine:
        assert await engine.append(1, b"one") == Appended()
        for node in nodes.nodes[1:]:
            node.kill()
        with pytest.raises(LogUnavailable, match="does not answer") as raised:
            await engine.append(2, b"two")
        assert nodes.endpoints[0] in str(raised.value)
        for node in nodes.nodes[1:]:
            nodes.restart(node)
        await asyncio.to_thread(nodes.find_leader)
        await append(engine, 2, b"two")
        assert await engine.append(2, b"other") == Taken(b"two")
        assert list(await engine.read(1)) == [Slot(1, b"one"), Slot(2, b"two")]
