"""Calls of a process group that must be refused on every rank, with c10d's texts.

Each test is one call that must be refused on every rank, and then a call on the same group that
must go well: a refused one has taken no number, and nobody waits for it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah

SIZE = 4
Array = npt.NDArray[Any]
Given = dict[str, Array]
Attempt = Callable[[ah.ProcessGroup, Given], object]


def coo(values: Array, length: int) -> ah.SparseArray:
    """Return a sparse array of a single element, at the first index."""
    return ah.SparseArray([[0]], values, (length,))


def arrays() -> Given:
    return {
        "t1": np.zeros(1, np.float32),
        "t2": np.zeros(1, np.float64),
        "t3": np.zeros(2, np.float32),
        "t4": np.zeros(1, np.float32),
    }


def check_refusal(kind: type[Exception], text: str, attempt: Attempt) -> None:
    """Make a call on a rank that must fail with an error's class and `text`."""
    pg = ah.process_group()
    given = arrays()
    with pytest.raises(kind, match=text):
        attempt(pg, given)
    assert pg.group.sequence == 0
    assert not any(array.any() for array in given.values())
    x = np.array([pg.rank()])
    pg.allreduce(x).wait(20)
    assert x == sum(range(SIZE))


def rooted(kind: type[Any], rank: int, tensor: int | None = None) -> Any:
    """Return options, built as programs build them."""
    opts = kind()
    opts.rootRank = rank
    if tensor is not None:
        opts.rootTensor = tensor
    return opts
