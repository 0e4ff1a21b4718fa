"""Threads as ranks of torch.distributed: ranks of a real world, each with a default group.

    run_threads(4, body)        # what body(rank) returns on each of 4 threads, by rank

It is `allhands.testing` with PyTorch's bookkeeping: groups, worlds and backward passes of a thread
are its own, as in PyTorch's harness of that kind, whose parts it uses; but there is no pretence of
a backend. Gradients are computed on the thread that asks for them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import (
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

import allhands.torch  # noqa: F401
from allhands import testing

Body = Callable[[int], Any]


def run_threads(
    size: int, body: Body, *, timeout: float = 30.0, deadline: float = 60.0
) -> list[Any]:
    """Call `body(rank)` on `size` threads; return the results by rank.

    On each, `init_process_group("allhands")` has been called with that timeout.

    Raises: as what `allhands.testing.run_threads` returns.
    """
    store = dist.HashStore()

    def on_rank(rank: int) -> Any:
        with default_group(rank, size, store, timeout):
            return body(rank)

    with _worlds_of_threads():
        return testing.run_threads(size, init=False, deadline=deadline)(on_rank)


@contextmanager
def _worlds_of_threads() -> Iterator[None]:
    """Give each thread a separate default group and name space of groups."""
    _install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        yield
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        _uninstall_threaded_pg()


@contextmanager
def default_group(rank: int, size: int, store: Any, timeout: float) -> Iterator[None]:
    """Be a rank for a block; an error in the block releases waiting ranks."""
    limit = timedelta(seconds=timeout)
    with torch.autograd.set_multithreading_enabled(False):
        dist.init_process_group("allhands", store=store, rank=rank, world_size=size, timeout=limit)
        try:
            yield
        except BaseException as error:
            dist.group.WORLD.abort(f"rank {rank} raised {type(error).__name__}: {error}")
            raise
        finally:
            dist.destroy_process_group()
