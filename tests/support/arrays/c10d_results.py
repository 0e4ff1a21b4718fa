"""Options, results and inputs of a process group's methods, for tests of the results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands import c10d

Array = npt.NDArray[Any]
SIZES = (2, 3, 4)
SIZE = 4


def with_options(kind: type[Any], **said: object) -> Any:
    opts = kind()
    for name, value in said.items():
        setattr(opts, name, value)
    return opts


def given(work: ah.Work) -> Any:
    """Return a call's result, within a generous time limit."""
    assert work.wait(20)
    return work.result()


def equal(found: Any, wanted: Any) -> None:
    """Compare arrays, and lists of arrays, by values, shapes and dtypes."""
    if isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            equal(one, other)
    else:
        np.testing.assert_array_equal(found, wanted, strict=True)


def draw_arrays(shapes: list[tuple[int, ...]]) -> list[Array]:
    found = np.random.default_rng(42)
    return [found.random(shape, np.float32) for shape in shapes]


SQUARES: list[tuple[int, ...]] = [(5, 5), (10, 10), (15, 15)]


class ArrayFace:
    """Process groups of arrays, on thread ranks."""

    reduce_op = ah.ReduceOp

    def get_group(self) -> c10d.ProcessGroup:
        return ah.process_group()

    def make_options(self, kind: str, **said: object) -> Any:
        return with_options(getattr(c10d, kind), **said)

    def make_array(self, values: Sequence[object], *, is_int32: bool = False) -> Array:
        return np.array(values, np.int32 if is_int32 else None)

    def make_full(self, shape: tuple[int, ...], value: object) -> Array:
        return np.full(shape, value)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def wait(self, work: ah.Work) -> Any:
        return given(work)

    def compare(self, found: Any, wanted: Any) -> None:
        equal(found, wanted)


ARRAYS = ArrayFace()
