"""A world on the workers of a Dask cluster.

    with allhands.dask.open_world(client) as world:
        parts = world.run(train, parameters)  # on each worker, with its world joined

A coordinator runs already, and ALLHANDS_URL names it in the environment of the workers: no token
passes through Dask.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dask.distributed import Client

import allhands as ah

JOIN_SECONDS = 120.0
"""For all workers to join; a worker that is busy with another task comes late."""


class DaskWorld:
    """Ranks on workers: rank i is worker i. Functions run on all of them at once."""

    def __init__(self, client: Client, workers: Sequence[str], job: str) -> None:
        self.job = job
        """Name at the coordinator, as for `allhands status`."""
        self._client = client
        self.workers = tuple(workers)
        """Address of each rank's worker."""

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every rank with these arguments; return the results by rank.

        Inside of it `ah.get_rank()` and all other calls are those of the world.

        Raises:
            Exception: that of the first rank in order whose function raised. A rank that others
                wait for fails on them with `PeerFailed`, which names it.
        """
        return self._run([(function, args, kwargs)] * len(self.workers))

    def map(self, function: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        """Call a function on every rank with an item of its own; return the results by rank.

        Raises:
            ValueError: there are not as many items as ranks.
            Exception: as `run` does.
        """
        if len(items) != len(self.workers):
            raise ValueError(f"{len(items)} items for {len(self.workers)} ranks")
        return self._run([(function, (item,), {}) for item in items])

    def _run(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...], Any]]) -> list[Any]:
        futures = [
            # Each on a worker of its own, or ranks would wait for one queued behind them.
            self._client.submit(
                _call, *call, workers=[worker], pure=False, allow_other_workers=False, retries=0
            )
            for worker, call in zip(self.workers, calls, strict=True)
        ]
        results: list[Any] = self._client.gather(futures)
        return results


@contextmanager
def open_world(
    client: Client, workers: Sequence[str] | None = None, *, job: str | None = None
) -> Iterator[DaskWorld]:
    """Join a world on workers of a cluster; at the end of the block they leave it.

    Args:
        client: of the cluster.
        workers: addresses; None: all workers of the cluster. A process is one rank, so they have
            one thread each, or at least no other world.
        job: name at the coordinator; None: one that is new.

    Raises:
        ValueError: there are no workers, or they have no ALLHANDS_URL; nothing was joined.
        JoinRefused, CollectiveTimeout, CoordinatorUnavailable, Unauthenticated: of a worker.
    """
    chosen = list(client.scheduler_info(n_workers=-1)["workers"] if workers is None else workers)
    if not chosen:
        raise ValueError("the cluster has no workers")
    without = [worker for worker, url in client.run(_read_url, workers=chosen).items() if not url]
    if without:
        raise ValueError(
            f"workers {', '.join(sorted(without))} have no ALLHANDS_URL: start `allhands serve`, "
            "and set it for the workers, with ALLHANDS_TLS_DIR beyond one host"
        )
    world = DaskWorld(client, chosen, job or f"dask-{secrets.token_hex(4)}")
    places = [(world.job, rank, len(chosen)) for rank in range(len(chosen))]
    world.map(_join, places)
    try:
        yield world
    finally:
        client.run(_leave, workers=chosen)


def _read_url() -> str:
    return os.environ.get("ALLHANDS_URL", "")


def _join(place: tuple[str, int, int]) -> None:
    job, rank, size = place
    ah.init_process_group(job=job, rank=rank, world_size=size, timeout=JOIN_SECONDS)


def _leave() -> None:
    if ah.is_initialized():
        ah.destroy_process_group()


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
