"""Stores in a file and at a port as processes have them: begun, shared, killed, gone."""

import gc
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import allhands as ah
from programs import stores
from support.ranks.addresses import free_port
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster


@pytest.fixture(autouse=True)
def runtime(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the notices of these coordinators where those of the cluster's processes are."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.runtime))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


# ---------------------------------------------------------------- in a file


def test_processes_wake_each_other_through_a_file(cluster: Cluster, path: Path) -> None:
    child = cluster.start(stores.count_in_a_file, str(path))
    store = ah.FileStore(path, 2, 30)
    assert store.get("theirs") == b"hello"
    store.set("ours", "there")
    for _ in range(200):
        store.add("n", 1)
    child.expect("got")
    assert store.get("n") == b"400"
    store.close()


def test_a_writer_that_is_killed_has_written_all_of_a_change_or_nothing(
    cluster: Cluster, path: Path
) -> None:
    """No acknowledged write is lost, no write is partial, and no store blocks."""
    store = ah.FileStore(path, -1, 10)
    for _ in range(5):
        child = cluster.start(stores.write_for_ever, str(path))
        child.expect("ready")
        before = int(store.get("done")) if store.check(["done"]) else 0
        while store.add("done", 0) < before + 3:
            store.multi_get(["done"])  # it writes all the time: where it is killed is chance
        os.kill(child.child.pid, signal.SIGKILL)
        child.ended()
        first, second = store.multi_get(["a", "b"])
        assert first == second
        assert len(first) % 20_000 == 0
        assert len(store.get("log")) - int(store.get("done")) in range(6)
        store.set("still", b"usable")
    store.close()


@pytest.mark.parametrize("moment", ["INSERT INTO pairs (key, value) VALUES ('b'", "COMMIT"])
def test_a_writer_that_is_killed_in_the_middle_of_a_change_has_written_nothing(
    cluster: Cluster, path: Path, moment: str
) -> None:
    store = ah.FileStore(path, -1, 10)
    store.multi_set(["a", "b"], ["old", "old"])
    child = cluster.start(stores.die_at_a_statement, str(path), moment)
    assert child.ended() == -signal.SIGKILL
    assert store.multi_get(["a", "b"]) == [b"old", b"old"]
    assert store.add("count", 1) == 1
    store.close()


def test_the_last_store_of_a_file_deletes_it_and_not_before(path: Path) -> None:
    first, second = (ah.FileStore(path, 2) for _ in range(2))
    other = first.clone()
    first.close()
    assert path.exists()
    second.close()
    second.close()
    assert not path.exists()
    assert list(path.parent.glob("store*")) == []
    del other


def test_a_file_is_kept_until_its_whole_world_has_come(path: Path) -> None:
    ah.FileStore(path, 2).close()
    assert path.exists()
    ah.FileStore(path, 2).close()
    assert not path.exists()


def test_a_file_of_a_world_of_any_size_is_kept(path: Path) -> None:
    store = ah.FileStore(path)
    store.set("key", b"value")
    store.close()
    assert ah.FileStore(path).get("key") == b"value"


def test_a_store_that_nobody_holds_is_closed(path: Path) -> None:
    store = ah.FileStore(path, 1)
    kept = store.clone()
    del store
    assert kept.num_keys() == 0
    assert path.exists()
    del kept
    assert not path.exists()


def test_stores_of_killed_processes_and_of_ended_ones_count_as_closed(
    cluster: Cluster, path: Path
) -> None:
    killed = cluster.start(stores.open_and_wait, str(path))
    killed.expect("open")
    os.kill(killed.child.pid, signal.SIGKILL)
    killed.ended()
    ended = cluster.start(stores.open_and_end, str(path))
    assert ended.ended() == 0
    ah.FileStore(path, 3).close()
    assert not path.exists()


def test_a_forked_child_may_use_the_store_and_leaves_it_to_its_parent(
    cluster: Cluster, path: Path
) -> None:
    child = cluster.start(stores.fork_a_child, str(path))
    told = child.expect("child")
    assert (told["status"], told["value"]) == (0, "child")
    assert child.ended() == 0
    assert not path.exists()


def test_a_file_that_is_none_of_a_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "letter"
    other.write_bytes(b"Dear Sir or Madam, " * 100)
    with pytest.raises(ValueError, match=r"letter.*FileStore"):
        ah.FileStore(other, 1)
    assert other.read_bytes() == b"Dear Sir or Madam, " * 100
    with pytest.raises(OSError, match=r"directory must exist"):
        ah.FileStore(tmp_path / "nowhere" / "store")
    with pytest.raises(ValueError, match="world_size"):
        ah.FileStore(tmp_path / "store", 0)


# ---------------------------------------------------------------- at a port


@pytest.fixture
def master() -> Iterator[ah.TCPStore]:
    with ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=10) as made:
        yield made


