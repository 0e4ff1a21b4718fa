"""Threads as ranks of torch.distributed: in a harness of ours, and in PyTorch's own."""

import sys
import threading
import unittest
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiThreadedTestCase

import allhands as ah
from allhands.testing import RankError
from support.torch.ranks import on_ranks
from support.torch.thread_ranks import default_group, run_threads

SIZE = 4
in_a_process = on_ranks(1, init=False)
"""Of its own: the one that runs the tests is to be forked, and has no threads that call."""


def gathered() -> list[Any]:
    mine = torch.full((3, 3), float(dist.get_rank()))
    outputs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, mine)
    return outputs


@pytest.mark.parametrize("failing", [(0,), (1,), (1, 2, 3)])
@in_a_process
def test_p076_exception_of_a_rank_surfaces_and_releases_the_others(
    failing: tuple[int, ...],
) -> None:
    def body(rank: int) -> None:
        gathered()
        if rank in failing:
            raise AssertionError("a real failure")
        gathered()

    with pytest.raises(
        RuntimeError, match=r"rank \d of 4 raised AssertionError: a real fail"
    ) as it:
        run_threads(SIZE, body)
    assert isinstance(it.value, RankError)
    assert it.value.rank in failing
    for rank, error in it.value.errors.items():
        assert isinstance(error, AssertionError if rank in failing else ah.GroupAborted)


@in_a_process
def test_p077_a_skip_is_a_skip() -> None:
    def body(rank: int) -> None:
        raise unittest.SkipTest("nothing to do")

    with pytest.raises(unittest.SkipTest, match="nothing to do"):
        run_threads(SIZE, body)


@in_a_process
def test_p078_threads_have_groups_and_backward_passes_of_their_own() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.thread = threading.get_ident()
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            assert threading.get_ident() == ctx.thread
            total = gradient.clone()
            dist.all_reduce(total)
            return total

    def body(rank: int) -> tuple[list[float], int]:
        part = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
        x = torch.full((1,), float(rank), requires_grad=True)
        y = Doubled.apply(x)
        (y * rank).sum().backward()
        assert x.grad.item() == sum(range(SIZE))
        z = x.detach().clone()
        dist.all_reduce(z, group=part)
        return z.tolist(), dist.get_rank()

    assert run_threads(SIZE, body) == [([1.0], 0), ([1.0], 1), ([5.0], 2), ([5.0], 3)]
    assert not dist.is_initialized()


class OverAWorld(MultiThreadedTestCase):
    """PyTorch's harness, in which each thread is a rank of a real world."""

    __test__ = False

    @property
    def world_size(self) -> int:
        return SIZE

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        try:
            with default_group(rank, world_size, type(self).global_store, 30):
                getattr(self, test_name)()
        except BaseException:
            self.exception_queue.put((rank, sys.exc_info()))


class Works(OverAWorld):
    """Bodies of the tests below, run in processes."""

    def test_comparing(self) -> None:
        mine = torch.full((3, 3), float(self.rank))
        of_rank_0 = mine.clone()
        dist.broadcast(of_rank_0, src=0)
        self.assertEqualOnRank(of_rank_0, mine, rank=0)
        self.assertNotEqualOnRank(of_rank_0, mine, rank=1)

    def test_comparing_what_differs(self) -> None:
        self.assertEqualOnRank(torch.tensor(1), torch.tensor(2), rank=3)

    def test_groups(self) -> None:
        low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
        x = torch.full((3, 3), float(dist.get_rank()))
        dist.all_reduce(x, group=low if self.rank < 2 else high)
        assert x[0, 0].item() == (1 if self.rank < 2 else 5)
        assert dist.get_backend() == "allhands"

    def test_averages_and_objects(self) -> None:
        output = torch.empty(3, 3)
        each = [torch.full((3, 3), float(one)) for one in range(SIZE)]
        dist.reduce_scatter(output, each, op=dist.ReduceOp.AVG)
        assert torch.equal(output, torch.full((3, 3), float(self.rank)))
        objects = [99 if self.rank == 0 else None] * SIZE
        dist.broadcast_object_list(objects)
        assert objects[0] == 99

    def test_failing(self) -> None:
        gathered()
        if self.rank == 2:
            raise AssertionError("a real failure")
        gathered()

    def test_skipping(self) -> None:
        self.skipTest("nothing to do")


@in_a_process
def test_p076_an_exception_surfaces_in_the_harness_of_pytorch() -> None:
    with pytest.raises(RuntimeError, match="Thread 2 exited with exception"):
        Works("test_failing").debug()


@in_a_process
def test_p077_a_skip_is_a_skip_in_the_harness_of_pytorch() -> None:
    with pytest.raises(unittest.SkipTest):
        Works("test_skipping").debug()


@in_a_process
def test_p078_equal_or_not_to_what_one_rank_has() -> None:
    Works("test_comparing").debug()
    with pytest.raises(RuntimeError, match="Thread 3 exited with exception"):
        Works("test_comparing_what_differs").debug()


@in_a_process
def test_groups_and_calls_in_the_harness_of_pytorch() -> None:
    Works("test_groups").debug()
    Works("test_averages_and_objects").debug()
