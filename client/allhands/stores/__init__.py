"""Stores: keys and values shared by the ranks of a job, with c10d's methods."""

from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands.stores.barrier import store_based_barrier
from allhands.stores.contract import Store
from allhands.stores.coordinator import CoordinatorStore
from allhands.stores.fake import FakeStore
from allhands.stores.file import FileStore
from allhands.stores.hash import HashStore
from allhands.stores.prefix import PrefixStore
from allhands.stores.tcp import TCPStore

__all__ = [
    "AsyncCoordinatorStore",
    "CoordinatorStore",
    "FakeStore",
    "FileStore",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "store_based_barrier",
]
