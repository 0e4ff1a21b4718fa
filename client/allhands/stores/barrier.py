"""A barrier over a store alone."""

import logging
import time

from allhands.deadlines import Timeout, to_seconds
from allhands.errors import StoreTimeout
from allhands.stores.contract import Store

logger = logging.getLogger(__name__)

_PREFIX = "store_based_barrier_key"
_LOG_INTERVAL = 10.0


def store_based_barrier(
    rank: int, store: Store, group_name: str, world_size: int, timeout: Timeout = 30.0
) -> None:
    """Wait until `world_size` ranks have called this with one store and name; reusable.

    A rank whose wait timed out still counts as arrived: the name is then used up, take another.

    Raises:
        StoreTimeout: not all ranks arrived in time; the text says how many did.
        ValueError: `rank` is not in 0..world_size-1.
    """
    limit = to_seconds(timeout)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a world of {world_size}")
    key = f"{_PREFIX}:{group_name}"
    came = store.add(key, 1)
    turn, until = (came - 1) // world_size, time.monotonic() + limit
    last = f"{key}:last_worker:{turn}"
    if came % world_size == 0:
        store.set(last, b"1")
        # Of those before nobody waits for the one before this: all are here.
        store.delete_key(f"{key}:last_worker:{turn - 1}")
    while True:
        left = until - time.monotonic()
        try:
            store.wait([last], min(max(left, 0), _LOG_INTERVAL))
            return
        except StoreTimeout as error:
            joined = store.add(key, 0) - turn * world_size
            if left > _LOG_INTERVAL:
                logger.info(
                    "rank %d waits in the store based barrier for key %s (world_size=%d, "
                    "num_workers_joined=%d, timeout=%g s)",
                    rank,
                    key,
                    world_size,
                    joined,
                    limit,
                )
                continue
            raise StoreTimeout(
                f"Timed out initializing process group in store based barrier on rank: {rank}, "
                f"for key: {key} (world_size={world_size}, num_workers_joined={joined}, "
                f"timeout={limit:g} s)"
            ) from error
