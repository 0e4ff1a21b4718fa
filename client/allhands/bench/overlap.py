"""Overlap of an asynchronous call with a matrix product that takes as long.

Three forms of one case: the call alone, the product alone, and the product between the begin of
the call and its wait. What the third takes less than the first two together is hidden.
"""

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np

from allhands.bench.case import BenchCase

Wait = Callable[[], object]

_INNER = 512
"""Rows and columns of the right side: 1 MiB, which stays in a cache."""
_SAMPLES = 7
_WARM_UP = 3
_FIRST_ROWS = 64
_REFINEMENTS = 4


class MatmulCache:
    """Products of each case: all its forms need the same."""

    def __init__(self) -> None:
        self._products: dict[tuple[int, str, int], Callable[[], object]] = {}

    def get(self, case: BenchCase, begin: Callable[[], Wait]) -> Callable[[], object]:
        """Return a product that takes as long on this rank as the call, which is made to see."""
        key = case.ranks, case.dtype, case.nbytes
        if key not in self._products:
            self._products[key] = _make_product(_time(lambda: begin()()))
        return self._products[key]


def bind(case: BenchCase, cache: MatmulCache, begin: Callable[[], Wait]) -> Callable[[], object]:
    """Return the call of one form; `begin` begins the call and returns how to wait for it."""
    multiply = cache.get(case, begin)

    def overlap() -> None:
        wait = begin()
        multiply()
        wait()

    match case.form:
        case "call":
            return lambda: begin()()
        case "matmul":
            return multiply
    return overlap


def compute_hidden(medians: Mapping[str, float]) -> float:
    """Return the hidden part, from 0 to 1, of the shorter of call and product."""
    call, product = medians["call"], medians["matmul"]
    return (call + product - medians["overlapped"]) / min(call, product)


def _make_product(seconds: float) -> Callable[[], object]:
    right = np.ones((_INNER, _INNER), np.float32)
    rows = _FIRST_ROWS
    for _ in range(_REFINEMENTS):  # few rows take longer each than many
        rows = max(round(rows * seconds / _time(_multiply(rows, right))), 1)
    return _multiply(rows, right)


def _multiply(rows: int, right: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> Wait:
    left = np.ones((rows, _INNER), np.float32)
    out = np.empty((rows, _INNER), np.float32)
    return lambda: np.matmul(left, right, out)


def _time(act: Callable[[], object]) -> float:
    for _ in range(_WARM_UP):
        act()
    times = []
    for _ in range(_SAMPLES):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
