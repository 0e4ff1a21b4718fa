"""Refusals of a process group's reductions: with c10d's texts, before any data moves."""

from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import run_threads
from support.ranks.refused_calls import SIZE, Array, Attempt, check_refusal, coo, rooted


def refused(kind: type[Exception], text: str, attempt: Attempt) -> None:
    """Make a failing call on four ranks; check the error's class and `text`."""
    run_threads(SIZE)(lambda: check_refusal(kind, text, attempt))


def combining(kind: type[Any], op: ah.ReduceOp) -> Any:
    opts = kind()
    opts.reduceOp = op
    return opts


# ---------------------------------------------------------------- allreduce


def test_p007_allreduce_refuses_an_empty_list() -> None:
    refused(
        RuntimeError,
        "^allreduce: requires non-empty tensor list",
        lambda pg, a: pg.allreduce([], c10d.AllreduceOptions()),
    )


@pytest.mark.parametrize(("other", "text"), [("t2", "type"), ("t3", "size")])
def test_p007_allreduce_refuses_arrays_that_are_not_alike(other: str, text: str) -> None:
    refused(
        RuntimeError,
        f"invalid tensor {text}",
        lambda pg, a: pg.allreduce([a["t1"], a[other]], c10d.AllreduceOptions()),
    )


@pytest.mark.parametrize("op", [ah.ReduceOp.BAND, ah.ReduceOp.BOR, ah.ReduceOp.BXOR])
def test_p007_allreduce_refuses_bits_of_floats(op: ah.ReduceOp) -> None:
    for kind in (RuntimeError, TypeError):
        refused(
            kind,
            f"Cannot use ReduceOp.{op.name} with non-integral dtype",
            lambda pg, a: pg.allreduce([a["t1"]], combining(c10d.AllreduceOptions, op)),
        )


def test_p008_allreduce_coalesced_refuses_an_empty_list() -> None:
    refused(
        RuntimeError,
        "requires non-empty tensor list",
        lambda pg, a: pg.allreduce_coalesced([], c10d.AllreduceCoalescedOptions()),
    )


def test_p008_allreduce_coalesced_refuses_several_dtypes() -> None:
    refused(
        RuntimeError,
        "tensors must all have the same type",
        lambda pg, a: pg.allreduce_coalesced([a["t1"], a["t2"]]),
    )


def test_p008_allreduce_coalesced_refuses_a_sparse_array_among_dense_ones() -> None:
    refused(
        RuntimeError,
        "invalid tensor layout at index 1",
        lambda pg, a: pg.allreduce_coalesced([a["t1"], coo(np.zeros(1, np.int64), 1)]),
    )


def test_p008_allreduce_coalesced_refuses_sparse_arrays() -> None:
    refused(
        RuntimeError,
        "unsupported layout",
        lambda pg, a: pg.allreduce_coalesced([coo(a["t1"], 1), coo(a["t4"], 1)]),
    )


def test_allreduce_coalesced_refuses_what_is_no_array_of_numpy() -> None:
    refused(
        TypeError,
        r"allreduce_coalesced: tensors\[0\] must be a numpy.ndarray, not memoryview",
        lambda pg, a: pg.allreduce_coalesced([memoryview(a["t1"])]),  # type: ignore[list-item]
    )


def test_p010_sparse_allreduce_refuses_an_empty_list() -> None:
    refused(RuntimeError, "requires non-empty tensor list", lambda pg, a: pg.allreduce([]))


def test_p010_sparse_allreduce_refuses_a_dense_array_before_it_looks_at_dtypes() -> None:
    refused(
        RuntimeError,
        "invalid tensor layout",
        lambda pg, a: pg.allreduce([a["t1"], coo(a["t2"], 2)]),
    )


def test_p010_sparse_allreduce_refuses_arrays_of_other_shapes() -> None:
    refused(
        RuntimeError,
        "invalid tensor size",
        lambda pg, a: pg.allreduce([coo(a["t1"], 2), coo(a["t4"], 4)]),
    )


