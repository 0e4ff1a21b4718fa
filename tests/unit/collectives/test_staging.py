"""Staging of outputs: what is copied, when it is stored, and what is refused."""

import numpy as np
import pytest

from allhands.collectives.staging import Outputs
from allhands.errors import AllhandsError, InvalidArgument

VIEWS = [np.s_[::2], np.s_[:, 1], np.s_[::-1, ::-2], np.s_[..., 1:3]]


def test_what_is_contiguous_is_not_staged() -> None:
    outputs, x = Outputs(), np.zeros((2, 3))
    assert np.shares_memory(outputs.check(x, "x"), x)
    assert outputs.staging is None


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_a_copy_is_loaded_and_stored_as_the_array_looks(view: slice) -> None:
    whole = np.arange(12).reshape(3, 4)
    x, outputs = whole[view], Outputs()
    flat = outputs.check(x, "x")
    x[...] += 100  # between the call and its turn
    staging = outputs.staging
    assert staging is not None
    staging.load()
    np.testing.assert_array_equal(flat, x.ravel())
    expected = whole.copy()
    expected[view] *= 2
    flat *= 2
    assert not (whole == expected).all()
    staging.store()
    np.testing.assert_array_equal(whole, expected)


def test_a_call_that_fails_stores_nothing_and_says_so() -> None:
    x, outputs = np.zeros(4)[::2], Outputs()
    flat = outputs.check(x, "x")
    assert outputs.staging is not None

    def run() -> bool:
        flat[...] = 7
        error = AllhandsError("it failed")
        error.add_intact(False, say=True)
        raise error

    with pytest.raises(AllhandsError, match="untouched") as caught:
        outputs.staging.carry_out(run)
    assert caught.value.outputs_intact
    assert not x.any()


def test_a_call_that_is_declined_stores_nothing() -> None:
    x, outputs = np.zeros(4)[::2], Outputs()
    flat = outputs.check(x, "x")
    assert outputs.staging is not None
    assert not outputs.staging.carry_out(lambda: bool(flat.fill(7)))
    assert not x.any()


def test_an_error_says_nothing_of_outputs_that_are_written_directly() -> None:
    outputs = Outputs()
    outputs.check_list([np.zeros(2), np.zeros(4)[::2]], "out", 2)
    assert outputs.staging is not None
    error = AllhandsError("it failed")
    error.add_intact(False, say=True)
    outputs.staging.note_failure(error)
    assert not error.outputs_intact


@pytest.mark.parametrize(
    ("shape", "strides"), [((3,), (0,)), ((2, 2), (8, 8)), ((2, 2), (16, 4)), ((3, 2), (-8, 16))]
)
def test_elements_that_share_memory_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    memory = np.zeros(16)
    x = np.lib.stride_tricks.as_strided(memory[4:], shape, strides)
    with pytest.raises(InvalidArgument, match="elements of x share memory"):
        Outputs().check(x, "x")


def test_columns_of_a_matrix_stand_beside_each_other() -> None:
    matrix = np.zeros((4, 3))
    assert len(Outputs().check_list([matrix[:, at] for at in range(3)], "out", 3)) == 3
    for outputs in ([matrix[:, 0], matrix[:, 0]], [matrix[:, 1], matrix[1]], [matrix.T, matrix]):
        with pytest.raises(InvalidArgument, match="share memory"):
            Outputs().check_list(outputs, "out", 2)


def test_in_place_an_array_may_be_there_twice_in_one_layout() -> None:
    x = np.zeros((2, 2))
    assert len(Outputs().check_list([x.T, x.T], "x", 2, in_place=True)) == 2
    with pytest.raises(InvalidArgument, match="share memory"):
        Outputs().check_list([x, x.T], "x", 2, in_place=True)


def test_a_root_brings_what_it_likes_and_keeps_it() -> None:
    x = np.arange(4)
    x.flags.writeable = False
    outputs = Outputs()
    flat = outputs.check_root(x, "x", is_root=True)
    assert outputs.staging is not None
    outputs.staging.load()
    assert flat.tolist() == [0, 1, 2, 3]
    flat[...] = 0
    outputs.staging.store()
    assert x.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        Outputs().check_root(x, "x", is_root=False)
