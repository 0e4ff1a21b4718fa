"""Arrays of libraries that may not be installed: what is read, written, and given back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import run_threads

F = ah.functional


def make_jax(values: list[float]) -> Any:
    return pytest.importorskip("jax").numpy.asarray(values, dtype="float32")


def make_series(values: list[float]) -> Any:
    return pytest.importorskip("pandas").Series(values, index=[7, 8], name="loss")


def make_frame(values: list[float]) -> Any:
    return pytest.importorskip("pandas").DataFrame({"a": values, "b": values})


def make_polars(values: list[float]) -> Any:
    return pytest.importorskip("polars").Series("loss", values)


def make_arrow(values: list[float]) -> Any:
    return pytest.importorskip("pyarrow").array(values)


def make_chunked(values: list[float]) -> Any:
    return pytest.importorskip("pyarrow").chunked_array([values[:1], values[1:]])


def make_xarray(values: list[float]) -> Any:
    return pytest.importorskip("xarray").DataArray(values, dims=["time"], coords={"time": [1, 2]})


def make_standard(values: list[float]) -> Any:
    return pytest.importorskip("array_api_strict").asarray(values)


def make_tensor(values: list[float]) -> Any:
    return pytest.importorskip("torch").tensor(values)


MAKERS = [
    make_jax,
    make_series,
    make_frame,
    make_polars,
    make_arrow,
    make_chunked,
    make_xarray,
    make_standard,
    make_tensor,
]
each_library = pytest.mark.parametrize("make", MAKERS, ids=lambda one: one.__name__[5:])


@each_library
def test_a_new_array_is_one_of_the_library(make: Callable[[list[float]], Any]) -> None:
    make([0.0, 0.0])  # skips on this thread

    def body(rank: int) -> None:
        x = make([1.0 + rank, 2.0])
        for total in (F.all_reduce(x, "sum"), F.all_reduce(x, "sum", async_op=True).result()):
            assert type(total) is type(x)
            assert np.asarray(total).T.ravel()[:2].tolist() == [3.0, 4.0]
            if make in (make_series, make_frame):
                assert total.index.equals(x.index)
            if make is make_xarray:
                assert total.coords.equals(x.coords)
        whole = F.all_gather_tensor(x)
        assert type(whole) is type(x)
        assert len(np.asarray(whole)) == 2 * len(np.asarray(x))

    run_threads(2)(body)


@each_library
def test_it_is_read_and_written_in_place_or_refused(make: Callable[[list[float]], Any]) -> None:
    make([0.0, 0.0])

    def body(rank: int) -> None:
        x = make([1.0 + rank, 2.0])
        plain = np.asarray(x)
        out = np.zeros((2, *plain.shape), plain.dtype)
        ah.all_gather_into_tensor(out, x)
        np.testing.assert_array_equal(out[rank], plain)
        refusal = None
        try:
            ah.all_reduce(x)
        except ValueError as error:
            refusal = str(error)
        if refusal is None:
            np.testing.assert_array_equal(np.asarray(x), out.sum(axis=0))
        else:
            assert "ah.functional" in refusal
            np.testing.assert_array_equal(np.asarray(x), out[rank])
        if make in (make_jax, make_polars, make_arrow, make_chunked):  # which do not change
            assert refusal is not None
        if make in (make_standard, make_tensor, make_xarray):
            assert refusal is None

    run_threads(2)(body)


@pytest.mark.parametrize("make", [make_arrow, make_polars], ids=lambda one: one.__name__[5:])
def test_missing_values_are_refused(make: Callable[[list[Any]], Any]) -> None:
    x = make([1, None])
    ah.init_process_group(backend="fake", rank=0, world_size=2)
    try:
        for call in (F.all_reduce, ah.all_gather_v, lambda one: ah.send(one, 1)):
            with pytest.raises(TypeError, match="1 missing value,"):
                call(x)
    finally:
        ah.destroy_process_group()


def test_a_tensor_that_needs_its_gradient_is_refused_with_the_way_out() -> None:
    torch = pytest.importorskip("torch")
    ah.init_process_group(backend="fake", rank=0, world_size=2)
    try:
        for call in (ah.all_reduce, F.all_reduce):
            with pytest.raises(TypeError, match="detach"):
                call(torch.ones(2, requires_grad=True))
    finally:
        ah.destroy_process_group()
