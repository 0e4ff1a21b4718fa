"""Inputs and results of reductions over torch.distributed, and ways to call them.

Written down with Python's own arithmetic, so that no library is judged by itself.
"""

import math
import operator
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist


def reductions(rank: int, size: int) -> list[tuple[Any, Any, Any]]:
    """Return operations, with a rank's input and the result of each."""
    one, total = float(rank + 1), size * (size + 1) / 2
    found: list[tuple[Any, Any, Any]] = [
        (dist.ReduceOp.SUM, torch.tensor([one]), torch.tensor([total])),
        (dist.ReduceOp.AVG, torch.tensor([one]), torch.tensor([total / size])),
        (dist.ReduceOp.PRODUCT, torch.tensor([one]), torch.tensor([float(math.factorial(size))])),
        (dist.ReduceOp.MIN, torch.tensor([one]), torch.tensor([1.0])),
        (dist.ReduceOp.MAX, torch.tensor([one]), torch.tensor([float(size)])),
    ]
    for at in range(4):
        common = reduce(operator.and_, [other | 1 << at for other in range(size)])
        found.append((dist.ReduceOp.BAND, _bits(rank | 1 << at), _bits(common)))
    for op, combine in (
        (dist.ReduceOp.BOR, operator.or_),
        (dist.ReduceOp.BXOR, operator.xor),
    ):
        for width in range(1, 5):
            mine = reduce(combine, range(rank * width, (rank + 1) * width))
            found.append((op, _bits(mine), _bits(reduce(combine, range(size * width)))))
    return found


def twofold(rank: int, size: int) -> list[tuple[Any, list[Any], Any]]:
    """Return the same where each rank brings two tensors."""
    low, high = torch.tensor([2.0 * rank]), torch.tensor([2.0 * rank + 1])
    many = float(math.factorial(2 * size))
    return [
        (dist.ReduceOp.SUM, [low, high], torch.tensor([size * (2.0 * size - 1)])),
        (dist.ReduceOp.PRODUCT, [low + 1, high + 1], torch.tensor([many])),
        (dist.ReduceOp.MIN, [low + 1, high + 1], torch.tensor([1.0])),
        (dist.ReduceOp.MAX, [low + 1, high + 1], torch.tensor([2.0 * size])),
    ]


def coalesced(rank: int, size: int) -> list[tuple[Any, list[Any], list[Any]]]:
    """Return the same where two tensors are combined side by side, the second of another shape."""
    one = rank + 1.0

    def tensors(first: float, second: float) -> list[Any]:
        return [torch.tensor([float(first)]), torch.full((2, 3), float(second))]

    squares = size * (size + 1) * (2 * size + 1) / 6
    many = math.factorial(size)
    return [
        (dist.ReduceOp.SUM, tensors(one, one**2), tensors(size * (size + 1) / 2, squares)),
        (dist.ReduceOp.PRODUCT, tensors(one, one + 1), tensors(many, many * (size + 1))),
        (dist.ReduceOp.MIN, tensors(rank, one), tensors(0, 1)),
        (dist.ReduceOp.MAX, tensors(one, one + 1), tensors(size, size + 1)),
    ]


def options(kind: Any, **said: Any) -> Any:
    """Return options of a call, built as programs build them."""
    opts = kind()
    for name, value in said.items():
        setattr(opts, name, value)
    return opts


def given(work: Any) -> Any:
    """Return a call's result through its future, as c10d's users do."""
    future = work.get_future()
    future.wait()
    return future.value()


def equal(found: Any, wanted: Any) -> None:
    """Compare tensors, and lists of them, with their shapes and dtypes."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            equal(one, other)
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _bits(value: int) -> Any:
    return torch.tensor([value], dtype=torch.int32)
