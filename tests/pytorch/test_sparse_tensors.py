"""Sparse tensors in COO form: added up over ranks, as Gloo does."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from allhands.torch.work import Work
from support.torch.ranks import on_ranks, run_ranks
from support.torch.reduction_cases import given

SIZE = 3
DIMS = [(1, 0), (2, 0), (1, 1), (2, 3)]


def rows(rank: int, size: int, sparse_dims: int, dense_dims: int) -> Any:
    """Return a sparse tensor with `rank + 1` stored ones."""
    indices = torch.zeros(sparse_dims, rank + 1, dtype=torch.int64)
    indices[-1] = torch.arange(rank + 1)
    values = torch.ones([rank + 1] + [2] * dense_dims)
    shape = [size] * sparse_dims + [2] * dense_dims
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.parametrize("backend", ["allhands", "gloo"])
def test_p025_sparse_allreduce_of_one_and_two_tensors_a_rank(backend: str) -> None:
    def body(rank: int) -> None:
        for dims in DIMS:
            for count in (1, 2):
                mine = [rows((rank + at) % SIZE, SIZE, *dims) for at in range(count)]
                wanted = sum(
                    rows((one + at) % SIZE, SIZE, *dims).to_dense()
                    for one in range(SIZE)
                    for at in range(count)
                )
                found = given(dist.group.WORLD.allreduce(mine))
                assert len(found) == count
                for one in (*mine, *found):
                    assert one.is_sparse
                    assert torch.equal(one.to_dense(), wanted), (dims, count)

    run_ranks(SIZE, body, backend=backend)


@on_ranks(SIZE)
def test_p025_average_and_dtypes_of_sparse_tensors(rank: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        x = rows(rank, SIZE, 1, 0).to(dtype)
        dist.all_reduce(x)
        assert x.dtype == dtype
        assert x.to_dense().tolist() == [3, 2, 1]
    x = rows(rank, SIZE, 1, 0)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert torch.equal(x.to_dense(), torch.tensor([3.0, 2.0, 1.0]) / 3)


@on_ranks(SIZE)
def test_what_is_stored_twice_adds_up_and_what_is_empty_is_zero(rank: int) -> None:
    twice = torch.sparse_coo_tensor([[1, 1]], [1.0, 2.0], (2,), check_invariants=True)
    x = twice if rank == 0 else torch.sparse_coo_tensor(size=(2,), check_invariants=True)
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [0, 3]
    assert x.is_coalesced()
    assert x._nnz() == 1


@on_ranks(SIZE)
def test_a_sparse_gradient_stays_the_gradient(rank: int) -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([rank, 3])).sum().backward()
    gradient = table.weight.grad
    dist.all_reduce(gradient)
    assert table.weight.grad is gradient
    assert gradient.to_dense()[:, 0].tolist() == [1, 1, 1, 3]
    torch.optim.SparseAdam(table.parameters()).step()  # that takes it as it is


@on_ranks(SIZE)
def test_p046_a_barrier_ends_after_the_results_of_calls_that_nobody_waits_for(rank: int) -> None:
    settle = Work._copy_back

    def late(work: Work) -> None:
        """Copy back on the caller's thread alone, as if no second thread had a turn yet."""
        if threading.current_thread() is threading.main_thread():
            settle(work)

    Work._copy_back = late  # type: ignore[method-assign]
    x = rows(rank, SIZE, 1, 0)
    column = torch.full((3, 2), float(rank))[:, 1]
    works = [dist.all_reduce(one, async_op=True) for one in (x, column)]
    dist.barrier()
    assert x.to_dense().tolist() == [3, 2, 1]
    assert column.tolist() == [3, 3, 3]
    assert all(work.is_completed() for work in works)
