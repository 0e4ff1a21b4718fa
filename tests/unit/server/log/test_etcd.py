"""The engine in etcd: outcomes that are unknown, slots dropped meanwhile, and refusals."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from allhands_server.log import etcd, etcd_client
from allhands_server.log.engine import Appended, Slot, Snapshot, Taken
from allhands_server.log.errors import LogDamaged, LogFull, LogTooNew, LogUnavailable
from allhands_server.log.etcd import EtcdEngine
from support.fake_etcd import FakeEtcd, Fault
from support.faulty_log import iterate_chunks


@pytest.fixture
async def fake() -> AsyncIterator[FakeEtcd]:
    made = FakeEtcd()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def engine(fake: FakeEtcd) -> AsyncIterator[EtcdEngine]:
    opened = await EtcdEngine.open(fake.get_address())
    yield opened
    await opened.close()


@pytest.mark.parametrize("is_done", [True, False])
async def test_an_append_whose_answer_was_lost_is_found_again(
    fake: FakeEtcd, engine: EtcdEngine, is_done: bool
) -> None:
    fake.fault = Fault(2, is_done)
    assert await engine.append(1, b"mine") == Appended()
    assert list(await engine.read(1)) == [Slot(1, b"mine")]
    assert await engine.append(2, b"next") == Appended()


async def test_an_append_fails_by_name_where_no_answer_comes(
    fake: FakeEtcd, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fault = Fault(1 << 30, is_done=True)
    large = bytes(3 << 20)
    with monkeypatch.context() as soon:
        soon.setattr(etcd_client, "CALL_SECONDS", 0.2)
        for data in (b"mine", large):
            cause = r"127\.0\.0\.1:\d+: (UNAVAILABLE \(etcdserver|DEADLINE_EXCEEDED)"
            with pytest.raises(LogUnavailable, match=cause):
                await engine.append(1, data)
    fake.fault = Fault(0, is_done=False)
    assert await engine.append(1, b"mine") == Appended()
    assert await engine.append(2, large) == Appended()
    assert await engine.append(2, large) == Appended()  # as of an attempt without an answer
    assert await engine.append(1, b"other") == Taken(b"mine")


async def test_the_endpoint_that_answers_is_used(fake: FakeEtcd) -> None:
    address = fake.get_address()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        endpoints = (silent_endpoint, "127.0.0.1:1", *address.endpoints)
        engine = await EtcdEngine.open(replace(address, endpoints=endpoints))
        assert await engine.append(1, b"mine") == Appended()
        await engine.close()


async def test_a_full_cluster_has_taken_nothing_in(fake: FakeEtcd, engine: EtcdEngine) -> None:
    text = "etcdserver: mvcc: database space exceeded"
    fake.fault = Fault(1, False, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    with pytest.raises(LogFull, match=r"space exceeded.*: compact and defragment"):
        await engine.append(1, b"mine")
    assert await engine.append(1, b"mine") == Appended()


async def test_a_full_cluster_may_have_taken_in_what_came_before(
    fake: FakeEtcd, engine: EtcdEngine
) -> None:
    full = Fault(1, False, grpc.StatusCode.RESOURCE_EXHAUSTED, "mvcc: database space exceeded")
    fake.fault = Fault(1, True, following=full)
    with pytest.raises(LogUnavailable, match="space exceeded"):
        await engine.append(1, b"mine")
    assert list(await engine.read(1)) == [Slot(1, b"mine")]


async def test_a_refusal_that_stays_is_reported_at_once(fake: FakeEtcd, engine: EtcdEngine) -> None:
    text = "etcdserver: permission denied"
    fake.fault = Fault(1, False, grpc.StatusCode.PERMISSION_DENIED, text)
    with pytest.raises(LogUnavailable, match="PERMISSION_DENIED"):
        await engine.append(1, b"mine")
    assert fake.transactions == 1


async def test_a_user_authenticates_again_when_the_token_has_ended(fake: FakeEtcd) -> None:
    fake.token = "first"
    engine = await EtcdEngine.open(fake.get_address(user="me", password="right"))
    assert await engine.append(1, b"one") == Appended()
    assert fake.authentications == 1
    fake.token = "second"
    assert await engine.append(2, b"two") == Appended()
    assert list(await engine.read(1)) == [Slot(1, b"one"), Slot(2, b"two")]
    assert fake.authentications == 2
    await engine.close()
    with pytest.raises(LogUnavailable, match="invalid user ID or password") as raised:
        await EtcdEngine.open(fake.get_address(user="me", password="wrong"))
    assert "wrong" not in str(raised.value)


async def test_a_daemon_that_was_away_does_not_take_a_slot_that_was_dropped(
    fake: FakeEtcd, engine: EtcdEngine
) -> None:
    await engine.append(1, b"ours")
    other = await EtcdEngine.open(fake.get_address())
    for index in range(2, 6):
        assert await other.append(index, b"theirs") == Appended()
    await other.save_snapshot(5, iterate_chunks(b"state"))
    await other.trim(6)
    assert await engine.append(2, b"ours") == Taken(b"")
    assert b"test/log/%020d" % 2 not in fake.keys
    assert await engine.get_bounds() == (6, 5)
    assert await other.append(6, b"theirs") == Appended()
    await other.close()


async def test_what_stands_below_the_first_slot_does_not_exist(
    fake: FakeEtcd, engine: EtcdEngine
) -> None:
    for index in range(1, 6):
        await engine.append(index, b"%d" % index)
    await engine.save_snapshot(4, iterate_chunks(b"state"))
    await engine.trim(5)
    await fake.put(b"test/log/%020d" % 2, b"Wlate")  # of a daemon that ended before it noticed
    engine = await EtcdEngine.open(fake.get_address())
    assert await engine.get_bounds() == (5, 5)
    assert list(await engine.read(1)) == [Slot(5, b"5")]
    await engine.save_snapshot(5, iterate_chunks(b"state"))
    await engine.trim(6)
    assert [key for key in fake.keys if key.startswith(b"test/log/")] == []
    await engine.close()


async def test_nothing_of_older_snapshots_and_large_slots_stays(
    fake: FakeEtcd, engine: EtcdEngine
) -> None:
    for index in range(1, 4):
        await engine.append(index, bytes(3 << 20))
    for index in range(1, 4):
        await engine.save_snapshot(index, iterate_chunks(b"%d" % index, bytes(5 << 20)))
    assert await engine.load_snapshot() == Snapshot(3, (b"3", bytes(5 << 20)))
    await engine.trim(4)
    assert len(fake.keys) == 1 + 1 + 5
    assert all(len(one.value) < 2 << 20 for one in fake.keys.values())


async def test_an_older_snapshot_does_not_replace_a_later_one(
    fake: FakeEtcd, engine: EtcdEngine
) -> None:
    other = await EtcdEngine.open(fake.get_address())
    for index in range(1, 4):
        await engine.append(index, b"x")
    await engine.save_snapshot(3, iterate_chunks(b"later"))
    await other.save_snapshot(2, iterate_chunks(b"earlier"))
    assert await other.load_snapshot() == Snapshot(3, (b"later",))
    await other.close()


async def test_a_tail_goes_on_when_its_watch_ends(
    fake: FakeEtcd, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "_QUIET_SECONDS", 0.02)
    heard: asyncio.Queue[Slot] = asyncio.Queue()

    async def follow() -> None:
        async for slot in engine.tail(1):
            heard.put_nowait(slot)

    following = asyncio.create_task(follow())
    other = await EtcdEngine.open(fake.get_address())
    for index in range(1, 6):
        await asyncio.sleep(0.05)  # longer than a watch
        await other.append(index, b"%d" % index)
        async with asyncio.timeout(30):
            assert await heard.get() == Slot(index, b"%d" % index)
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    await other.close()


async def test_a_tail_has_each_slot_once_and_in_order(
    fake: FakeEtcd, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "_QUIET_SECONDS", 60)
    for index in range(1, 4):
        await engine.append(index, b"%d" % index)
    slots = engine.tail(3)
    assert await anext(slots) == Slot(3, b"3")
    coming = asyncio.ensure_future(anext(slots))
    await fake.is_watched.wait()
    await fake.put(b"test/log/00000000000000000001", b"Wlate")
    await fake.put(b"test/log/00000000000000000004", b"W4", is_seen=False)
    await fake.put(b"test/log/00000000000000000005", b"W5")
    async with asyncio.timeout(30):
        assert await coming == Slot(4, b"4")
        assert await anext(slots) == Slot(5, b"5")


async def test_damage_is_named(fake: FakeEtcd, engine: EtcdEngine) -> None:
    await engine.append(1, b"x")
    await fake.put(b"test/log/other", b"")
    with pytest.raises(LogDamaged, match="which is no slot"):
        await engine.read(1)
    del fake.keys[b"test/log/other"]
    await engine.save_snapshot(1, iterate_chunks(b"a", b"b"))
    lost = max(key for key in fake.keys if b"snapshots/" in key)
    del fake.keys[lost]
    with pytest.raises(LogDamaged, match="lost parts of its snapshot"):
        await engine.load_snapshot()
    await fake.put(b"test/snapshot", b'{"version": 2}')
    with pytest.raises(LogTooNew, match="format 2"):
        await EtcdEngine.open(fake.get_address())
    await fake.put(b"test/snapshot", b"?")
    with pytest.raises(LogDamaged, match="is none of allhands"):
        await EtcdEngine.open(fake.get_address())
