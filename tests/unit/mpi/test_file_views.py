"""Views of files beside a list of every byte."""

from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.predefined import CONSTANTS
from allhands.mpi.files.views import View

INT = CONSTANTS["INT"]
_TILES: list[Datatype] = [
    INT,
    INT.Create_vector(3, 1, 2),
    INT.Create_resized(0, 12),
    INT.Create_indexed([1, 2], [1, 4]).Create_resized(0, 32),
    INT.Create_subarray([2, 5], [2, 2], [0, 3]),
    INT.Create_hindexed([1], [8]).Create_resized(0, 16),
]
_WOVEN: list[Datatype] = [
    INT.Create_vector(3, 1, 4).Create_resized(0, 4),
    INT.Create_hindexed([1, 1], [4, 40]).Create_resized(0, 8),
]
"""Tiles that reach into those that follow."""


def _bytes_of(view: View, tiles: int) -> list[int]:
    """Return the bytes of the file that hold the data, in order."""
    tile = view.tile
    return [
        view.disp + number * tile.extent + byte
        for number in range(tiles)
        for offset, length in zip(tile.offsets.tolist(), tile.lengths.tolist(), strict=True)
        for byte in range(offset, offset + length)
    ]


@given(st.sampled_from(_TILES), st.integers(0, 9), st.integers(0, 90), st.integers(0, 70))
def test_runs_are_the_bytes_of_the_tiles(tile: Datatype, disp: int, start: int, count: int) -> None:
    view = View(disp, 4, tile.layout)
    known = _bytes_of(view, 60)
    offsets, lengths = view.find_runs(start, count)
    found = [
        byte
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        for byte in range(offset, offset + length)
    ]
    assert found == known[start : start + count]
    assert all(a + n < b for a, n, b in zip(offsets, lengths, offsets[1:], strict=False))
    assert view.find_byte(start) == known[start]


@given(st.sampled_from(_TILES + _WOVEN), st.integers(0, 9), st.integers(0, 200))
def test_data_in_the_first_bytes_is_counted(tile: Datatype, disp: int, size: int) -> None:
    view = View(disp, 4, tile.layout)
    assert view.measure(size) == sum(byte < size for byte in _bytes_of(view, 60))


@given(st.sampled_from(_WOVEN), st.integers(0, 9), st.integers(0, 90), st.integers(0, 70))
def test_tiles_may_reach_into_one_another(
    tile: Datatype, disp: int, start: int, count: int
) -> None:
    view = View(disp, 4, tile.layout)
    offsets, lengths = view.find_runs(start, count)
    found = [
        byte
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        for byte in range(offset, offset + length)
    ]
    assert found == _bytes_of(view, 60)[start : start + count]


def test_few_runs_are_found_in_a_tile_of_many() -> None:
    tile = INT.Create_vector(1 << 20, 1, 2).layout
    view = View(100, 4, tile)
    offsets, lengths = view.find_runs(4 * 500_000 + 1, 6)
    assert offsets.tolist() == [100 + 8 * 500_000 + 1, 100 + 8 * 500_001]
    assert lengths.tolist() == [3, 3]


def test_a_view_without_data_has_no_runs() -> None:
    view = View(7, 4, INT.Create_contiguous(0).layout)
    assert view.find_runs(0, 8)[0].size == 0
    assert view.find_byte(3) == 7
    assert view.measure(100) == 0
