"""`init_method="ah://host:port/job"`: ranks of torch.distributed meet at a coordinator.

Who meets there joins the job's world. The coordinator gives ranks to who brings none, and says who
is missing; the keys of the store are those of the job.
"""

import os
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from allhands import config
from allhands.api.joining import identify_parent_process
from allhands.api.world import World
from allhands.coordinator.client import Control
from allhands.deadlines import Timeout, to_seconds
from allhands.options import DEFAULT_TIMEOUT
from allhands.stores import CoordinatorStore
from allhands.torch.rendezvous.store import Store, unwrap_prefix


class WorldStore(Store):
    """Store of a job whose world this process has joined."""

    def __init__(self, world: World, timeout: float) -> None:
        self._control = Control(world.endpoint, job=world.job, timeout=timeout)
        super().__init__(CoordinatorStore(self._control, timeout))
        self.world = world

    def close(self) -> None:
        self._control.close()


class JoinedStores:
    """Stores opened by `ah://`, kept alive here because PyTorch's C++ does not; see `store`.

    Those whose world has been left are let go with the next.
    """

    def __init__(self) -> None:
        self._stores: list[WorldStore] = []

    def join(self, url: str, timeout: Timeout | None) -> WorldStore:
        """Join the world of a job and return its store.

        Raises:
            ValueError: the URL is malformed.
            JoinRefused, CollectiveTimeout, CoordinatorUnavailable, Unauthenticated: see `errors`.
        """
        self._close_ended()
        address, asked = _split_url(url)
        limit = DEFAULT_TIMEOUT if timeout is None else to_seconds(timeout)
        settled = config.resolve_config(
            os.environ,
            init_method=address,
            rank=asked.get("rank", -1),
            world_size=asked.get("world_size", -1),
            timeout=limit,
            parent=identify_parent_process(),
        )
        store = WorldStore(World.join(settled), limit)
        self._stores.append(store)
        return store

    def _close_ended(self) -> None:
        ended = [store for store in self._stores if store.world.is_closed]
        self._stores = [store for store in self._stores if not store.world.is_closed]
        for store in ended:
            store.close()


def find_world(store: Any) -> World | None:
    """Return the live world joined with a store, if any."""
    found = unwrap_prefix(store)
    if isinstance(found, WorldStore) and not found.world.is_closed:
        return found.world
    return None


def _split_url(url: str) -> tuple[str, dict[str, int]]:
    """Split a URL from PyTorch's added parameters."""
    parts = urlsplit(url)
    asked: dict[str, int] = {}
    for name, values in parse_qs(parts.query, keep_blank_values=True).items():
        if name not in ("rank", "world_size"):
            raise ValueError(f"{url!r} has {name!r} in its query: ah://host:port/job is all of it")
        try:
            asked[name] = int(values[-1])
        except ValueError:
            raise ValueError(f"{name} must be a whole number, not {values[-1]!r}") from None
    return urlunsplit(parts._replace(query="")), asked
