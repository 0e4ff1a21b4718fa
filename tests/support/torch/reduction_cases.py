"""Options, results and comparison of calls over torch.distributed."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def options(kind: Any, **said: Any) -> Any:
    """Return options of a call, built as in programs."""
    opts = kind()
    for name, value in said.items():
        setattr(opts, name, value)
    return opts


def given(work: Any) -> Any:
    """Return a call's result through the future, as c10d's users do."""
    future = work.get_future()
    future.wait()
    return future.value()


def equal(found: Any, wanted: Any) -> None:
    """Compare tensors, and lists of tensors, by values, shapes and dtypes."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            equal(one, other)
    else:
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


class TensorFace:
    """Process groups of tensors; see `support.c10d_cases`."""

    reduce_op = dist.ReduceOp

    def get_group(self) -> Any:
        return dist.group.WORLD

    def make_options(self, kind: str, **said: object) -> Any:
        return options(getattr(dist, kind), **said)

    def make_array(self, values: Sequence[object], *, is_int32: bool = False) -> Any:
        return torch.tensor(values, dtype=torch.int32 if is_int32 else None)

    def make_full(self, shape: tuple[int, ...], value: Any) -> Any:
        return torch.full(shape, value)

    def copy(self, array: Any) -> Any:
        return array.clone()

    def wait(self, work: Any) -> Any:
        return given(work)

    def compare(self, found: Any, wanted: Any) -> None:
        equal(found, wanted)


TENSORS = TensorFace()
