"""Every operation on tensors of every dtype: exact to the bit, or refused with nothing changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.arrays.dtype_cases import LENGTH, Array, brought, combined, is_defined
from support.torch.ranks import on_ranks
from support.torch.reduction_cases import options

SIZE = 3
NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)
OPS = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
} | {"PREMUL_SUM": dist._make_nccl_premul_sum(3.0)}


def tensor(array: Array, name: str) -> Any:
    """Return a copy of a tensor's bits in separate memory."""
    raw = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy())
    return raw.view(getattr(torch, name))


def bits(given: Any) -> bytes:
    return given.contiguous().view(torch.uint8).numpy().tobytes()


def all_reduced(x: Any, op: Any, rank: int) -> tuple[Any, bool]:
    dist.group.WORLD.allreduce([x], options(dist.AllreduceOptions, reduceOp=op)).wait()
    return x, True


def reduced(x: Any, op: Any, rank: int) -> tuple[Any, bool]:
    opts = options(dist.ReduceOptions, reduceOp=op, rootRank=1)
    dist.group.WORLD.reduce([x], opts).wait()
    return x, rank == 1


def scattered(x: Any, op: Any, rank: int) -> tuple[Any, bool]:
    """Have each share be the same numbers."""
    output = torch.zeros_like(x)
    opts = options(dist.ReduceScatterOptions, reduceOp=op)
    dist.group.WORLD.reduce_scatter_single(output, torch.cat([x] * SIZE), opts).wait()
    return output, True


def _whole(name: str, rank: int, call: Callable[..., tuple[Any, bool]]) -> None:
    for op_name, op in OPS.items():
        x = tensor(brought(name, rank), name)
        before = bits(x)
        if not is_defined("all_reduce", op_name, name):
            with pytest.raises(TypeError) as refusal:
                call(x, op, rank)
            assert isinstance(refusal.value, RuntimeError)
            assert bits(x) == before, (name, op_name)
            continue
        found, is_written = call(x, op, rank)
        wanted = combined(op_name, name, [brought(name, one) for one in range(SIZE)])
        assert len(wanted) == LENGTH
        assert bits(found) == (wanted.tobytes() if is_written else before), (name, op_name)


@on_ranks(SIZE)
def test_p020_allreduce_of_every_dtype(rank: int) -> None:
    for name in NAMES:
        _whole(name, rank, all_reduced)


@on_ranks(SIZE)
def test_p026_reduce_of_every_dtype(rank: int) -> None:
    for name in NAMES:
        _whole(name, rank, reduced)


@on_ranks(SIZE)
def test_p038_reduce_scatter_of_every_dtype(rank: int) -> None:
    for name in NAMES:
        if not name.startswith("float8"):  # of which PyTorch puts none together
            _whole(name, rank, scattered)
