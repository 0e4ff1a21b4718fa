"""Arrays accepted by collectives, and views or copies of these arrays."""

import numpy as np
import pytest

from allhands.collectives import arguments
from allhands.collectives.buffer import Array, view_as_bytes
from allhands.errors import InvalidArgument

# ---------------------------------------------------------------- any array


@pytest.mark.parametrize("given", [[1, 2], 3, None, "text", np.float64(1), memoryview(b"x")])
def test_only_arrays_are_taken(given: object) -> None:
    for check in (arguments.check_target, arguments.check_source):
        with pytest.raises(TypeError, match=r"x must be a numpy\.ndarray, not"):
            check(given, "x")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ma.masked_array([1, 2], [False, True]), "x is a masked array"),
        (np.array([object()]), "x holds Python objects"),
        (np.zeros(2, [("a", int), ("b", object)]), "x holds Python objects"),
        (np.zeros(3, "V0"), "x has elements of no bytes"),
    ],
)
def test_what_is_no_plain_data_is_refused(array: Array, text: str) -> None:
    for check in (arguments.check_target, arguments.check_source):
        with pytest.raises(TypeError, match=text):
            check(array, "x")


@pytest.mark.parametrize(
    "array",
    [
        np.array(5.0),
        np.zeros((2, 3, 4)),
        np.zeros((3, 0)),
        np.zeros(10)[2:5],
        np.zeros((4, 4))[1:3],
        np.zeros(4, "i2,f8"),
        np.frombuffer(bytearray(17), np.float64, 2, offset=1),
        np.zeros((2, 2)).view(np.recarray),
    ],
    ids=repr,
)
def test_a_contiguous_array_is_seen_flat_and_written_through(array: Array) -> None:
    for flat in (arguments.check_target(array, "x"), arguments.check_source(array, "x")):
        assert flat.shape == (array.size,)
        assert type(flat) is np.ndarray
        assert len(view_as_bytes(flat)) == array.nbytes
        assert flat.size == 0 or np.shares_memory(flat, array)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_subclass_that_cannot_be_flat_is_seen_flat_too() -> None:
    matrix = np.asmatrix(np.zeros((2, 3)))
    assert (
        arguments.check_target(matrix, "x").shape
        == arguments.check_source(matrix, "x").shape
        == (6,)
    )


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="came with NumPy 2")
def test_strings_kept_elsewhere_are_refused() -> None:
    with pytest.raises(TypeError, match="x holds Python objects"):
        arguments.check_source(np.array(["text"], np.dtypes.StringDType()), "x")


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 4)).T,
        np.zeros(10)[::2],
        np.zeros(10)[::-1],
        np.zeros((4, 4))[:, 1:3],
        np.broadcast_to(np.zeros(1), 5),
    ],
    ids=lambda array: str(array.strides),
)
def test_an_output_that_is_not_contiguous_is_refused_with_a_way_out(array: Array) -> None:
    with pytest.raises(ValueError, match=r"x must be C-contiguous.*ascontiguousarray"):
        arguments.check_target(array, "x")


def test_an_output_that_is_read_only_is_refused() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    for given in (array, np.frombuffer(b"12345678")):
        with pytest.raises(ValueError, match="x is read-only"):
            arguments.check_target(given, "x")


def test_a_list_of_outputs_has_one_for_each_rank() -> None:
    two = [np.zeros(2), np.zeros(3)]
    assert [len(view) for view in arguments.check_targets(two, "out", 2)] == [2, 3]
    assert [len(view) for view in arguments.check_targets(tuple(two), "out", 2)] == [2, 3]
    with pytest.raises(ValueError, match="out has 2 arrays, the group has 3 ranks"):
        arguments.check_targets(two, "out", 3)
    with pytest.raises(TypeError, match="out must be a list of 2 arrays, one for each rank"):
        arguments.check_targets(np.zeros((2, 2)), "out", 2)
    with pytest.raises(TypeError, match=r"out\[1\] must be a numpy\.ndarray"):
        arguments.check_targets([np.zeros(2), 3], "out", 2)


def test_outputs_that_share_memory_are_refused() -> None:
    x = np.zeros(10)
    for pair in ([x, x], [x[:6], x[5:]], [x[5:], x[:6]], [x[2:3], x]):
        with pytest.raises(InvalidArgument, match="two arrays of out share memory: one would"):
            arguments.check_targets(pair, "out", 2)