def test_p010_allreduce_refuses_what_is_neither_dense_nor_sparse() -> None:
    refused(
        TypeError,
        r"allreduce: tensors\[0\] must be a numpy.ndarray, not list",
        lambda pg, a: pg.allreduce([[1.0, 2.0]]),  # type: ignore[list-item]
    )


@pytest.mark.parametrize("op", [ah.ReduceOp.PRODUCT, ah.ReduceOp.BAND])
def test_p010_sparse_allreduce_refuses_what_zeros_would_spoil(op: ah.ReduceOp) -> None:
    refused(
        RuntimeError,
        "unsupported reduction operation",
        lambda pg, a: pg.allreduce(
            [coo(np.zeros(1, np.int64), 4)],
            combining(c10d.AllreduceOptions, op),
        ),
    )


# ---------------------------------------------------------------- devices


class Faraway:
    """An array of another library, in the memory of a device."""

    def __init__(self, device: int, is_seen_by_cuda: bool = False) -> None:
        self._device = device
        if is_seen_by_cuda:
            self.__cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False)}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


@pytest.mark.parametrize(
    ("array", "device"),
    [(Faraway(2), "cuda"), (Faraway(1, True), "cuda"), (Faraway(10), "rocm"), (Faraway(99), "99")],
)
def test_p009_arrays_in_the_memory_of_devices_are_refused(array: Any, device: str) -> None:
    for kind in (RuntimeError, TypeError):
        refused(
            kind,
            rf"allreduce_coalesced: tensors\[1\]: unsupported device type .*{device}.*: copy it",
            lambda pg, a: pg.allreduce_coalesced([a["t1"], array]),
        )
    refused(RuntimeError, "unsupported device type", lambda pg, a: pg.broadcast(array))
    refused(RuntimeError, "unsupported device type", lambda pg, a: ah.all_reduce(array))


class Nearby(Faraway):
    """An array of another library in host memory, which NumPy sees by `__array__`."""

    def __init__(self, array: Array) -> None:
        super().__init__(1)
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


def test_p009_arrays_of_other_libraries_in_host_memory_are_taken_where_numpy_sees_them() -> None:
    def reduce_in_place(rank: int) -> None:
        array = np.full(3, float(rank))
        ah.all_reduce(Nearby(array))  # type: ignore[call-overload]
        assert (array == SIZE * (SIZE - 1) // 2).all()

    run_threads(SIZE)(reduce_in_place)
    refused(
        TypeError,
        "Faraway, which has neither the buffer protocol nor DLPack nor __array__",
        lambda pg, a: ah.all_reduce(Faraway(1)),  # type: ignore[call-overload]
    )
    refused(
        TypeError,
        r"must be a numpy\.ndarray, not Nearby; wrap it",
        lambda pg, a: pg.allreduce([Nearby(a["t1"])]),  # type: ignore[list-item]
    )


# ---------------------------------------------------------------- reduce, gather, scatter


@pytest.mark.parametrize("root", [-1, SIZE])
def test_p013_reduce_refuses_a_root_that_is_no_rank(root: int) -> None:
    refused(
        RuntimeError,
        "invalid root rank",
        lambda pg, a: pg.reduce([a["t1"]], rooted(c10d.ReduceOptions, root, 0)),
    )


def test_p013_reduce_refuses_a_root_tensor_that_is_not_there() -> None:
    refused(
        RuntimeError,
        "invalid root tensor",
        lambda pg, a: pg.reduce([a["t1"]], rooted(c10d.ReduceOptions, pg.rank(), 1)),
    )


def test_p013_reduce_takes_one_array_alone() -> None:
    refused(
        RuntimeError,
        "requires a single-element tensor list",
        lambda pg, a: pg.reduce([a["t1"], a["t4"]], rooted(c10d.ReduceOptions, pg.rank(), 0)),
    )
