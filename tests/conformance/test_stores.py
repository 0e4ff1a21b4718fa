"""Every store through the store suite."""

import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint
from allhands.runtime.loop_thread import LoopThread
from allhands.stores import (
    AsyncCoordinatorStore,
    CoordinatorStore,
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from allhands.testing.daemon import DaemonProcess
from allhands.testing.store_suite import StoreSuite


class TestHashStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return HashStore(timeout=60)


class TestPrefixStoreOverHashStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        whole = HashStore(timeout=60)
        whole.set("outside", b"")
        return PrefixStore("inside", whole)


class TestPrefixStoreInPrefixStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return PrefixStore("inner", PrefixStore("outer", HashStore(timeout=60)))


class TestFileStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        made = FileStore(tmp_path / "store", timeout=60)
        yield made
        made.close()


class TestSecondFileStoreOfAFile(StoreSuite):
    """Two stores of one file, as in two processes: writes of either are read by both."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        stores = [FileStore(tmp_path / "store", timeout=60) for _ in range(2)]
        yield _Alternating(stores)
        for one in stores:
            one.close()


class TestTCPStore(StoreSuite):
    """The master's store and a second one, as in two processes."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with (
            TCPStore("127.0.0.1", 0, is_master=True, timeout=60) as master,
            TCPStore("127.0.0.1", master.port, timeout=60) as other,
        ):
            yield _Alternating([master, other])


class TestCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, control: Control) -> Store:
        return CoordinatorStore(control, timeout=60)


class TestPrefixStoreOverCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, control: Control) -> Store:
        control.put("outside", b"")
        return PrefixStore("inside", CoordinatorStore(control, timeout=60))


class _Alternating:
    """Methods of several stores of the same keys, each call on the next store."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._turns = itertools.cycle(stores)

    @property
    def timeout(self) -> float:
        return self._stores[0].timeout

    def set_timeout(self, timeout: Any) -> None:
        for store in self._stores:
            store.set_timeout(timeout)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(next(self._turns), name)
        return method


class _Blocking:
    """The methods of an asyncio store, each waited for."""

    def __init__(self, thread: LoopThread, endpoint: Endpoint, job: str) -> None:
        async def make() -> AsyncCoordinatorStore:
            return AsyncCoordinatorStore(endpoint, job=job, timeout=60)

        self._thread, self._endpoint, self._job = thread, endpoint, job
        self._store = thread.run(make())
        self._clones: list[_Blocking] = []

    @property
    def timeout(self) -> float:
        return self._store.timeout

    def set_timeout(self, timeout: Any) -> None:
        self._store.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "_Blocking":
        self._clones.append(_Blocking(self._thread, self._endpoint, self._job))
        return self._clones[-1]

    def close(self) -> None:
        for one in self._clones:
            one.close()
        self._thread.run(self._store.aclose())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._store, name)
        return lambda *given, **named: self._thread.run(method(*given, **named))


_jobs = itertools.count(1)


class TestAsyncCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, daemon: DaemonProcess) -> Iterator[Store]:
        thread = LoopThread("store")
        made = _Blocking(thread, daemon.endpoint, f"async-{next(_jobs)}")
        yield made
        made.close()
        thread.stop()
