"""Locks, semaphores and elections for tasks."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import pytest

import allhands as ah
from allhands import kv
from allhands.aio import AsyncControl, AsyncLock
from allhands.testing.daemon import DaemonProcess
from support.async_poll import poll_async

_PATIENCE = 60.0
_SHORT = 3.0
"""A deadline that passes, with room for the calls before the wait."""
_TTL = 9.0
"""A loss is noticed after a third of it, and nothing is lost on a busy host."""


@pytest.fixture
def connect(daemon: DaemonProcess, job_name: str) -> Callable[[], AsyncControl]:
    """Return a factory of clients of the test's job."""
    return lambda: AsyncControl(daemon.endpoint, job=job_name, timeout=_PATIENCE)


@pytest.fixture
async def control(connect: Callable[[], AsyncControl]) -> AsyncIterator[AsyncControl]:
    async with connect() as made:
        yield made


@pytest.fixture
async def other(connect: Callable[[], AsyncControl]) -> AsyncIterator[AsyncControl]:
    async with connect() as made:
        yield made


async def await_waiting(lock: AsyncLock, count: int) -> None:
    async def waits() -> bool:
        return (await lock.status()).waiting == count

    await poll_async(waits)


async def test_a_lock_is_held_by_one_at_a_time_in_the_order_of_asking(
    control: AsyncControl, other: AsyncControl
) -> None:
    order: list[int] = []
    inside = 0

    async def hold(number: int) -> None:
        nonlocal inside
        async with (control, other)[number % 2].lock("l"):
            inside += 1
            order.append(number)
            await asyncio.sleep(0)
            assert inside == 1
            inside -= 1

    async with asyncio.TaskGroup() as group, control.lock("l") as first:
        for number in range(6):
            group.create_task(hold(number))
            await await_waiting(first, number + 1)
        assert not order
        assert await control.transaction([first.condition], [kv.Put("k", "v")])
    assert order == list(range(6))
    assert await control.count("_allhands/locks/") == 0


async def test_a_task_that_waits_for_itself_is_told(control: AsyncControl) -> None:
    async with control.lock("l") as lock:
        with pytest.raises(ah.LockHeld, match="this object holds"):
            await lock.acquire()
        with pytest.raises(ah.LockHeld, match="not re-entrant"):
            await control.lock("l").acquire()
        other = asyncio.create_task(control.lock("l").try_acquire())
        assert not await other


async def test_a_deadline_names_the_holder_and_leaves_the_queue(
    control: AsyncControl, other: AsyncControl
) -> None:
    async with control.lock("l") as lock:
        with pytest.raises(ah.LockTimeout, match=f"pid {os.getpid()} since 20") as caught:
            await other.lock("l", timeout=_SHORT).acquire()
        assert [one.key for one in caught.value.holders] == [lock.key]
        assert (await lock.status()).waiting == 0
        with ah.deadline(_SHORT), pytest.raises(ah.LockTimeout, match="held by"):
            await other.lock("l").acquire()
        assert (await lock.status()).waiting == 0


async def test_a_cancelled_task_leaves_the_queue(
    control: AsyncControl, other: AsyncControl
) -> None:
    async with control.lock("l") as lock:
        waiting = asyncio.create_task(other.lock("l").acquire())
        await await_waiting(lock, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await await_waiting(lock, 0)
        # At any moment of the way in.
        for turns in range(12):
            waiting = asyncio.create_task(other.lock("l").acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await await_waiting(lock, 0)
    await other.lock("l").acquire()


async def test_the_loss_of_the_lease_is_told_to_holder_and_waiter(
    control: AsyncControl, other: AsyncControl
) -> None:
    lock = control.lock("l", ttl=_TTL)
    await lock.acquire()
    waiting = asyncio.create_task(other.lock("l", ttl=_TTL).acquire())
    await await_waiting(lock, 1)
    for number in await control.leases():
        await control.revoke_lease(number)
    async with asyncio.timeout(_PATIENCE):
        await lock.lost.wait()
        with pytest.raises(ah.LockLost):
            await waiting
    with pytest.raises(ah.LockLost, match="lost before its release"):
        await lock.release()
    async with control.lock("l", ttl=_TTL):
        pass


async def test_a_closed_client_lets_go_at_once(
    connect: Callable[[], AsyncControl], other: AsyncControl
) -> None:
    async with connect() as control:
        await control.lock("l", ttl=3600).acquire()
        waiting = asyncio.create_task(other.lock("l").acquire())
        await await_waiting(control.lock("l"), 1)
    async with asyncio.timeout(_PATIENCE):
        await waiting


async def test_one_session_ends_without_locks(control: AsyncControl) -> None:
    async with control.lock("a", ttl=3), control.lock("b", ttl=3):
        assert len(await control.leases()) == 1

    async def is_over() -> bool:
        return not await control.leases()

    await poll_async(is_over)
    async with control.lock("a", ttl=3):
        assert len(await control.leases()) == 1


async def test_a_semaphore_is_held_by_as_many_as_it_has_permits(
    control: AsyncControl, other: AsyncControl
) -> None:
    first, second = control.semaphore("s", 2), control.semaphore("s", 2)
    await first.acquire()
    await second.acquire()
    waiting = [asyncio.create_task(other.semaphore("s", 2).acquire()) for _ in range(2)]
    await await_waiting(first, 2)
    with pytest.raises(ah.Refused, match="with 2 permits"):
        await other.semaphore("s", 3).acquire()
    await second.release()
    async with asyncio.timeout(_PATIENCE):
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        await first.release()
        await asyncio.gather(*waiting)


async def test_an_election_has_one_leader_after_the_other(
    control: AsyncControl, other: AsyncControl
) -> None:
    async with (
        asyncio.timeout(_PATIENCE),
        contextlib.aclosing(other.election("e").observe()) as watching,
    ):
        async with control.election("e") as first:
            await first.campaign("one")
            seen = [await anext(watching)]
            second = other.election("e")
            candidate = asyncio.create_task(second.campaign("two"))
            await first.proclaim("one more")
            seen.append(await anext(watching))
            assert await other.election("e").leader() == seen[1]
        await candidate
        seen.append(await anext(watching))
        await second.proclaim("three")
        seen.append(await anext(watching))
    assert [one.value for one in seen] == [b"one", b"one more", b"two", b"three"]
    assert seen[2].revision > seen[1].revision
    with pytest.raises(ah.LockLost):
        await first.proclaim("late")
