"""Stores and uses of stores: rows 2, 3, 97 and 115 of the parity table."""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

import allhands as ah
from support.ranks.addresses import free_port

KINDS = ("file", "tcp", "hash", "prefix", "world")
Make = Callable[[float], ah.Store]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the notices of these coordinators to these tests."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[None]:
    """Join a world of one rank."""
    ah.init_process_group(f"file://{tmp_path / 'meeting'}", rank=0, world_size=1, timeout=10)
    yield
    ah.destroy_process_group()


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Return a factory of the parametrized store, with a timeout."""
    made: list[ah.Store] = []

    def one(timeout: float) -> ah.Store:
        match request.param:
            case "file":
                made.append(ah.FileStore(tmp_path / "store", 2, timeout))
            case "tcp":
                made.append(ah.TCPStore("127.0.0.1", 0, None, True, timeout))
            case "hash":
                made.append(ah.HashStore(timeout))
            case "prefix":
                made.append(ah.PrefixStore("prefix", ah.HashStore(timeout)))
            case _:
                request.getfixturevalue("world")
                return ah.store(timeout)
        return made[-1]

    yield one
    for store in made:
        if isinstance(store, ah.FileStore | ah.TCPStore):
            store.close()


every_kind = pytest.mark.parametrize("make", KINDS, indirect=True)


@pytest.mark.parametrize("method", ["file", "tcp"])
def test_p002_the_store_of_a_world_times_out_with_the_world(tmp_path: Path, method: str) -> None:
    place = (
        f"file://{tmp_path / 'meeting'}" if method == "file" else f"tcp://127.0.0.1:{free_port()}"
    )
    ah.init_process_group(place, rank=0, world_size=1, timeout=timedelta(seconds=1))
    try:
        store = ah.store()
        begun = time.monotonic()
        with pytest.raises(ah.StoreTimeout, match=r"(?i)timeout"):
            store.get("nobody sets this")
        assert 0.95 < time.monotonic() - begun < 20  # far from what a store has by itself
    finally:
        ah.destroy_process_group()


@every_kind
def test_p002_a_get_of_an_absent_key_waits_as_long_as_the_store_says(make: Make) -> None:
    store = make(10)
    store.set_timeout(0.2)
    begun = time.monotonic()
    with pytest.raises(ah.StoreTimeout, match=r"(?i)timeout.*absent"):
        store.get("absent")
    assert 0.15 < time.monotonic() - begun < 9  # less than what it had before


def test_p003_every_store_is_made_as_in_c10d(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    stores: list[ah.Store] = [ah.HashStore(), ah.FileStore(path, 1)]
    master = ah.TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=10), wait_for_workers=False)
    worker = ah.TCPStore("127.0.0.1", master.port, 2, False, timedelta(seconds=10))
    stores += [master, worker]
    assert (worker.host, worker.port, worker.world_size) == ("127.0.0.1", master.port, 2)
    assert stores[1].path == path  # type: ignore[attr-defined]
    stores += [ah.PrefixStore("p", store) for store in stores]
    for store in stores:
        store.set("key", "value")
        assert store.get("key") == b"value"
    assert stores[0].list_keys() == ["key", "p/key"]
    worker.close()
    master.close()


def test_p003_a_fake_store_waits_for_nobody() -> None:
    store = ah.FakeStore(60)
    assert store.get("theirs") == b""
    store.wait(["theirs"], 60)
    assert store.check(["theirs"])
    assert store.queue_pop("theirs") == b""
    store.set("mine", b"value")
    assert store.clone().multi_get(["mine", "theirs"]) == [b"value", b""]
    assert store.num_keys() == 1


@pytest.mark.parametrize("make", ["file", "tcp", "hash"], indirect=True)
def test_p097_a_store_based_barrier_names_what_it_waits_for(make: Make) -> None:
    store = make(10)
    text = re.escape(
        "Timed out initializing process group in store based barrier on rank: 1, for key: "
        "store_based_barrier_key:some group (world_size=3, num_workers_joined=1, timeout=0.1 s)"
    )
    with pytest.raises(ah.StoreTimeout, match=text):
        ah.store_based_barrier(1, store, "some group", 3, timedelta(seconds=0.1))


@pytest.mark.parametrize("make", ["file", "tcp", "hash"], indirect=True)
def test_p097_a_store_based_barrier_opens_when_all_have_come_and_again(make: Make) -> None:
    store = make(10)
    order: list[int] = []
    count = itertools.count()

    def rank(number: int) -> None:
        for _ in range(3):
            order.append(next(count))
            ah.store_based_barrier(number, store, "group", 4, 10)
            order.append(-1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rank, range(4)))
    # Between the last that came and the first that left of a turn there is nobody of the next.
    came = [at for at, what in enumerate(order) if what >= 0]
    left = [at for at, what in enumerate(order) if what < 0]
    for turn in range(3):
        assert came[4 * turn + 3] < left[4 * turn]


@every_kind
def test_p115_every_method_of_c10d(make: Make) -> None:
    store = make(10)
    assert store.add("count", 5) == 5
    assert store.add("count", -2) == 3
    assert store.compare_set("lock", "", "mine") == b"mine"
    assert store.compare_set("lock", "theirs", "other") == b"mine"
    store.append("log", "a")
    store.append("log", "b")
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["y", "x", "log"]) == [b"2", b"1", b"ab"]
    assert store.list_keys() == ["count", "lock", "log", "x", "y"]
    assert store.num_keys() == 5
    assert store.check(["x", "y"])
    assert not store.check(["x", "z"])
    assert store.delete_key("x")
    assert not store.delete_key("x")
    store.wait(["y", "count"])
    with pytest.raises(ah.StoreTimeout):
        store.wait(["x"], timedelta(seconds=0.01))
    store.set_timeout(timedelta(seconds=7))
    assert store.timeout == 7
    store.queue_push("queue", "first")
    store.queue_push("queue", "second")
    assert store.queue_len("queue") == 2
    assert store.queue_pop("queue") == b"first"
    assert store.queue_pop("queue", block=False) == b"second"
    with pytest.raises(ah.NotFound):
        store.queue_pop("queue", block=False)
    assert store.has_extended_api()
    assert store.clone().get("y") == b"2"
