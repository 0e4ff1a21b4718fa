"""Conformance of the engines of the coordinator's log, the same for each."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from allhands_server.etcd_address import EtcdAddress
from allhands_server.log.engine import Appended, LogEngine, Slot, Snapshot, Taken
from allhands_server.log.etcd import EtcdEngine
from allhands_server.log.memory import MemoryEngine
from allhands_server.log.sqlite import SqliteEngine
from support.etcd_nodes import ENDPOINTS_VARIABLE
from support.fake_etcd import FakeEtcd
from support.faulty_log import iterate_chunks

OpenEngine = Callable[[], Awaitable[LogEngine]]


_NODES = os.environ.get(ENDPOINTS_VARIABLE, "")
"""Of a real cluster, which `make test-etcd` starts."""
_ENGINES = ["memory", "sqlite", "fake etcd", *(["etcd"] if _NODES else [])]


@pytest.fixture
async def etcd_address(request: pytest.FixtureRequest) -> AsyncIterator[EtcdAddress]:
    """Yield an address without any keys, in the cluster that the test's engine needs."""
    path = f"test-{secrets.token_hex(8)}"
    kind = request.node.callspec.params["open_engine"]
    if "etcd" not in kind:
        yield EtcdAddress(())
        return
    if kind == "etcd":
        yield EtcdAddress(tuple(_NODES.split(",")), path)
        return
    fake = FakeEtcd()
    await fake.start()
    yield fake.get_address(path)
    await fake.stop()


@pytest.fixture(params=_ENGINES)
async def open_engine(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_address: EtcdAddress
) -> AsyncIterator[OpenEngine]:
    """Open the engine of the test; again: the same log, after the one before was closed."""
    opened: list[LogEngine] = []

    async def open_one() -> LogEngine:
        for one in opened:
            await one.close()
        if request.param == "memory":
            opened.append(opened[0] if opened else MemoryEngine())
        elif "etcd" in request.param:
            opened.append(await EtcdEngine.open(etcd_address))
        else:
            opened.append(await SqliteEngine.open(tmp_path / "data"))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


async def fill(engine: LogEngine, count: int) -> list[Slot]:
    slots = [Slot(index, b"frame %d" % index) for index in range(1, count + 1)]
    for slot in slots:
        assert await engine.append(slot.index, slot.data) == Appended()
    return slots


async def test_slots_are_read_in_order_as_they_were_appended(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    assert await engine.get_bounds() == (1, 0)
    assert list(await engine.read(1)) == []
    slots = await fill(engine, 5)
    assert list(await engine.read(1)) == slots
    assert list(await engine.read(4)) == slots[3:]
    assert list(await engine.read(2, limit=2)) == slots[1:3]
    assert list(await engine.read(6)) == []
    assert await engine.get_bounds() == (1, 5)


async def test_what_was_appended_is_there_for_the_next_opener(open_engine: OpenEngine) -> None:
    slots = await fill(await open_engine(), 3)
    engine = await open_engine()
    assert list(await engine.read(1)) == slots
    assert await engine.append(4, b"more") == Appended()


async def test_a_slot_is_created_once(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await fill(engine, 2)
    assert await engine.append(2, b"other") == Taken(b"frame 2")
    results = await asyncio.gather(*(engine.append(3, b"%d" % one) for one in range(8)))
    assert results[0] == Appended()
    assert results[1:] == [Taken(b"0")] * 7
    assert list(await engine.read(3)) == [Slot(3, b"0")]


@pytest.mark.parametrize("index", [4, 7])
async def test_a_gap_is_refused(open_engine: OpenEngine, index: int) -> None:
    engine = await open_engine()
    await fill(engine, 2)
    with pytest.raises(ValueError, match=f"slot {index} cannot follow slot 2"):
        await engine.append(index, b"x")
    assert await engine.get_bounds() == (1, 2)


async def test_a_tail_waits_for_the_slots_to_come(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await fill(engine, 2)
    heard: list[list[Slot]] = [[], []]
    enough = [asyncio.Event(), asyncio.Event()]

    async def follow(place: int) -> None:
        async for slot in engine.tail(2):
            heard[place].append(slot)
            if slot.index == 300:
                enough[place].set()

    followers = [asyncio.create_task(follow(place)) for place in range(2)]
    for index in range(3, 301):
        await engine.append(index, b"%d" % index)
    async with asyncio.timeout(10):
        for one in enough:
            await one.wait()
    for one in followers:
        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one
    expected = [Slot(2, b"frame 2"), *(Slot(one, b"%d" % one) for one in range(3, 301))]
    assert heard == [expected, expected]


async def test_the_latest_snapshot_is_kept(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    assert await engine.load_snapshot() is None
    await fill(engine, 4)
    await engine.save_snapshot(2, iterate_chunks(b"a", b"b"))
    await engine.save_snapshot(3, iterate_chunks(b"c"))
    engine = await open_engine()
    assert await engine.load_snapshot() == Snapshot(3, (b"c",))
    await engine.save_snapshot(4, iterate_chunks())
    assert await engine.load_snapshot() == Snapshot(4, ())


async def test_slots_are_dropped_only_where_a_snapshot_has_their_state(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine()
    slots = await fill(engine, 4)
    with pytest.raises(ValueError, match="slots below 2 cannot be dropped"):
        await engine.trim(2)
    await engine.save_snapshot(3, iterate_chunks(b"state"))
    with pytest.raises(ValueError, match="the snapshot ends with slot 3"):
        await engine.trim(5)
    await engine.trim(3)
    assert list(await engine.read(1)) == slots[2:]
    assert await engine.get_bounds() == (3, 4)
    with pytest.raises(ValueError, match="slot 2 has been trimmed"):
        await engine.append(2, b"x")


async def test_a_log_of_dropped_slots_alone_goes_on_where_it_was(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await fill(engine, 4)
    await engine.save_snapshot(4, iterate_chunks(b"state"))
    await engine.trim(5)
    engine = await open_engine()
    assert await engine.get_bounds() == (5, 4)
    assert await engine.append(5, b"next") == Appended()
    assert list(await engine.read(1)) == [Slot(5, b"next")]


async def test_an_empty_log_takes_the_snapshot_of_another(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.save_snapshot(9, iterate_chunks(b"state"))
    assert await engine.get_bounds() == (10, 9)
    assert await engine.append(10, b"next") == Appended()
    with pytest.raises(ValueError, match="the log ends with slot 10"):
        await engine.save_snapshot(11, iterate_chunks(b"later"))
    assert await engine.load_snapshot() == Snapshot(9, (b"state",))


async def test_large_and_empty_slots_come_back_whole(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    large = bytes(range(256)) * (1 << 14)
    assert await engine.append(1, large) == Appended()
    assert await engine.append(2, b"") == Appended()
    assert list(await engine.read(1)) == [Slot(1, large), Slot(2, b"")]