def test_the_same_array_may_be_written_several_times_in_place() -> None:
    x = np.zeros(10)
    for several in ([x, x], [x, x.reshape(2, 5)], [x[5:], x[:5], x[5:], x[5:]], [x, x[:0], x]):
        found = arguments.check_targets(several, "out", len(several), in_place=True)
        assert [view.size for view in found] == [one.size for one in several]
    for several in ([x[:6], x[5:]], [x, x, x[2:3]], [x, x[:5]], [x, x.view(np.int64)]):
        with pytest.raises(InvalidArgument, match="share memory: the same array may be there"):
            arguments.check_targets(several, "out", len(several), in_place=True)


def test_outputs_that_touch_or_are_empty_share_nothing() -> None:
    x = np.zeros(10)
    for pair in ([x[:5], x[5:]], [x[5:], x[:5]], [x[:0], x[:0]], [x, x[5:5]]):
        assert len(arguments.check_targets(pair, "out", 2)) == 2


# ---------------------------------------------------------------- inputs


def test_an_input_is_not_copied_without_need() -> None:
    x = np.arange(6).reshape(2, 3)
    x.flags.writeable = False
    assert np.shares_memory(arguments.check_source(x, "x", [np.zeros(6)]), x)


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[::-1], np.s_[:, 1], np.s_[..., ::-2]])
def test_an_input_that_is_not_contiguous_is_copied_as_it_looks(view: slice) -> None:
    x = np.arange(12).reshape(3, 4)
    flat = arguments.check_source(x[view], "x")
    np.testing.assert_array_equal(flat, x[view].ravel())
    assert flat.flags.c_contiguous


def test_an_input_laid_out_by_columns_is_read_by_rows() -> None:
    x = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(arguments.check_source(x, "x"), np.arange(6))


def test_an_input_that_shares_memory_with_an_output_is_copied() -> None:
    x = np.arange(10)
    written = [arguments.check_target(x[3:7], "out")]
    for given in (x, x[:4], x[6:]):
        flat = arguments.check_source(given, "x", written)
        assert not np.shares_memory(flat, x)
        np.testing.assert_array_equal(flat, given)
    assert np.shares_memory(arguments.check_source(x[:3], "x", written), x)


def test_each_of_a_list_of_inputs_is_copied_only_if_it_must_be() -> None:
    x = np.arange(10)
    first, second = arguments.check_sources([x[:5], x[5:]], "x", 2, [x[:2]])
    assert not np.shares_memory(first, x)
    assert np.shares_memory(second, x)


# ---------------------------------------------------------------- together


def test_arrays_that_must_be_alike_are_named_when_they_are_not() -> None:
    names = ["x", "outputs[0]"]
    arguments.check_alike([np.zeros(2), np.zeros(2)], names)
    with pytest.raises(
        ValueError, match=r"outputs\[0\] has 3 elements, x has 2: they must be equal"
    ):
        arguments.check_alike([np.zeros(2), np.zeros(3)], names)
    with pytest.raises(ValueError, match=r"x is float64, outputs\[0\] is >f8"):
        arguments.check_alike([np.zeros(2), np.zeros(2, ">f8")], names)


def test_rows_are_shared_equally_unless_said_otherwise() -> None:
    assert arguments.check_splits(None, "s", 6, 3) == [2, 2, 2]
    assert arguments.check_splits(None, "s", 0, 3) == [0, 0, 0]
    assert arguments.check_splits([0, 5, 1], "s", 6, 3) == [0, 5, 1]
    assert arguments.check_splits(np.array([4, 2]), "s", 6, 2) == [4, 2]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "7 rows, which 3 ranks cannot share equally: pass s"),
        ([7], "Number of tensor splits not equal to group size: s has 1, the group 3 ranks"),
        ([], "s has 0, the group 3 ranks"),
        ([3, 3, 2], "Split sizes doesn't match total dim 0 size"),
        ([8, -1, 0], "Split sizes doesn't match total dim 0 size"),
    ],
)
def test_splits_that_do_not_add_up_are_refused(given: list[int] | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        arguments.check_splits(given, "s", 7, 3)
