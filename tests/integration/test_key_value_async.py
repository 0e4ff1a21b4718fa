"""The key-value service from asyncio: records, transactions, watches, leases."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import allhands as ah
from allhands import errors, kv
from allhands.aio import AsyncControl, AsyncWatch
from allhands.deadlines import block_deadline
from allhands.testing.daemon import DaemonProcess

_PATIENCE = 60.0


@pytest.fixture
def connect(daemon: DaemonProcess, job_name: str) -> Callable[[], AsyncControl]:
    """Return a factory of clients of the test's job."""
    return lambda: AsyncControl(daemon.endpoint, job=job_name, timeout=_PATIENCE)


@pytest.fixture
async def control(connect: Callable[[], AsyncControl]) -> AsyncIterator[AsyncControl]:
    async with connect() as made:
        yield made


async def take(watch: AsyncWatch, count: int) -> list[ah.KeyEvent]:
    async with asyncio.timeout(_PATIENCE):
        return [await anext(watch) for _ in range(count)]


async def test_a_key_has_a_record(control: AsyncControl) -> None:
    first = await control.put("k", "one")
    second = await control.put("k", b"two")
    assert await control.get("k") == b"two"
    record = await control.get_record("k")
    assert record == ah.KeyRecord("k", b"two", first, second, 2)
    past = await control.get_record("k", revision=first)
    assert past is not None
    assert past.value == b"one"
    assert await control.get_record("none") is None
    with pytest.raises(errors.NotFound):
        await control.get("none")


async def test_ranges_prefixes_and_pages(control: AsyncControl) -> None:
    await control.multi_put({f"a/{one}": str(one) for one in range(5)})
    await control.put("b", "other")
    listed = await control.get_prefix("a/")
    assert [one.key for one in listed] == [f"a/{one}" for one in range(5)]
    found = await control.get_range("a/1", "a/3")
    assert [one.value for one in found] == [b"1", b"2"]
    newest = await control.get_range("a", sort_by="mod", descending=True, limit=1, keys_only=True)
    assert [(one.key, one.value) for one in newest] == [("b", b"")]
    assert (newest.count, newest.has_more) == (6, True)
    assert await control.count("a/") == 5
    assert await control.count() == 6
    pages = []
    async for page in control.pages("a/", limit=2):
        pages.append([one.key for one in page])
        await control.put("a/11", "in between")  # all pages are of one revision
    assert pages == [["a/0", "a/1"], ["a/2", "a/3"], ["a/4"]]
    assert await control.delete("b")
    assert await control.delete_range("a/1", "a/2") == 2
    assert await control.delete_prefix("a/") == 4
    assert await control.count() == 0


async def test_compare_and_set_by_revision(control: AsyncControl) -> None:
    first = await control.compare_and_set("k", "1", revision=0)
    assert first is not None
    assert await control.compare_and_set("k", "2", revision=0) is None
    assert await control.compare_and_set("k", "2", revision=first) == first + 1
    assert await control.get("k") == b"2"


async def test_a_transaction_takes_one_branch(control: AsyncControl) -> None:
    async def claim(name: str) -> ah.TxnResult:
        return await control.transaction(
            [kv.version("leader") == 0],
            [kv.Put("leader", name), kv.Put("log", name, previous=True)],
            [kv.Get("leader"), kv.Delete("log", previous=True)],
        )

    won, lost = await claim("a"), await claim("b")
    assert won
    assert not lost
    assert [one.revision for one in won.results] == [won.revision] * 2
    found, deleted = lost.results
    assert isinstance(found, ah.KeyRange)
    assert found.records[0].value == b"a"
    assert deleted.previous[0].value == b"a"  # type: ignore[union-attr,index]


async def test_wrong_conditions_are_refused_before_anything_is_sent(control: AsyncControl) -> None:
    with pytest.raises(TypeError, match="a condition is made like"):
        await control.transaction([True])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="bytes or str"):
        kv.value("k") == 3  # noqa: B015
    with pytest.raises(TypeError, match="integer from 0 up"):
        kv.version("k") > -1  # noqa: B015
    with pytest.raises(ValueError, match="sorted by key, version"):
        await control.get_range("k", sort_by="size")  # type: ignore[arg-type]


async def test_what_the_coordinator_refuses_is_told_by_class(control: AsyncControl) -> None:
    with pytest.raises(errors.LeaseNotFound, match="no lease 77"):
        await control.put("k", "", lease=77)
    with pytest.raises(errors.LeaseNotFound, match="keep alive lease 77"):
        await control.keep_alive(77)
    with pytest.raises(ValueError, match="two puts of key 'k'"):
        await control.transaction((), [kv.Put("k"), kv.Put("k")])
    revision = await control.put("k", "")
    await control.put("k", "")
    await control.compact(revision + 1)
    with pytest.raises(errors.Compacted) as caught:
        await control.get_record("k", revision=revision)
    assert caught.value.oldest == revision + 1
    with pytest.raises(errors.Compacted) as caught:
        await take(control.watch("k", revision=revision), 1)
    assert caught.value.oldest == revision + 2
    with pytest.raises(errors.Refused, match="is compacted"):
        await control.transaction((), [kv.Put("new"), kv.Get("k", revision=revision)])
    assert await control.get_record("new") is None


