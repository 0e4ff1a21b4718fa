"""Results of broadcasts and reductions of tensors, in c10d's forms, on every rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from support import c10d_cases
from support.torch.ranks import on_ranks, run_ranks
from support.torch.reduction_cases import TENSORS, equal, given, options

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
        c10d_cases.broadcast_from_every_root(TENSORS, rank, size)
        c10d_cases.broadcast_from_every_root_tensor(TENSORS, rank, size)
        pg = dist.group.WORLD
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
        c10d_cases.allreduce_with_every_operation(TENSORS, rank, size)
        c10d_cases.allreduce_of_two_arrays(TENSORS, rank, size)
        for op, plain, wanted in c10d_cases.list_reductions(TENSORS, rank, size):
            dist.all_reduce(plain, op)
            equal(plain, wanted)
        pg, total = dist.group.WORLD, torch.tensor([size * (size + 1) / 2])
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
        c10d_cases.allreduce_coalesced(TENSORS, rank, size)
        for op, plain, wanted in c10d_cases.list_coalesced_reductions(TENSORS, rank, size):
            dist.all_reduce_coalesced(plain, op)
            equal(plain, wanted)

    run_ranks(size, body)


@on_ranks(SIZE)
def test_p024_allreduce_coalesced_is_waited_for_later(rank: int) -> None:
    xs = [2 * [torch.tensor([at + rank])] for at in range(2)]
    futures = [dist.all_reduce_coalesced(x, async_op=True) for x in xs]
    torch.futures.wait_all(futures)
    for at, future in enumerate(futures):
        equal(future.wait(), [torch.tensor([SIZE * at + 3])] * 2)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x.clone(),
    "column": lambda x: torch.stack([x, torch.full_like(x, 7)], dim=-1)[..., 0],
    "transposed": lambda x: x.clone().t(),
}


@pytest.mark.parametrize(
    ("layout", "backend"),
    [*((layout, "allhands") for layout in LAYOUTS), ("contiguous", "gloo")],
)
def test_p024_a_tensor_may_be_twice_in_a_list(layout: str, backend: str) -> None:
    calls: dict[str, tuple[Callable[[Any], Any], int]] = {
        "allreduce_coalesced": (lambda xs: dist.group.WORLD.allreduce_coalesced(xs).wait(), 1),
        "all_reduce_coalesced": (lambda xs: dist.all_reduce_coalesced(xs), 1),
        "allreduce": (lambda xs: dist.group.WORLD.allreduce(xs).wait(), 2),
        "broadcast": (
            lambda xs: dist.group.WORLD.broadcast(xs, options(dist.BroadcastOptions)).wait(),
            0,
        ),
        "coalescing": (_coalesced, 1),
        "coalescing on a device": (partial(_coalesced, device=torch.device("cpu")), 1),
    }

    def body(rank: int) -> None:
        whole = torch.arange(4.0).reshape(2, 2)
        total = SIZE * whole + sum(range(SIZE))
        for name, (call, times) in calls.items():
            if backend == "gloo" and (name.endswith("device") or layout != "contiguous"):
                continue  # which it does not implement, or for which it reads the elements beside
            x, other = LAYOUTS[layout](whole + rank), torch.tensor([float(rank)])
            xs = [x, x] if times != 1 else [x, other, x, x]
            call(xs)
            wanted = LAYOUTS[layout](times * total if times else whole)
            assert torch.equal(x, wanted), (name, x, wanted)
            if times == 1:
                assert other.item() == sum(range(SIZE))

    run_ranks(SIZE, body, backend=backend)


def _coalesced(xs: list[Any], device: Any = None) -> None:
    with dist._coalescing_manager(device=device):
        for x in xs:
            dist.all_reduce(x)


@on_ranks(SIZE)
def test_p024_a_sparse_tensor_may_be_twice_in_a_list(rank: int) -> None:
    x = torch.sparse_coo_tensor([[rank]], [1.0], (4,), check_invariants=True)
    found = given(dist.group.WORLD.allreduce([x, x]))
    assert found == [x, x] or all(one is x for one in found)
    assert x.to_dense().tolist() == [2.0] * SIZE + [0.0] * (4 - SIZE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_p024_a_tensor_that_is_filled_is_in_a_list_once(layout: str) -> None:
    def body(rank: int) -> None:
        pg, made = dist.group.WORLD, LAYOUTS[layout]
        x, y, z = (made(torch.zeros(2, 2)) for _ in range(3))
        mine = torch.ones(2, 2)
        calls: list[Callable[[], object]] = [
            lambda: dist.all_gather([x] * SIZE, mine),
            lambda: pg.allgather([[x, y, z] * 2, [x, y, z] * 2], [mine, mine]),
            lambda: dist.all_gather_coalesced([[x, x]] * SIZE, [mine, mine]),
            lambda: pg.alltoall([x] * SIZE, [mine] * SIZE),
            lambda: pg.gather([[x] * SIZE], [mine], options(dist.GatherOptions, rootRank=rank)),
        ]
        for call in calls:
            for kind in (RuntimeError, ValueError):
                with pytest.raises(kind, match="share memory"):
                    call()
        assert not x.any()
        rows = torch.zeros(2, 2)
        for outputs in ([rows, rows.t(), z], [rows[0], rows[:, 0], z[0]]):
            with pytest.raises(RuntimeError, match="share memory"):
                dist.all_gather(outputs, torch.ones_like(outputs[0]))
        columns = torch.zeros(SIZE, SIZE)
        dist.all_gather([columns[:, at] for at in range(SIZE)], torch.full((SIZE,), rank + 1.0))
        assert columns.tolist() == [[at + 1.0 for at in range(SIZE)]] * SIZE

    run_ranks(SIZE, body)


@pytest.mark.parametrize("size", SIZES)
def test_p026_reduce_with_every_operation_to_every_root(size: int) -> None:
    def body(rank: int) -> None:
        c10d_cases.reduce_to_every_root(TENSORS, rank, size)
        for op, mine, wanted in c10d_cases.list_reductions(TENSORS, rank, size):
            for root in range(size):
                dist.reduce(plain := mine.clone(), root, op)
                equal(plain, wanted if rank == root else mine)

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


INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


@on_ranks(SIZE)
def test_p110_average_of_integers_is_divided_towards_zero(rank: int) -> None:
    pg, avg = dist.group.WORLD, dist.ReduceOp.AVG
    for dtype in INTEGERS:
        mine = torch.tensor([[-3, -2, 4], [2, -2, 4], [-7, 2, 0]][rank], dtype=dtype)
        wanted = torch.tensor([-2, 0, 2], dtype=dtype)  # -8, -2, 8 together
        dist.all_reduce(x := mine.clone(), avg)
        equal(x, wanted)
        dist.all_reduce(x := mine.clone(), avg, async_op=True).wait()
        equal(x, wanted)
        column = torch.stack([mine, mine], dim=1)[:, 0]
        dist.all_reduce(column, avg)
        equal(column.clone(), wanted)
        dist.reduce(x := mine.clone(), 1, avg)
        equal(x, wanted if rank == 1 else mine)
        dist.reduce_scatter(share := torch.zeros(3, dtype=dtype), [mine] * SIZE, avg)
        equal(share, wanted)
        dist.reduce_scatter_tensor(one := torch.zeros(1, dtype=dtype), mine.clone(), avg)
        equal(one, wanted[rank : rank + 1])
        dist.all_reduce_coalesced([x := mine.clone(), y := mine.flip(0)], avg)
        equal([x, y], [wanted, wanted.flip(0)])
        with dist._coalescing_manager(device=torch.device("cpu")):
            dist.all_reduce(x := mine.clone(), avg)
            dist.all_reduce(y := mine[1:].clone(), avg)
        equal([x, y], [wanted, wanted[1:]])
        sparse = mine.to_sparse()
        dist.all_reduce(sparse, avg)
        equal(sparse.to_dense(), wanted)
        xs = [mine.clone(), torch.zeros_like(mine)]  # of six tensors
        equal(given(pg.allreduce(xs, op=avg)), [torch.tensor([-1, 0, 1], dtype=dtype)] * 2)
        equal(funcol.all_reduce(mine, "avg", pg).clone(), wanted)
    count = torch.tensor(3 * rank)  # as Lightning averages what a loop has logged
    dist.all_reduce(count, avg)
    equal(count, torch.tensor(3))
    unsigned = torch.tensor([100, 255, rank], dtype=torch.uint8)
    dist.all_reduce(unsigned, avg)
    equal(unsigned, torch.tensor([300 % 256 // 3, 765 % 256 // 3, 1], dtype=torch.uint8))


@on_ranks(SIZE)
def test_p110_average_of_large_tensors_of_integers(rank: int) -> None:
    for dtype in INTEGERS:
        for length in (5_000, 300_000):
            brought = [(torch.arange(length) * (one + 3)) % 23 - 11 - one for one in range(SIZE)]
            wanted = sum(brought).div(SIZE, rounding_mode="trunc").to(dtype)
            dist.all_reduce(x := brought[rank].to(dtype), dist.ReduceOp.AVG)
            equal(x, wanted)


@on_ranks(2)
def test_p110_average_of_booleans_is_refused() -> None:
    x = torch.tensor([True, False])
    with pytest.raises(TypeError, match=r"Cannot use ReduceOp\.AVG with Boolean inputs"):
        dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [True, False]


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
