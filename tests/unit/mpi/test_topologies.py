"""Grids and graphs of processes: lengths, coordinates, neighbours."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi import errors
from allhands.mpi.communicators import cartesian, graphs
from allhands.mpi.constants import ERR_ARG, ERR_DIMS, ERR_RANK, ERR_TOPOLOGY, PROC_NULL


@given(st.integers(1, 512), st.integers(1, 4))
def test_lengths_multiply_to_the_processes_longest_first(count: int, dims: int) -> None:
    found = cartesian.Compute_dims(count, dims)
    assert math.prod(found) == count
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("count", "dims", "expected"),
    [
        (6, 2, [3, 2]),
        (7, 2, [7, 1]),
        (12, 3, [3, 2, 2]),
        (64, 3, [4, 4, 4]),
        (24, [0, 4, 0], [3, 4, 2]),
        (5, [5], [5]),
    ],
)
def test_lengths_are_as_equal_as_can_be(
    count: int, dims: "int | list[int]", expected: object
) -> None:
    assert cartesian.Compute_dims(count, dims) == expected


@pytest.mark.parametrize("dims", [[4, 0], [3, 3], [-1, 0]])
def test_lengths_that_do_not_fit_are_refused(dims: list[int]) -> None:
    with pytest.raises(errors.Exception) as caught:
        cartesian.Compute_dims(6, dims)
    assert caught.value == ERR_DIMS


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_coordinates_and_ranks_are_each_others_inverse(
    dims: list[int], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, math.prod(dims) - 1))
    found = cartesian.find_coordinates(dims, rank)
    assert cartesian.find_rank(dims, [False] * len(dims), found) == rank
    around = [at + length for at, length in zip(found, dims, strict=True)]
    assert cartesian.find_rank(dims, [True] * len(dims), around) == rank
    with pytest.raises(errors.Exception) as caught:
        cartesian.find_rank(dims, [False] * len(dims), around)
    assert caught.value == ERR_RANK


def test_a_shift_ends_at_the_edge_unless_it_is_periodic() -> None:
    assert cartesian.shift([3, 2], [False, True], 0, 0, 1) == (PROC_NULL, 2)
    assert cartesian.shift([3, 2], [False, True], 0, 1, 1) == (1, 1)
    assert cartesian.list_neighbours([3, 2], [False, True], 5) == [3, PROC_NULL, 4, 4]


def test_graphs_are_those_of_the_standard() -> None:
    index, edges = graphs.check_graph([2, 3, 4, 6], [1, 3, 0, 3, 0, 2], 5)
    assert [graphs.list_neighbours(index, edges, node) for node in range(4)] == [
        [1, 3],
        [0],
        [3],
        [0, 2],
    ]
    with pytest.raises(errors.Exception) as caught:
        graphs.check_graph([2, 3, 4, 6], [1, 3, 0, 3, 0, 2], 3)
    assert caught.value == ERR_TOPOLOGY


@pytest.mark.parametrize(
    ("index", "edges"), [([2, 1], [0, 1]), ([-1, 1], [0]), ([1, 5], [0, 1]), ([1, 2], [0, 2])]
)
def test_an_index_that_does_not_fit_its_edges_is_refused(
    index: list[int], edges: list[int]
) -> None:
    with pytest.raises(errors.Exception) as caught:
        graphs.check_graph(index, edges, 2)
    assert caught.value == ERR_ARG


def test_edges_of_no_node_are_left_out() -> None:
    assert graphs.check_graph([1], [0, 9, 9], 1) == ([1], [0])
    assert graphs.check_graph([0, 0, 1], [0], 2) == ([0, 1], [0])
    assert graphs.check_graph([], [], 2) == ([], [])


def test_a_neighbour_is_a_rank_or_proc_null() -> None:
    graphs.check_ranks([0, 1, PROC_NULL], 2)
    for stranger in (-1, 2):
        with pytest.raises(errors.Exception) as caught:
            graphs.check_ranks([0, stranger], 2)
        assert caught.value == ERR_ARG


def test_edges_that_others_give_reach_both_ends() -> None:
    given_here = graphs.list_edges([0, 1], [2, 1], [1, 2, 2], [5, 6, 7])
    assert given_here == [(0, 1, 5), (0, 2, 6), (1, 2, 7)]
    found = graphs.select(given_here, 2, has_weights=True)
    assert (found.sources, found.source_weights) == ([0, 1], [6, 7])
    assert found.destinations == []
    with pytest.raises(ValueError, match="do not fit together"):
        graphs.list_edges([0], [2], [1], None)