def test_a_store_waits_for_its_master_to_come(cluster: Cluster) -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ah.TCPStore, "localhost", port, 2, False, 20)
        child = cluster.start(stores.host_a_store, port)
        with waiting.result(PATIENCE) as store:
            assert store.get("key") == b"value"
            store.set("answer", b"42")
            assert child.expect("seen")["value"] == "42"
    assert child.ended() == 0


def test_a_master_waits_for_all_workers_and_says_how_many_came() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        master = pool.submit(ah.TCPStore, "127.0.0.1", port, 3, True, 20)
        with ah.TCPStore("127.0.0.1", port, 3, False, 20) as first:
            assert not master.done()
            with ah.TCPStore("127.0.0.1", port, 3, False, 20):
                whole = master.result(PATIENCE)
                assert first.num_keys() == 0
                whole.close()
    with pytest.raises(ah.StoreTimeout, match=r"timeout: 1 of 2 stores have come"):
        ah.TCPStore("127.0.0.1", port, 2, True, 0.2)
    # It has given the port back.
    ah.TCPStore("127.0.0.1", port, 2, True, 5, wait_for_workers=False).close()


def test_without_a_master_a_store_gives_up_in_time() -> None:
    begun = time.monotonic()
    with pytest.raises((ah.CoordinatorUnavailable, ah.StoreTimeout)):
        ah.TCPStore("127.0.0.1", free_port(), None, False, 0.3)
    assert time.monotonic() - begun < PATIENCE


def test_a_store_is_closed_to_who_has_not_its_token(
    master: ah.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ah.Unauthenticated):
        ah.TCPStore("127.0.0.1", master.port, timeout=5, token="guessed")
    with ah.TCPStore("127.0.0.1", 0, is_master=True, token="agreed") as closed:
        ah.TCPStore("127.0.0.1", closed.port, token="agreed").close()


def test_a_master_beyond_loopback_must_not_be_open_to_strangers() -> None:
    with pytest.raises(ValueError, match="token"):
        ah.TCPStore("0.0.0.0", 0, is_master=True)


def test_with_its_master_a_store_ends_at_once(master: ah.TCPStore) -> None:
    with (
        ah.TCPStore("127.0.0.1", master.port, timeout=60) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        begun = threading.Event()
        waiting = pool.submit(lambda: (begun.set(), store.get("never")))
        begun.wait(PATIENCE)
        master.close()
        assert isinstance(waiting.exception(PATIENCE), ah.CoordinatorUnavailable)


def test_a_hosted_store_lives_as_long_as_a_clone_of_it() -> None:
    master = ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=10)
    port, part = master.port, ah.PrefixStore("part", master).clone()
    ended = weakref.ref(master)
    del master
    gc.collect()
    assert ended() is None
    part.set("key", b"value")
    with ah.TCPStore("127.0.0.1", port, timeout=10) as other:
        assert other.get("part/key") == b"value"
    clone = part.clone()
    del part
    gc.collect()
    assert clone.get("key") == b"value"
    del clone
    gc.collect()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_closing_a_hosted_store_closes_its_clones() -> None:
    with ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=10) as master:
        clone = master.clone()
    with pytest.raises(ah.AllhandsError):
        clone.get("key")


def test_ports_and_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="port"):
        ah.TCPStore("127.0.0.1", 0)
    with pytest.raises(ValueError, match="port"):
        ah.TCPStore("127.0.0.1", 70_000, is_master=True)
    with pytest.raises(ValueError, match="world_size"):
        ah.TCPStore("127.0.0.1", 1, 0)


# ---------------------------------------------------------------- worlds that meet there


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_a_world_meets_through_a_store_again_and_again(
    cluster: Cluster, path: Path, kind: str
) -> None:
    port = free_port()
    ranks = [cluster.start(stores.meet_twice, rank, str(path), kind, port) for rank in range(2)]
    for process in ranks:
        assert process.expect("done")["sums"] == [3.0, 5.0]
    for process in ranks:  # the first has the store that the other one is about to leave
        process.say()
        assert process.ended() == 0


def test_a_world_of_a_store_needs_rank_and_size_and_no_other_place() -> None:
    with pytest.raises(ValueError, match="rank and world_size"):
        ah.init_process_group(store=ah.HashStore())
    with pytest.raises(ValueError, match="one of them"):
        ah.init_process_group("env://", store=ah.HashStore(), rank=0, world_size=1)
    with pytest.raises(ah.StoreTimeout, match="rank 0"):
        ah.init_process_group(store=ah.HashStore(), rank=1, world_size=2, timeout=0.05)
