"""Options, results and inputs of a process group's methods, for tests of their results."""

from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah

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
    """Compare arrays, and lists of them, with their shapes and dtypes."""
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
