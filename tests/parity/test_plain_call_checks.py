"""Refusals of plain calls for their arrays' dtypes and layout: with c10d's texts."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads
from support.ranks.refused_calls import SIZE, Array, Attempt, check_refusal


def refused(kind: type[Exception], text: str, attempt: Attempt) -> None:
    """Make a failing call on four ranks; check the error's class and `text`."""
    run_threads(SIZE)(lambda: check_refusal(kind, text, attempt))


@dataclass
class Halves:
    """Arrays of which some are of another dtype."""

    x: Array = field(default_factory=lambda: np.zeros((2, 2), np.float32))
    half: Array = field(default_factory=lambda: np.zeros((2, 2), np.float16))
    each: list[Array] = field(
        default_factory=lambda: [np.zeros((2, 2), np.float32) for _ in range(SIZE)]
    )

    @property
    def mixed(self) -> list[Array]:
        return [self.each[0], self.half.copy(), *self.each[2:]]


PLAIN: dict[str, Callable[[Halves], object]] = {
    "all_gather, outputs": lambda a: ah.all_gather(a.mixed, a.x),
    "all_gather, input": lambda a: ah.all_gather(a.each, a.half),
    "all_gather_into_tensor": lambda a: ah.all_gather_into_tensor(np.zeros((8, 2)), a.x),
    "reduce_scatter, inputs": lambda a: ah.reduce_scatter(a.x, a.mixed),
    "reduce_scatter, output": lambda a: ah.reduce_scatter(a.half, a.each),
    "reduce_scatter_tensor": lambda a: ah.reduce_scatter_tensor(a.x, np.zeros((8, 2))),
    "all_to_all, outputs": lambda a: ah.all_to_all(a.mixed, a.each),
    "all_to_all, inputs": lambda a: ah.all_to_all(a.each, a.mixed),
    "all_to_all_single": lambda a: ah.all_to_all_single(np.zeros((4, 2)), np.zeros((4, 2), "f4")),
    "all_gather_coalesced, outputs": lambda a: ah.all_gather_coalesced(
        [a.each, a.mixed, a.each, a.each], a.each
    ),
    "all_gather_coalesced, inputs": lambda a: ah.all_gather_coalesced([a.each] * SIZE, a.mixed),
    "all_reduce_coalesced": lambda a: ah.all_reduce_coalesced(a.mixed),
    "all_gather_into_tensor_coalesced": lambda a: ah.all_gather_into_tensor_coalesced(
        [np.zeros((8, 2))], [a.x]
    ),
    "reduce_scatter_tensor_coalesced": lambda a: ah.reduce_scatter_tensor_coalesced(
        [a.x], [np.zeros((8, 2))]
    ),
    "gather, outputs": lambda a: ah.gather(a.x, a.mixed),
    "gather, input": lambda a: ah.gather(a.half, a.each),
    "scatter, inputs": lambda a: ah.scatter(a.x, a.mixed),
    "scatter, output": lambda a: ah.scatter(a.half, a.each),
}


@pytest.mark.parametrize("call", PLAIN)
def test_p014_plain_calls_refuse_several_dtypes(call: str) -> None:
    """Every rank refuses, also ranks without a list to gather and scatter."""
    refused(ValueError, "tensors with different dtypes", lambda pg, a: PLAIN[call](Halves()))


def test_p015_all_to_all_single_wants_contiguous_arrays() -> None:
    x = np.zeros((SIZE, SIZE), np.float32)
    for kind in (RuntimeError, ValueError):
        refused(
            kind,
            "Tensors must be contiguous",
            lambda pg, a: pg.all_to_all_single(np.zeros_like(x), x.T),
        )
