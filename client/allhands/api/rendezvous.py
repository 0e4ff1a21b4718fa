"""Meeting through a store that the processes have already: where their world's coordinator is."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from allhands.errors import StoreTimeout
from allhands.stores import CoordinatorStore, PrefixStore
from allhands.timeout import Timeout
from allhands_proto import notice

_PREFIX = "allhands/rendezvous"


@dataclass(frozen=True, slots=True)
class Meeting:
    """What `config.settle` takes of it."""

    init_method: str
    token: str | None = None
    tls_ca: str | None = None


class Keys(Protocol):
    """What it takes of a `Store` to meet through it."""

    def add(self, key: str, amount: int) -> int: ...

    def set(self, key: str, value: bytes | str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None: ...


def meet_through(store: Keys, rank: int, world_size: int, timeout: float) -> Meeting:
    """Agree with the other ranks on where to meet; every rank has to come, world after world.

    That is the coordinator of the store itself, if it has one; else one that rank 0 is going to
    host on loopback, so then all must be on one host.

    Raises:
        ValueError: rank or world size are missing.
        StoreTimeout: rank 0 did not come.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"store= needs rank and world_size, not {rank} and {world_size}")
    until = time.monotonic() + timeout
    came = store.add(f"{_PREFIX}/came", 1)
    # One name for each world: the store may serve one after the other.
    key = f"{_PREFIX}/{(came - 1) // world_size}"
    if rank == 0:
        store.set(key, secrets.token_hex(8))
    try:
        store.wait([key], max(until - time.monotonic(), 0))
    except StoreTimeout as error:
        raise StoreTimeout(
            f"timeout: rank {rank} waited {timeout:g} s for rank 0 to come to the store"
        ) from error
    name = store.get(key).decode()
    whole: object = store
    while isinstance(whole, PrefixStore):
        whole = whole.underlying_store
    if isinstance(whole, CoordinatorStore):
        endpoint = whole.endpoint
        url = f"ah://{endpoint.address.target}/world-{name}"
        return Meeting(url, endpoint.token, endpoint.tls_ca)
    return Meeting(f"file://{notice.directory() / f'gathering-{name}.json'}")
