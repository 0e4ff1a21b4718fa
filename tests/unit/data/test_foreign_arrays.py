"""Arrays of other libraries as NumPy arrays: memory where it may be written, else copies."""

import mmap
from array import array
from typing import Any

import numpy as np
import pytest

from allhands.data import foreign_arrays
from allhands.data.array_kinds import restore_kind
from support.arrays.foreign import Copied, Described, Tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda memory: Tensor(memory),
        lambda memory: Described(memory),
        lambda memory: memoryview(memory),
        lambda memory: Tensor(memory[::2]),
        lambda memory: memoryview(memory[::-1]),
    ],
)
def test_the_memory_is_found(make: Any) -> None:
    memory = np.arange(6.0)
    for find in (foreign_arrays.find_memory, foreign_arrays.read_array):
        found = find(make(memory), "x")
        assert np.shares_memory(found, memory)
        assert found.flags.writeable


@pytest.mark.parametrize(
    "given", [bytearray(b"\1\2"), array("h", [1, 2]), mmap.mmap(-1, 64)], ids=["bytes", "h", "map"]
)
def test_writable_buffers_are_written(given: Any) -> None:
    foreign_arrays.find_memory(given, "x")[:2] = 7
    assert list(given[:2]) in ([7, 7], [b"\7", b"\7"])


def test_bytes_are_numbers_and_only_read() -> None:
    assert foreign_arrays.read_array(b"ab", "x").tolist() == [97, 98]
    with pytest.raises(ValueError, match=r"x is read-only \(a value of type bytes\)"):
        foreign_arrays.find_memory(b"ab", "x")


def test_one_protocol_that_says_read_only_is_enough() -> None:
    class Unsure(Tensor):
        """Its DLPack does not say that it is read-only, as some do not."""

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            view = self.array.view()
            view.flags.writeable = False
            return view

    with pytest.raises(ValueError, match="read-only"):
        foreign_arrays.find_memory(Unsure(np.ones(2)), "x")


def test_what_gives_numpy_a_copy_is_read_and_not_written() -> None:
    assert foreign_arrays.read_array(Copied(np.arange(2)), "x").tolist() == [0, 1]
    with pytest.raises(
        ValueError,
        match=r"x, of type Copied, gives NumPy a copy.*ah\.functional, which returns a new array$",
    ):
        foreign_arrays.find_memory(Copied(np.arange(2)), "x")


def test_another_device_is_asked_for_a_copy_and_named_where_it_has_none() -> None:
    assert foreign_arrays.read_array(Tensor(np.arange(2), (2, 0)), "x").tolist() == [0, 1]

    class Stubborn(Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no copy")

    for find in (foreign_arrays.read_array, foreign_arrays.find_memory):
        with pytest.raises(TypeError, match="unsupported device type rocm"):
            find(Stubborn(np.arange(2), (10, 0)), "x")


def test_what_a_library_says_is_passed_on() -> None:
    class Refusing:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise RuntimeError("call detach() first")

    for find in (foreign_arrays.read_array, foreign_arrays.find_memory):
        with pytest.raises(TypeError, match=r"x, of type Refusing.*call detach\(\) first"):
            find(Refusing(), "x")


@pytest.mark.parametrize("given", [[1.0], (1.0,), 2, 0.5])
def test_numbers_and_lists_are_told_how_to_become_arrays(given: object) -> None:
    wrapped = r"^x must be a numpy\.ndarray, not .*; wrap it: x = np\.asarray\(\.\.\.\)"
    with pytest.raises(TypeError, match=f"{wrapped}$"):
        foreign_arrays.read_array(given, "x")
    with pytest.raises(TypeError, match=f"{wrapped}, and read the result from x$"):
        foreign_arrays.find_memory(given, "x")


def test_missing_values_are_counted() -> None:
    class Column(Copied):
        null_count = 2

    with pytest.raises(TypeError, match="2 missing values,"):
        foreign_arrays.read_array(Column(np.ones(3)), "x")
    Column.null_count = 1
    with pytest.raises(TypeError, match="x, of type Column, has 1 missing value,"):
        foreign_arrays.read_array(Column(np.ones(3)), "x")
    Column.null_count = 0
    assert foreign_arrays.read_array(Column(np.ones(3)), "x").size == 3


def test_kinds_that_are_not_known_get_numpy_arrays() -> None:
    made = np.ones(2)
    for given in (np.zeros(2), np.float64(1), Copied(made), mmap.mmap(-1, 16)):
        assert restore_kind(made, given) is made
    assert restore_kind(np.arange(3, dtype=np.uint8), bytearray()) == bytearray(b"\0\1\2")
    assert restore_kind(made, array("d")) == array("d", [1, 1])
