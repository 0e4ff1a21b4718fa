"""The store of a coordinator beside PyTorch's TCPStore, itself and behind PrefixStores."""

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from allhands import stores
from allhands.torch.rendezvous.store import Store
from support.torch.ranks import run_ranks

_SHORT = timedelta(milliseconds=50)


def _in_a_process(body: Callable[[], Any]) -> Any:
    """Call `body` in a process fit to host a coordinator: the test runner goes on to fork."""
    return run_ranks(1, lambda _: body(), init=False)[0]


def _outcome(call: Callable[[], Any]) -> Any:
    """Return a call's result, or the class of the error."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def _told(store: Any, raw: bool) -> Iterator[Any]:
    """Call every method of a store; return the results."""
    store.set_timeout(timedelta(seconds=5))
    store.set("text", "grüße")
    store.set("bytes", b"\x00\xff")
    yield store.get("text"), store.get("bytes")
    yield store.add("number", 3), store.add("number", -4), store.get("number")
    yield store.compare_set("swap", "", "first"), store.compare_set("swap", "other", "second")
    yield store.compare_set("swap", "first", "second"), store.get("swap")
    yield store.compare_set("absent", "expected", "desired"), store.check(["absent"])
    store.append("long", "1")
    store.append("long", "2")
    yield store.get("long")
    store.multi_set(["one", "two"], ["1", "2"])
    yield store.multi_get(["two", "one"]), store.multi_get([])
    yield _outcome(lambda: store.multi_set(["one", "two"], ["1"]))
    yield store.check(["one", "two"]), store.check(["one", "three"]), store.check([])
    before = store.num_keys()
    yield store.delete_key("one"), store.delete_key("one"), store.num_keys() - before
    yield store.wait(["two"]), store.wait([])
    yield _outcome(lambda: store.wait(["two", "missing"], _SHORT))
    yield store.has_extended_api(), store.timeout
    store.set_timeout(_SHORT)
    yield _outcome(lambda: store.get("missing")), _outcome(lambda: store.wait(["missing"]))
    yield _outcome(lambda: store.multi_get(["two", "missing"])), store.timeout
    store.set_timeout(timedelta(seconds=5))
    store.barrier("gate", 1)
    yield _outcome(lambda: store.barrier("wide gate", 2, _SHORT))
    if raw:  # C++ does not reach these of a store in Python
        store.queue_push("queue", "1")
        store.queue_push("queue", b"\x02")
        yield store.queue_len("queue"), store.check(["queue", "two"])
        yield store.queue_pop("queue"), store.queue_pop("queue", block=False)
        yield store.queue_len("queue"), store.queue_len("none"), store.check(["queue"])
        yield _outcome(lambda: store.queue_pop("queue", block=False))
        store.set_timeout(_SHORT)
        yield _outcome(lambda: store.queue_pop("queue"))
        store.set_timeout(timedelta(seconds=5))
        yield {"two", "long"} <= set(store.list_keys())
    clone = store.clone()
    gc.collect()
    clone.set("by the clone", "here")
    yield store.get("by the clone")
    clone.set_timeout(_SHORT)
    yield _outcome(lambda: clone.get("missing"))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_p115_a_coordinators_store_answers_as_pytorchs_tcp_store(depth: int) -> None:
    def within(store: Any) -> Any:
        for level in range(depth):
            store = dist.PrefixStore(f"level{level}", store)
        return store

    def body() -> tuple[list[Any], list[Any]]:
        native = stores.TCPStore("127.0.0.1", 0, is_master=True)
        ours, theirs = Store(native), dist.TCPStore("127.0.0.1", 0, is_master=True)
        told = [*_told(within(ours), depth == 0)], [*_told(within(theirs), depth == 0)]
        native.close()
        return told

    ours, theirs = _in_a_process(body)
    assert ours == theirs
    assert len(ours) > 15


def test_p115_a_timeout_set_on_a_prefix_store_is_that_of_the_store() -> None:
    whole = Store(stores.HashStore(30.0))
    part = dist.PrefixStore("part", whole)
    part.set_timeout(_SHORT)
    with pytest.raises(dist.DistStoreError, match=r"(?i)timeout.*part/nobody"):
        part.get("nobody")
    assert whole.timeout == _SHORT


def test_p115_a_wait_ends_when_another_thread_sets_the_key() -> None:
    store = dist.PrefixStore("part", whole := Store(stores.HashStore(30.0)))
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    whole.set("part/late", b"here")
    waiting.join(30)
    assert found == [b"here"]


def test_p115_what_holds_no_integer_is_not_added_to() -> None:
    store = dist.PrefixStore("part", whole := Store(stores.HashStore()))
    store.set("word", "seven")
    with pytest.raises(dist.DistStoreError, match=r"part/word.*holds no integer"):
        store.add("word", 1)
    assert whole.get("part/word") == b"seven"


def test_p115_a_coordinator_that_has_ended_is_a_network_error() -> None:
    def body() -> str:
        native = stores.TCPStore("127.0.0.1", 0, is_master=True)
        store = Store.connect(f"ah://127.0.0.1:{native.port}/job", timeout=5)
        store.set("key", "value")
        native.close()
        with pytest.raises(dist.DistNetworkError) as caught:
            dist.PrefixStore("part", store).get("key")
        return f"{native.port} {caught.value}"

    port, _, said = _in_a_process(body).partition(" ")
    assert "coordinator" in said
    assert port in said


@pytest.mark.parametrize("is_behind_a_prefix", [False, True])
def test_p003_a_hosted_store_lives_as_long_as_any_clone(is_behind_a_prefix: bool) -> None:
    def body() -> bytes:
        native: Any = stores.TCPStore("127.0.0.1", 0, is_master=True)
        port = native.port
        first = Store(stores.PrefixStore("part", native) if is_behind_a_prefix else native)
        del native
        gc.collect()
        first.set("key", b"value")
        clone = first.clone()
        last = clone.clone()
        del first, clone
        gc.collect()
        with stores.TCPStore("127.0.0.1", port, timeout=10) as other:
            assert other.list_keys() == ["part/key" if is_behind_a_prefix else "key"]
        value = bytes(last.get("key"))
        del last
        gc.collect()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()
        return value

    assert _in_a_process(body) == b"value"


def test_p097_the_barrier_of_a_store_says_who_has_come() -> None:
    store = Store(stores.HashStore())
    expected = (
        r"(?i)Timed out initializing process group in store based barrier.*num_workers_joined"
    )
    for one in (store, dist.PrefixStore("part", store)):
        with pytest.raises(dist.DistError, match=expected):
            distributed_c10d._store_based_barrier(0, one, "world", 2, _SHORT, _SHORT)


@pytest.mark.parametrize("kind", ["FileStore", "TCPStore", "HashStore", "FakeStore"])
def test_p003_each_store_of_this_package_can_stand_for_one_of_pytorchs(
    kind: str, tmp_path: Any
) -> None:
    def body() -> bytes:
        native: Any = {
            "FileStore": lambda: stores.FileStore(str(tmp_path / "store"), 1),
            "TCPStore": lambda: stores.TCPStore("127.0.0.1", 0, 1, is_master=True),
            "HashStore": stores.HashStore,
            "FakeStore": stores.FakeStore,
        }[kind]()
        part = dist.PrefixStore("part", whole := Store(stores.PrefixStore("all", native)))
        part.set("key", "value")
        assert whole.get("part/key") == b"value"
        assert native.get("all/part/key") == b"value"
        return bytes(part.get("key"))

    assert _in_a_process(body) == b"value"


def test_a_store_without_a_job_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ValueError, match="ah://host:port/job"):
        Store.connect("ah://127.0.0.1:1")


def test_the_wait_of_a_store_holds_up_no_other_thread() -> None:
    store = Store(stores.HashStore(20.0))
    waiting = [threading.Thread(target=store.get, args=(f"key {i}",)) for i in range(4)]
    for thread in waiting:
        thread.start()
    for i in range(4):
        store.set(f"key {i}", b"")
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
