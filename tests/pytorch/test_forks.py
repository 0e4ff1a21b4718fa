"""Forked processes of torch.distributed's ranks: loaders' workers, and ranks of new worlds."""

import faulthandler
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset

import allhands as ah
from support.torch.ranks import BACKEND, on_ranks

_HANG_SECONDS = 40
_SIZE = 2


def _end_if_it_hangs() -> None:
    """Print the stacks and end this process after too long a time."""
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(_HANG_SECONDS)


class Collecting(Dataset[torch.Tensor]):
    """Collects garbage for every item, as a long run does sooner or later."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        _end_if_it_hangs()
        gc.collect()
        return torch.full((2,), float(index))


class Sharded(IterableDataset[int]):
    """Gives the shard of this rank in the group of the parent process."""

    def __iter__(self) -> Iterator[int]:
        gc.collect()
        assert dist.is_initialized()
        return iter(range(dist.get_rank(), 8, dist.get_world_size()))


def _loaded(**options: Any) -> float:
    loader = DataLoader(
        Collecting(),
        num_workers=2,
        multiprocessing_context="fork",
        timeout=_HANG_SECONDS,
        **options,
    )
    return float(sum(batch.sum() for batch in loader))


def _summed(value: float = 1.0) -> float:
    x = torch.full((3,), value)
    dist.all_reduce(x)
    return float(x[0])


@on_ranks(_SIZE)
def test_loaders_with_forked_workers_beside_calls(rank: int) -> None:
    assert _summed() == _SIZE
    works = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(3)]
    assert _loaded(batch_size=2, persistent_workers=True) == 56.0
    for work in works:
        assert work is not None
        work.wait()
    assert _loaded() == 56.0
    assert _summed() == _SIZE


@on_ranks(_SIZE)
def test_a_loaders_workers_know_the_rank_that_forked_them(rank: int) -> None:
    loader = DataLoader(Sharded(), num_workers=1, multiprocessing_context="fork")
    assert [int(one) for one in loader] == list(range(rank, 8, _SIZE))
    assert _summed() == _SIZE


@on_ranks(_SIZE)
def test_loaders_with_forked_workers_after_the_group(rank: int) -> None:
    gc.disable()  # what the group leaves is there when the workers are forked
    assert _summed() == _SIZE
    dist.destroy_process_group()
    assert _loaded() == 56.0
    gc.enable()


def _rank_of_another_world(rank: int, store: str, backend: str, told: str) -> None:
    _end_if_it_hangs()
    gc.collect()
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=_SIZE,
        timeout=timedelta(seconds=20),
    )
    Path(told, str(rank)).write_text(str(_summed(rank + 1.0)))
    gc.collect()
    dist.destroy_process_group()


def _start_ranks(method: str = "fork") -> list[str]:
    """Start processes as ranks of a world, in the manner of a launcher within a program."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _rank_of_another_world,
            args=(f"{folder}/store", BACKEND, folder),
            nprocs=_SIZE,
            start_method=method,
        )
        return [Path(folder, str(rank)).read_text() for rank in range(_SIZE)]


@on_ranks(1)
def test_ranks_are_forked_by_a_process_that_has_been_one(rank: int) -> None:
    assert _summed() == 1.0
    dist.destroy_process_group()
    assert _start_ranks() == ["3.0"] * _SIZE
    assert _start_ranks() == ["3.0"] * _SIZE


@on_ranks(1, init=False)
def test_ranks_are_forked_by_a_process_that_holds_a_store(rank: int) -> None:
    with ah.TCPStore("127.0.0.1", 0, is_master=True) as store:
        assert _start_ranks() == ["3.0"] * _SIZE
        assert store.num_keys() == 0


def _in_child(body: Any) -> str:
    """Run a function in a forked child; return the result as text."""
    with tempfile.NamedTemporaryFile() as told:
        if not (pid := os.fork()):
            status = 1
            try:
                _end_if_it_hangs()
                gc.collect()
                Path(told.name).write_text(str(body()))
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        return Path(told.name).read_text()


@on_ranks(_SIZE)
def test_a_child_that_calls_on_its_parents_group_is_told_what_to_do(rank: int) -> None:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    part = dist.new_group([0, 1])

    def refused(call: Any) -> str:
        with pytest.raises(RuntimeError, match="forked") as raised:
            call()
        return type(raised.value).__name__

    def child() -> set[str]:
        return {
            refused(lambda: dist.all_reduce(torch.ones(3))),
            refused(lambda: dist.all_reduce(torch.ones(3), group=part)),
            refused(lambda: dist.broadcast_object_list([None])),
            refused(lambda: dist.barrier()),
        }

    assert _in_child(child) == "{'ForkedProcess'}"
    work.wait()
    assert _summed() == _SIZE


@on_ranks(_SIZE)
def test_a_child_leaves_its_parents_group_and_makes_its_own(rank: int) -> None:
    def child() -> float:
        dist.destroy_process_group()
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group(
                BACKEND, init_method=f"file://{folder}/store", rank=0, world_size=1
            )
            found = _summed(5.0)
            dist.destroy_process_group()
        return found

    assert _summed() == _SIZE
    assert _in_child(child) == "5.0"
    assert _summed() == _SIZE
