"""Results of gathers, scatters and exchanges of tensors, in c10d's forms, on every rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import c10d_cases
from support.torch.ranks import on_ranks, run_ranks
from support.torch.reduction_cases import TENSORS, equal, given, options

SIZES = (2, 3)
SIZE = 3
pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning")
SQUARES = [(5, 5), (10, 10), (15, 15)]


def column(tensor: Any) -> Any:
    """Return an equal tensor with non-contiguous elements."""
    found = torch.stack([tensor, tensor], dim=-1)[..., 0]
    assert not found.is_contiguous()
    return found


def _random(shapes: list[tuple[int, ...]]) -> list[Any]:
    torch.manual_seed(42)
    return [torch.rand(shape) for shape in shapes]


# ---------------------------------------------------------------- gather and scatter


def gathered_to_every_root(size: int, make: Callable[[Any], Any]) -> None:
    run_ranks(size, partial(c10d_cases.gather_to_every_root, TENSORS, size=size, make=make))


@pytest.mark.parametrize("size", SIZES)
def test_p028_gather_to_every_root(size: int) -> None:
    gathered_to_every_root(size, torch.clone)


@on_ranks(SIZE)
def test_p028_gather_fills_the_list_of_the_root_alone(rank: int) -> None:
    mine = torch.full((3, 3), float(rank))
    outputs = [torch.empty(3, 3) for _ in range(SIZE)] if rank == 0 else None
    dist.gather(mine, outputs)
    if outputs is not None:
        equal(outputs, [torch.full((3, 3), float(one)) for one in range(SIZE)])


def test_p029_gather_reads_what_is_not_contiguous() -> None:
    gathered_to_every_root(SIZE, column)


@pytest.mark.parametrize("make", [torch.clone, column])
def test_p031_scatter_from_every_root(make: Callable[[Any], Any]) -> None:
    run_ranks(SIZE, partial(c10d_cases.scatter_from_every_root, TENSORS, size=SIZE, make=make))


@on_ranks(SIZE)
def test_p031_scatter_takes_the_list_of_the_root_alone(rank: int) -> None:
    each = [torch.full((3, 3), float(to)) for to in range(SIZE)] if rank == 0 else None
    output = torch.empty(3, 3)
    dist.scatter(output, each)
    equal(output, torch.full((3, 3), float(rank)))


# ---------------------------------------------------------------- allgather


def test_p034_allgather_reads_what_is_not_contiguous() -> None:
    gathered_by_all(column)


def test_p033_allgather_of_one_to_three_tensors_a_rank() -> None:
    gathered_by_all(torch.clone)


def gathered_by_all(make: Callable[[Any], Any]) -> None:
    def body(rank: int) -> None:
        for count in (1, 2, 3):
            c10d_cases.allgather_of_several_arrays(TENSORS, rank, SIZE, count, make)

    run_ranks(SIZE, body)


@on_ranks(SIZE)
def test_p033_all_gather_into_tensors_and_into_views_of_one(rank: int) -> None:
    mine = torch.full((3, 3), float(rank))
    wanted = [torch.full((3, 3), float(one)) for one in range(SIZE)]
    outputs = [torch.empty(3, 3) for _ in range(SIZE)]
    dist.all_gather(outputs, mine)
    equal(outputs, wanted)
    whole = torch.empty(SIZE * 3, 3)
    dist.all_gather(list(whole.chunk(SIZE)), mine)
    equal(whole, torch.cat(wanted))
    dist.all_gather_into_tensor(whole.zero_(), mine)
    equal(whole, torch.cat(wanted))
    stacked = torch.empty(SIZE, 3, 3)
    dist.all_gather_into_tensor(stacked, mine)
    equal(stacked, torch.stack(wanted))
    mine = whole.zero_()[rank * 3 : rank * 3 + 3].fill_(rank)  # a part of where it goes
    dist.all_gather_into_tensor(whole, mine)
    equal(whole, torch.cat(wanted))


@on_ranks(SIZE)
def test_p036_all_gather_coalesced_is_waited_for_later(rank: int) -> None:
    rounds = []
    for at in range(2):
        mine = [torch.tensor([at + rank]), torch.full((2, 2), at + rank)]
        lists = [[torch.zeros_like(x) for x in mine] for _ in range(SIZE)]
        rounds.append((lists, dist.all_gather_coalesced(lists, mine, async_op=True)))
    for at, (lists, future) in enumerate(rounds):
        future.wait()
        wanted = [[torch.tensor([at + one]), torch.full((2, 2), at + one)] for one in range(SIZE)]
        equal(lists, wanted)


@on_ranks(1)
def test_p036_all_gather_coalesced_of_a_rank_alone() -> None:
    x = torch.ones(10, 10)
    outputs = [torch.zeros_like(x)]
    dist.all_gather_coalesced([outputs], [x])
    equal(outputs, [x])


@pytest.mark.parametrize("size", SIZES)
def test_p037_allgather_into_tensor_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        inputs = _random(SQUARES)
        outputs = [torch.empty(size * rows, width) for rows, width in SQUARES]
        dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
        equal(outputs, [torch.cat([x] * size) for x in inputs])

    run_ranks(size, body)


# ---------------------------------------------------------------- reduce_scatter, all_to_all


@on_ranks(SIZE)
def test_p038_reduce_scatter_of_lists(rank: int) -> None:
    each = [torch.full((3, 3), float(one)) for one in range(SIZE)]
    output = torch.empty(3, 3)
    dist.reduce_scatter(output, each)
    equal(output, torch.full((3, 3), float(rank * SIZE)))
    dist.reduce_scatter(output, each, dist.ReduceOp.AVG)
    equal(output, torch.full((3, 3), float(rank)))
    opts = options(dist.ReduceScatterOptions, reduceOp=dist.ReduceOp.MAX)
    equal(
        given(dist.group.WORLD.reduce_scatter([output], [[x + rank for x in each]], opts)),
        [torch.full((3, 3), float(rank + SIZE - 1))],
    )


@on_ranks(SIZE)
def test_p039_reduce_scatter_tensor_is_waited_for_later(rank: int) -> None:
    (x,) = _random([(20 * SIZE, 20)])
    output = torch.empty(20, 20)
    work = dist.reduce_scatter_tensor(output, x, async_op=True)
    assert work.get_future().wait() == [output]
    torch.testing.assert_close(output, x[20 * rank : 20 * (rank + 1)] * SIZE)


@on_ranks(SIZE)
def test_p040_reduce_scatter_tensor_coalesced(rank: int) -> None:
    inputs = _random([(SIZE * rows, width) for rows, width in SQUARES])
    outputs = [torch.empty(shape) for shape in SQUARES]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    for output, x, (rows, _) in zip(outputs, inputs, SQUARES, strict=True):
        torch.testing.assert_close(output, x[rank * rows : (rank + 1) * rows] * SIZE)


@on_ranks(SIZE)
def test_p041_all_to_all_of_lists(rank: int) -> None:
    inputs = [torch.full((3, 3), float(rank * SIZE + to)) for to in range(SIZE)]
    outputs = [torch.empty(3, 3) for _ in range(SIZE)]
    dist.all_to_all(outputs, inputs)
    wanted = [torch.full((3, 3), float(one * SIZE + rank)) for one in range(SIZE)]
    equal(outputs, wanted)
    uneven = [torch.full((to + 1,), rank * SIZE + to) for to in range(SIZE)]
    outputs = [torch.empty(rank + 1, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_to_all(outputs, uneven)
    equal(outputs, [torch.full((rank + 1,), one * SIZE + rank) for one in range(SIZE)])


@on_ranks(SIZE)
def test_p042_all_to_all_single_with_sizes_of_every_kind(rank: int) -> None:
    x = torch.full((SIZE, 2), rank)
    for sizes in (None, [], [1] * SIZE, torch.ones(SIZE, dtype=torch.int64)):
        output = torch.zeros(SIZE, 2, dtype=torch.int64)
        dist.all_to_all_single(output, x, sizes, sizes)
        assert output.tolist() == [[one, one] for one in range(SIZE)]
    send = [rank, 1, 1]  # rank r gives r rows to rank 0, and one to each other
    recv = list(range(SIZE)) if rank == 0 else [1] * SIZE
    output, x = torch.full((sum(recv), 2), -1), torch.full((sum(send), 2), rank)
    dist.all_to_all_single(output, x, recv, send)
    assert output[:, 0].tolist() == [one for one in range(SIZE) for _ in range(recv[one])]


@on_ranks(1)
def test_p043_every_call_of_a_rank_alone() -> None:
    one = torch.ones(2, 2)
    x, output = one.clone(), torch.zeros(2, 2)
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
    dist.all_reduce(x)
    dist.barrier()
    equal(x, one)
    for call in (
        lambda: dist.all_gather([output], x),
        lambda: dist.reduce_scatter(output, [x]),
        lambda: dist.all_to_all([output], [x]),
        lambda: dist.scatter(output, [x]),
        lambda: dist.gather(x, [output]),
        lambda: dist.all_gather_into_tensor(output, x),
        lambda: dist.reduce_scatter_tensor(output, x),
        lambda: dist.all_to_all_single(output, x),
    ):
        output.zero_()
        call()
        equal(output, one)
