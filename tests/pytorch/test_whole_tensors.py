"""What broadcasts and reductions of tensors give, in c10d's forms, on every rank."""

import pytest
import torch
import torch.distributed as dist

from torch_cases import coalesced, equal, given, options, reductions, twofold
from torch_ranks import on_ranks, run_ranks

SIZES = (2, 3)
SIZE = 3
pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning")


@on_ranks(2)
def test_p016_broadcast_of_an_empty_tensor() -> None:
    x = torch.empty(0)
    (output,) = given(dist.group.WORLD.broadcast([x]))
    assert output is x
    assert output.numel() == 0


@pytest.mark.parametrize("size", SIZES)
def test_p017_broadcast_of_every_root_and_tensor(size: int) -> None:
    def body(rank: int) -> None:
        pg = dist.group.WORLD
        for root in range(size):
            opts = options(dist.BroadcastOptions, rootRank=root, rootTensor=0)
            equal(given(pg.broadcast([torch.tensor([rank])], opts)), [torch.tensor([root])])
            for index in range(2):
                xs = [torch.tensor([rank * 2 + at + 0.0]) for at in range(2)]
                opts = options(dist.BroadcastOptions, rootRank=root, rootTensor=index)
                wanted = [torch.tensor([root * 2 + index + 0.0])] * 2
                equal(given(pg.broadcast(xs, opts)), wanted)
                equal(xs, wanted)
        equal(given(pg.broadcast(torch.tensor([rank + 1.0]), root=0)), [torch.tensor([1.0])])

    run_ranks(size, body)


@on_ranks(SIZE)
def test_p019_broadcast_from_each_root_in_place(rank: int) -> None:
    for root in range(SIZE):
        x = torch.full((3, 3), float(rank))
        assert dist.broadcast(x, src=root) is None
        equal(x, torch.full((3, 3), float(root)))


@pytest.mark.parametrize("size", SIZES)
def test_p020_allreduce_with_every_operation(size: int) -> None:
    def body(rank: int) -> None:
        pg = dist.group.WORLD
        for op, mine, wanted in reductions(rank, size):
            plain = mine.clone()
            opts = options(dist.AllreduceOptions, reduceOp=op)
            equal(given(pg.allreduce([mine], opts)), [wanted])
            equal(mine, wanted)
            dist.all_reduce(plain, op)
            equal(plain, wanted)
        for op, xs, wanted in twofold(rank, size):
            opts = options(dist.AllreduceOptions, reduceOp=op)
            equal(given(pg.allreduce(xs, opts)), [wanted, wanted])
            equal(xs, [wanted, wanted])
        total = torch.tensor([size * (size + 1) / 2])
        equal(given(pg.allreduce(torch.tensor([rank + 1.0]))), [total])
        least = given(pg.allreduce(torch.tensor([rank + 1.0]), op=dist.ReduceOp.MIN))
        equal(least, [torch.tensor([1.0])])

    run_ranks(size, body)


@on_ranks(SIZE)
def test_p021_all_reduce_adds_up_by_default(rank: int) -> None:
    x = torch.full((3, 3), float(rank))
    dist.all_reduce(x)
    equal(x, torch.full((3, 3), 3.0))


@pytest.mark.parametrize("size", SIZES)
def test_p023_allreduce_coalesced(size: int) -> None:
    def body(rank: int) -> None:
        pg = dist.group.WORLD
        for op, xs, wanted in coalesced(rank, size):
            plain = [x.clone() for x in xs]
            opts = options(dist.AllreduceCoalescedOptions, reduceOp=op)
            equal(given(pg.allreduce_coalesced(xs, opts)), wanted)
            equal(xs, wanted)
            dist.all_reduce_coalesced(plain, op)
            equal(plain, wanted)

    run_ranks(size, body)


@on_ranks(SIZE)
def test_p024_allreduce_coalesced_is_waited_for_later(rank: int) -> None:
    xs = [[torch.tensor([at + rank]) for _ in range(2)] for at in range(2)]
    futures = [dist.all_reduce_coalesced(x, async_op=True) for x in xs]
    torch.futures.wait_all(futures)
    for at, future in enumerate(futures):
        equal(future.wait(), [torch.tensor([SIZE * at + 3])] * 2)


@pytest.mark.parametrize("size", SIZES)
def test_p026_reduce_with_every_operation_to_every_root(size: int) -> None:
    def body(rank: int) -> None:
        pg = dist.group.WORLD
        for op, mine, wanted in reductions(rank, size):
            for root in range(size):
                x, plain = mine.clone(), mine.clone()
                opts = options(dist.ReduceOptions, reduceOp=op, rootRank=root, rootTensor=0)
                (found,) = given(pg.reduce([x], opts))
                dist.reduce(plain, root, op)
                here = wanted if rank == root else mine
                equal([found, x, plain], [here] * 3)

    run_ranks(size, body)


@on_ranks(SIZE)
def test_p045_booleans(rank: int) -> None:
    x = torch.tensor([True, False] if rank == 0 else [False, False])
    dist.broadcast(x, 0)
    equal(x, torch.tensor([True, False]))
    for op, wanted in (
        (dist.ReduceOp.SUM, [True, False, True]),
        (dist.ReduceOp.MAX, [True, False, True]),
        (dist.ReduceOp.BOR, [True, False, True]),
        (dist.ReduceOp.PRODUCT, [True, False, False]),
        (dist.ReduceOp.MIN, [True, False, False]),
        (dist.ReduceOp.BAND, [True, False, False]),
    ):
        for root in (None, 1):
            x = torch.tensor([True, False, rank == 2])
            before = x.clone()
            if root is None:
                dist.all_reduce(x, op)
            else:
                dist.reduce(x, root, op)
            equal(x, torch.tensor(wanted) if root in (None, rank) else before)


@on_ranks(SIZE)
def test_p110_average_of_complex_numbers(rank: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        x = torch.tensor([complex(rank, -2 * rank), 1j], dtype=dtype)
        wanted = torch.tensor([1 - 2j, 1j], dtype=dtype)
        for root in range(SIZE):
            mine = x.clone()
            dist.reduce(mine, root, dist.ReduceOp.AVG)
            equal(mine, wanted if rank == root else x)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        equal(x, wanted)
