"""Buffer specifications as the native core reads them; what it leaves to the careful way."""

import gc
import mmap
from typing import Any

import numpy as np
import pytest

from allhands.mpi.buffers.plain_specs import copy_spec, view_spec
from allhands.mpi.datatypes.predefined import CONSTANTS, DATATYPE_NULL
from allhands.mpi.memory.special import BOTTOM, IN_PLACE
from allhands.runtime import native_core

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

_BYTE, _DOUBLE, _INT = (CONSTANTS[name] for name in ("BYTE", "DOUBLE", "INT"))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: [x, _DOUBLE],
        lambda x: (x, 6, _DOUBLE),
        lambda x: [x, None, _DOUBLE],
        lambda x: [x, 6],
        lambda x: x.reshape(2, 3),
        lambda x: [memoryview(x), _DOUBLE],
        lambda x: [x.view(np.uint8), 6, _DOUBLE],
    ],
)
def test_all_forms_name_the_same_elements(make: Any) -> None:
    x = np.arange(6.0)
    found = view_spec(make(x), True, False, 1)
    assert found.dtype == np.float64
    assert found.shape == (6,)
    found[:] = 7.0
    assert x.tolist() == [7.0] * 6
    as_bytes = view_spec(make(x), True, True, 1)
    assert as_bytes.dtype == np.uint8
    assert as_bytes.shape == (48,)
    assert np.shares_memory(as_bytes, x)


def test_a_count_is_that_of_one_block() -> None:
    x = np.arange(7.0)
    assert view_spec([x, 3, _DOUBLE], False, False, 2).tolist() == list(range(6))
    assert view_spec([x, 2, _DOUBLE], False, False, 1).tolist() == [0.0, 1.0]
    assert view_spec([x, 0, _DOUBLE], False, False, 2).size == 0


@pytest.mark.parametrize(
    ("spec", "blocks"),
    [
        ([np.ones(2), 3, _DOUBLE], 1),
        ([np.ones(5), 3, _DOUBLE], 2),
        ([np.ones(2), -1, _DOUBLE], 1),
        ([np.ones(2), 1 << 62, _DOUBLE], 4),
        ([np.ones(2), 1 << 70, _DOUBLE], 1),
        (np.ones(3), 2),
        ([np.zeros(9, np.uint8), _DOUBLE], 1),
        (np.ones(4)[::2], 1),
        ([np.ones(4)[::2], _DOUBLE], 1),
        (np.ones(2, ">f8"), 1),
        (np.ones(2, "M8[s]"), 1),
        (np.array([None]), 1),
        ([np.ones(2), DATATYPE_NULL], 1),
        ([np.ones(2), "d"], 1),
        ([np.ones(2), (2, 0), _DOUBLE], 1),
        ([np.ones(2), 2, 0, _DOUBLE], 1),
        ([np.ones(2), _DOUBLE.Create_vector(2, 1, 2)], 1),
        ([np.ones(2), _DOUBLE.Create_resized(0, 16)], 1),
        ([np.ones(2), _DOUBLE.Create_contiguous(2)], 1),
        ([memoryview(np.ones(4))[::2], _DOUBLE], 1),
        (b"12345678", 1),
        ([b"12345678", 8], 1),
        ([BOTTOM, 8, _BYTE], 1),
        ([IN_PLACE, 0, _BYTE], 1),
        ([None, 0, _BYTE], 1),
        ([], 1),
        (None, 1),
        (IN_PLACE, 1),
        (1.5, 1),
    ],
)
def test_what_is_not_plain_is_left(spec: Any, blocks: int) -> None:
    for as_bytes in (True, False):
        assert view_spec(spec, False, as_bytes, blocks) is None


def test_what_must_not_be_written_is_only_read() -> None:
    locked = np.ones(2)
    locked.flags.writeable = False
    for spec in (locked, [locked, _DOUBLE], [bytes(16), _DOUBLE]):
        assert view_spec(spec, True, True, 1) is None
        found = view_spec(spec, False, True, 1)
        assert found.size == 16
        assert not found.flags.writeable


def test_memory_lives_as_long_as_its_view() -> None:
    found = view_spec([bytearray(b"\x05" * 4096), _BYTE], True, False, 1)
    gc.collect()
    assert set(found.tolist()) == {5}
    memory = mmap.mmap(-1, 4096)
    view = view_spec([memory, 8, _BYTE], True, False, 1)
    with pytest.raises(BufferError):
        memory.close()
    del view
    memory.close()


def test_a_freed_datatype_is_left() -> None:
    made = _INT.Dup()
    x = np.ones(2, np.int32)
    assert view_spec([x, made], True, False, 1).size == 2
    made.Free()
    assert view_spec([x, made], True, False, 1) is None


def test_elements_are_copied_where_they_are_the_same() -> None:
    x, y = np.arange(4.0), np.zeros(4)
    assert copy_spec([x, 4, _DOUBLE], y)
    assert y.tolist() == x.tolist()
    large, target = np.arange(1 << 20), np.zeros(1 << 20, np.int64)
    assert copy_spec(large, target)
    assert (large == target).all()


@pytest.mark.parametrize(
    "make", [lambda x: x[:3], lambda x: x.view(np.int64), lambda x: [x, _BYTE], lambda x: [1.0] * 4]
)
def test_other_elements_are_not_copied(make: Any) -> None:
    y = np.zeros(4)
    assert not copy_spec(make(np.ones(4)), y)
    assert y.tolist() == [0.0] * 4


def test_overlapping_memory_is_not_copied() -> None:
    x = np.arange(6.0)
    assert not copy_spec(x[1:5], x[2:])
    assert x.tolist() == list(range(6))
