"""Layouts of derived datatypes beside a list of every byte; packing, counting, external32."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi.datatypes.copying import pack, unpack
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.packing import from_external, to_external
from allhands.mpi.datatypes.predefined import CONSTANTS

BYTE, SHORT, INT, DOUBLE = (CONSTANTS[name] for name in ("BYTE", "SHORT", "INT", "DOUBLE"))
ByteMap = tuple[list[int], int, int]
"""Bytes of an element in order, lower bound and extent."""

_small = st.integers(0, 3)
_places = st.lists(st.integers(0, 9), min_size=1, max_size=3)


def _bytes_of(datatype: Datatype) -> list[int]:
    layout = datatype.layout
    return [
        byte
        for offset, length in zip(layout.offsets.tolist(), layout.lengths.tolist(), strict=True)
        for byte in range(offset, offset + length)
    ]


def _place(old: ByteMap, counts: list[int], where: list[int]) -> ByteMap:
    """Return the bytes of blocks, one after the other: the definition, byte by byte."""
    found, lb, extent = old
    data = [
        at + number * extent + byte
        for count, at in zip(counts, where, strict=True)
        for number in range(count)
        for byte in found
    ]
    begins = [at + n * extent + lb for c, at in zip(counts, where, strict=True) for n in range(c)]
    if not begins:
        return [], 0, 0
    return data, min(begins), max(begin + extent for begin in begins) - min(begins)


@st.composite
def _derived(draw: Callable[[Any], Any], depth: int = 2) -> tuple[Datatype, ByteMap]:
    if depth == 0:
        basic = draw(st.sampled_from([BYTE, SHORT, INT]))
        return basic, (list(range(basic.size)), 0, basic.size)
    old, known = draw(_derived(depth - 1))
    extent = known[2]
    match draw(st.integers(0, 4)):
        case 0:
            count = draw(_small)
            return old.Create_contiguous(count), _place(known, [count], [0])
        case 1:
            count, length, stride = draw(_small), draw(_small), draw(st.integers(-3, 4))
            where = [number * stride * extent for number in range(count)]
            made = old.Create_vector(count, length, stride)
            return made, _place(known, [length] * count, where)
        case 2:
            places = draw(_places)
            counts = [draw(_small) for _ in places]
            made = old.Create_hindexed(counts, places)
            return made, _place(known, counts, places)
        case 3:
            length, places = draw(_small), draw(_places)
            where = [place * extent for place in places]
            made = old.Create_indexed_block(length, places)
            return made, _place(known, [length] * len(places), where)
        case _:
            lb, wide = draw(st.integers(-4, 4)), draw(st.integers(0, 20))
            return old.Create_resized(lb, wide), (known[0], lb, wide)


@given(_derived())
def test_layouts_are_those_of_the_definition(made: tuple[Datatype, ByteMap]) -> None:
    datatype, (data, lb, extent) = made
    assert _bytes_of(datatype) == data
    assert datatype.size == len(data)
    if data:
        assert (datatype.lb, datatype.extent) == (lb, extent)
        assert datatype.true_lb == min(data)
        assert datatype.true_ub == max(data) + 1


@given(_derived(), st.integers(0, 3), st.data())
def test_what_is_packed_is_unpacked(
    made: tuple[Datatype, ByteMap], count: int, data: st.DataObject
) -> None:
    datatype, (known, _, _) = made
    extent = datatype.extent
    places = [number * extent + byte for number in range(count) for byte in known]
    low = min([0, *places])
    source = np.arange(max([0, *places]) - low + 1, dtype=np.int64).astype(np.uint8)
    packed = pack(datatype.layout, source, -low, count)
    assert packed.tolist() == [source[place - low] for place in places]
    if len(set(places)) < len(places):
        return  # elements that overlap are not received into
    length = data.draw(st.integers(0, packed.size))
    target = np.full_like(source, 255)
    unpack(datatype.layout, packed[:length].copy(), target, -low, count)
    expected = np.full_like(source, 255)
    for place in places[:length]:
        expected[place - low] = source[place - low]
    assert target.tolist() == expected.tolist()


def test_elements_beyond_the_buffer_are_refused() -> None:
    vector = INT.Create_vector(2, 1, 4)
    data = np.zeros(20, np.uint8)
    assert pack(vector.layout, data, 0, 1).size == 8
    for offset in (1, -1):
        with pytest.raises(ValueError, match="of a buffer of 20 bytes"):
            pack(vector.layout, data, offset, 1)
        with pytest.raises(ValueError, match="of a buffer of 20 bytes"):
            unpack(vector.layout, np.zeros(8, np.uint8), data, offset, 1)


def test_a_subarray_is_that_of_numpy() -> None:
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    part = INT.Create_subarray([3, 4, 5], [2, 1, 3], [1, 2, 1])
    packed = part.pack(array.reshape(-1).view(np.uint8), 0, 1)
    assert packed.view(np.int32).tolist() == array[1:3, 2:3, 1:4].ravel().tolist()
    assert part.extent == array.nbytes


def test_structs_are_padded_as_in_c() -> None:
    struct = Datatype.Create_struct([1, 1], [0, 8], [DOUBLE, SHORT])
    assert (struct.size, struct.extent) == (10, 16)
    assert struct.count_elements(20) == 2
    assert struct.measure_elements(18) == 3
    assert struct.measure_elements(19) < 0


def test_external32_is_big_endian_and_comes_back() -> None:
    numbers = np.array([1, -2, 1 << 20], np.int32)
    packed = numbers.view(np.uint8)
    external = to_external(packed, INT.layout.basics, 3)
    assert external.view(">i4").tolist() == numbers.tolist()
    assert from_external(external, INT.layout.basics, 3).tolist() == packed.tolist()
