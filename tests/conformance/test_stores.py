"""Every store through the one suite."""

import pytest

from allhands.control import Control
from allhands.stores import CoordinatorStore, HashStore, PrefixStore, Store
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
