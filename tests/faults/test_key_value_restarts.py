"""The key-value service over kills of the daemon: nothing lost, no event missed or doubled."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands import errors, kv
from allhands.aio import AsyncControl
from support.served_daemon import ServedDaemon

_PATIENCE = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    served = ServedDaemon(tmp_path)
    served.start()
    yield served
    served.close()


def connect(daemon: ServedDaemon) -> AsyncControl:
    return AsyncControl(daemon.endpoint, job="j", timeout=_PATIENCE)


async def restart(daemon: ServedDaemon) -> None:
    await asyncio.to_thread(daemon.kill)
    await asyncio.to_thread(daemon.start)


async def put_again_and_again(control: AsyncControl, key: str, number: int) -> int:
    """Put until it is acknowledged; return the revision."""
    while True:
        try:
            return await control.put(key, str(number))
        except errors.CoordinatorUnavailable:
            await asyncio.sleep(0.1)  # nothing tells when there is one again


async def test_a_watch_misses_and_doubles_nothing_over_kills(daemon: ServedDaemon) -> None:
    seen: list[tuple[int, bytes]] = []
    async with connect(daemon) as watcher, connect(daemon) as writer:
        async with watcher.watch("n/", prefix=True) as watch:

            async def see() -> None:
                async for event in watch:
                    seen.append((event.revision, event.value))
                    if event.key == "n/end":
                        return

            seeing = asyncio.create_task(see())
            acknowledged: list[tuple[int, bytes]] = []
            for number in range(300):
                revision = await put_again_and_again(writer, f"n/{number % 5}", number)
                acknowledged.append((revision, b"%d" % number))
                if number in (100, 200):
                    await restart(daemon)
            acknowledged.append((await put_again_and_again(writer, "n/end", 0), b"0"))
            async with asyncio.timeout(_PATIENCE):
                await seeing
        # A put that was not acknowledged may have been made, and then was made again.
        assert [one for one in seen if one in set(acknowledged)] == acknowledged
        revisions = [revision for revision, _ in seen]
        assert revisions == sorted(set(revisions))
        values = [int(value) for _, value in seen[:-1]]
        assert sorted(set(values)) == list(range(300))
        assert len(values) <= 302
        # What is seen afterwards is what was seen then.
        first = revisions[0]
        async with connect(daemon) as other:
            again = other.watch("n/", prefix=True, revision=first)
            assert [(one.revision, one.value) for one in [await anext(again) for _ in seen]] == seen


async def test_records_and_leases_are_there_after_a_kill(daemon: ServedDaemon) -> None:
    async with connect(daemon) as control:
        lease = await control.grant_lease(30.0)
        ended = await control.grant_lease(30.0)
        await control.put("bound", "1", lease=lease)
        await control.put("gone", "1", lease=ended)
        await control.transaction([], [kv.Put("a", "1"), kv.Put("b", "1")])
        await control.put("a", "2")
        await control.revoke_lease(ended)
        before = await control.get_prefix("")
    await restart(daemon)
    async with connect(daemon) as control:
        assert await control.get_prefix("") == before
        assert await control.leases() == (lease,)
        status = await control.lease_status(lease)
        assert (status.granted, status.keys) == (30.0, ("bound",))
        assert 0 < status.remaining <= 30.0
        past = await control.get_record("a", revision=before.revision - 2)
        assert past is not None
        assert past.value == b"1"
        revision = await control.put("c", "")
        assert revision == before.revision + 1
        assert await control.grant_lease(30.0) not in (lease, ended)


async def test_a_lease_has_the_time_that_was_left_after_a_kill(daemon: ServedDaemon) -> None:
    async with connect(daemon) as control:
        used, fresh = await control.grant_lease(300.0), await control.grant_lease(300.0)
        left = 300.0
        while left > 297.0:  # nothing tells of time that passes
            await asyncio.sleep(0.2)
            left = (await control.lease_status(used)).remaining
        await control.keep_alive(fresh)
    for _ in range(2):
        await restart(daemon)
        async with connect(daemon) as control:
            again = (await control.lease_status(used)).remaining
            renewed = (await control.lease_status(fresh)).remaining
            assert left - 60 < again <= left
            assert renewed >= again + 2.5
            left = again


async def test_a_lease_that_is_kept_alive_lives_through_a_kill(daemon: ServedDaemon) -> None:
    async with connect(daemon) as control, control.lease(20.0) as lease:
        await control.put("k", "", lease=lease)
        await restart(daemon)
        async with connect(daemon) as other:
            assert (await other.lease_status(lease.number)).keys == ("k",)
            assert not lease.is_lost
            async with other.watch("k", puts=False) as watch:
                other_watch = asyncio.ensure_future(anext(watch))
                await control.revoke_lease(lease.number)
                async with asyncio.timeout(_PATIENCE):
                    assert (await other_watch).is_deletion


async def test_a_lease_that_nobody_keeps_ends_after_a_restart(daemon: ServedDaemon) -> None:
    async with connect(daemon) as control:
        lease = await control.grant_lease(3.0)
        revision = await control.put("k", "", lease=lease)
    await restart(daemon)
    async with connect(daemon) as control:
        watch = control.watch("k", revision=revision + 1)
        async with asyncio.timeout(_PATIENCE):
            assert (await anext(watch)).is_deletion
