"""Stores: keys and values shared by the ranks of a job, with c10d's methods."""

from allhands.store.contract import Store
from allhands.store.coordinator import CoordinatorStore
from allhands.store.hash import HashStore
from allhands.store.prefix import PrefixStore

__all__ = ["CoordinatorStore", "HashStore", "PrefixStore", "Store"]