async def test_a_watch_yields_each_event_once(
    control: AsyncControl, connect: Callable[[], AsyncControl]
) -> None:
    async with control.watch("n/", prefix=True, previous=True) as watch, connect() as writer:

        async def write() -> None:
            for number in range(300):
                await writer.put(f"n/{number % 3}", str(number))
            await writer.delete_prefix("n/")

        writing = asyncio.create_task(write())
        events = await take(watch, 303)
        await writing
    assert [one.value for one in events[:300]] == [b"%d" % one for one in range(300)]
    assert [one.is_deletion for one in events[300:]] == [True] * 3
    assert events[3].previous is not None
    assert events[3].previous.value == b"0"
    assert [one.revision for one in events] == sorted(one.revision for one in events)


async def test_a_watch_goes_on_from_where_another_ended(control: AsyncControl) -> None:
    watch = control.watch("k", revision=await control.put("keep", "") + 1)
    for number in range(4):
        await control.put("k", str(number))
    assert [one.value for one in await take(watch, 2)] == [b"0", b"1"]
    place = watch.next_revision
    watch.close()
    following = control.watch("k", revision=place)
    assert [one.value for one in await take(following, 2)] == [b"2", b"3"]
    following.close()


async def test_a_closed_watch_ends_also_where_it_waits(control: AsyncControl) -> None:
    async with control.watch("k", puts=False) as watch:
        waiting = asyncio.ensure_future(anext(watch, None))
        await control.put("k", "")  # on the same connection, behind the watch
        watch.close()
        async with asyncio.timeout(_PATIENCE):
            assert await waiting is None
    async with control.watch("k") as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await control.count()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await control.put("k", "seen")
        assert [one.value for one in await take(watch, 1)] == [b"seen"]


async def test_a_lease_lives_as_long_as_its_block(control: AsyncControl) -> None:
    async with control.watch("k") as watch:
        async with control.lease(6) as lease:
            await control.put("k", "", lease=lease)
            left = [(await lease.status()).remaining]
            while left[-1] <= min(left):  # nothing tells of a keep-alive
                await asyncio.sleep(0.1)
                left.append((await lease.status()).remaining)
            status = await lease.status()
            assert (status.granted, status.keys) == (6, ("k",))
            assert await control.leases() == (lease.number,)
            assert not lease.is_lost
        put, deleted = await take(watch, 2)
        assert (put.record.lease, deleted.is_deletion) == (lease.number, True)
    assert await control.leases() == ()
    assert not lease.is_lost


async def test_a_deadline_around_its_beginning_does_not_end_a_lease(
    control: AsyncControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: asyncio.Queue[float | None] = asyncio.Queue()
    request, here = control.request, asyncio.current_task()

    async def note_deadline(asked: object, timeout: float | None = None) -> object:
        if asyncio.current_task() is not here:
            deadlines.put_nowait(block_deadline.get())
        return await request(asked, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(control, "request", note_deadline)
    with ah.deadline(_PATIENCE):
        lease = await control.lease(3).__aenter__()
    async with asyncio.timeout(_PATIENCE):
        assert await deadlines.get() is None
    await lease.stop()


async def test_a_lease_without_keep_alives_ends(control: AsyncControl) -> None:
    lease = await control.grant_lease(2.0)
    async with control.watch("k", puts=False) as watch:
        await control.put("k", "", lease=lease)
        assert [one.key for one in await take(watch, 1)] == ["k"]
    with pytest.raises(errors.LeaseNotFound):
        await control.lease_status(lease)


async def test_a_lease_that_is_revoked_elsewhere_is_lost(control: AsyncControl) -> None:
    async with control.lease(0.5) as lease:
        await control.revoke_lease(lease.number)
        async with asyncio.timeout(_PATIENCE):
            await lease.lost.wait()
        assert lease.is_lost


async def test_a_closed_client_keeps_no_lease_alive(
    control: AsyncControl, connect: Callable[[], AsyncControl]
) -> None:
    async with control.watch("k", puts=False) as watch:
        async with connect() as other:
            lease = await other.lease(2).__aenter__()
            await other.put("k", "", lease=lease)
        assert len(await take(watch, 1)) == 1


async def test_the_other_methods_are_those_of_the_plain_client(control: AsyncControl) -> None:
    assert await control.add("n", 3) == 3
    assert (await control.cas("c", "", "new")).swapped
    assert await control.multi_get(["n", "c"]) == (b"3", b"new")
    assert await control.queue_push("q", "v") == 1
    assert await control.queue_length("q") == 1
    assert await control.queue_pop("q") == b"v"
    assert await control.store.get("n") == b"3"
