"""Every store through the one suite."""

import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from allhands.control import Control
from allhands.loop_thread import LoopThread
from allhands.stores import (
    AsyncCoordinatorStore,
    CoordinatorStore,
    HashStore,
    PrefixStore,
    Store,
)
from allhands.testing.daemon import Daemon
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


class TestCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, control: Control) -> Store:
        return CoordinatorStore(control, timeout=60)


class TestPrefixStoreOverCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, control: Control) -> Store:
        control.put("outside", b"")
        return PrefixStore("inside", CoordinatorStore(control, timeout=60))


class _Blocking:
    """The methods of an asyncio store, each waited for."""

    def __init__(self, thread: LoopThread, store: AsyncCoordinatorStore) -> None:
        self._thread = thread
        self._store = store

    @property
    def timeout(self) -> float:
        return self._store.timeout

    def set_timeout(self, timeout: Any) -> None:
        self._store.set_timeout(timeout)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._store, name)
        return lambda *given: self._thread.run(method(*given))


_jobs = itertools.count(1)


class TestAsyncCoordinatorStore(StoreSuite):
    @pytest.fixture
    def store(self, daemon: Daemon) -> Iterator[Store]:
        thread = LoopThread("store")

        async def make() -> AsyncCoordinatorStore:
            return AsyncCoordinatorStore(daemon.endpoint, job=f"async-{next(_jobs)}", timeout=60)

        made = thread.run(make())
        yield _Blocking(thread, made)
        thread.run(made.aclose())
        thread.stop()
