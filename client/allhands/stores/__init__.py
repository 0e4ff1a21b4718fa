"""Stores: keys and values shared by the ranks of a job, with c10d's methods."""

from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands.stores.contract import Store
from allhands.stores.coordinator import CoordinatorStore
from allhands.stores.hash import HashStore
from allhands.stores.prefix import PrefixStore

__all__ = ["AsyncCoordinatorStore", "CoordinatorStore", "HashStore", "PrefixStore", "Store"]
