"""Folds of all operands at once, in the native core and in Python."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allhands.collectives.reduction import (
    OPS,
    TYPES,
    ReduceOp,
    check,
    combine,
    finish,
    fold,
    folds,
    must_fold_at_once,
    scale,
)

Array = npt.NDArray[Any]
PAIR = np.dtype([("value", np.float32), ("index", np.int64)])


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def folded(op: ReduceOp, operands: Sequence[Array]) -> Array:
    before = [operand.copy() for operand in operands]
    out = np.zeros_like(operands[0])
    fold(op, operands, out, len(operands))
    for operand, old in zip(operands, before, strict=True):
        assert operand.tobytes() == old.tobytes()
    over = [operand.copy() for operand in operands]
    fold(op, over, over[-1], len(over))
    assert over[-1].tobytes() == out.tobytes()
    return out


def pairs(*rows: tuple[float, int]) -> Array:
    return np.array(list(rows), PAIR)


# ---------------------------------------------------------------- with and without the core


DEFINED = [(op, name) for op in OPS for name in TYPES]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_fold_gives_the_same_bits_without_the_native_core(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(size)
    for op, name in DEFINED:
        dtype = dtype_of(name)
        try:
            check(op, dtype)
        except TypeError:
            continue
        operands = [rng.integers(0, 9, 50).astype(dtype) for _ in range(size)]
        with monkeypatch.context() as patch:
            mine = folded(op, operands)
            patch.setattr(folds, "_find_core", lambda: None)
            assert folded(op, operands).tobytes() == mine.tobytes(), (op, name)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("has_core", [True, False])
def test_two_narrow_operands_make_one_at_a_time_what_they_make_at_once(
    name: str, has_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_core:
        monkeypatch.setattr(folds, "_find_core", lambda: None)
    rng = np.random.default_rng(0)
    left, right = (rng.normal(0, 3, 5000).astype(dtype_of(name)) for _ in range(2))
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        assert not must_fold_at_once(op, left.dtype, 2)
        out = np.empty_like(left)
        combine(op, left, right, out)
        finish(op, out, 2)
        assert out.tobytes() == folded(op, [left, right]).tobytes()


def test_narrow_sums_of_more_than_two_are_folded_at_once() -> None:
    for name in TYPES:
        narrow = name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
        dtype = dtype_of(name)
        assert must_fold_at_once(ReduceOp.AVG, dtype, 2) == narrow
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT):
            assert must_fold_at_once(op, dtype, 3) == narrow
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            assert not must_fold_at_once(op, dtype, 8)


def test_a_narrow_sum_is_rounded_once() -> None:
    # 2048 + 1 is 2048 in float16: one at a time nothing would be added.
    ones = [np.full(3, 2048, np.float16), *(np.ones(3, np.float16) for _ in range(4))]
    assert folded(ReduceOp.SUM, ones).tolist() == [2052] * 3
    eighths = [np.full(3, 16, ml_dtypes.float8_e4m3fn)] * 1 + [
        np.ones(3, ml_dtypes.float8_e4m3fn) for _ in range(4)
    ]
    assert folded(ReduceOp.SUM, eighths).astype(np.float32).tolist() == [20] * 3


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_narrow_average_may_be_divided_after_the_sum(name: str) -> None:
    array = np.array([1, 2, 6], dtype_of(name))
    finish(ReduceOp.AVG, array, 4)
    assert array.astype(np.float32).tolist() == [0.25, 0.5, 1.5]


# ---------------------------------------------------------------- PREMUL_SUM


@pytest.mark.parametrize("name", [name for name in TYPES if name != "bool"])
def test_a_factor_multiplies_every_operand(name: str) -> None:
    operands = [np.array([1, 2, 3], dtype_of(name)), np.array([2, 0, 1], dtype_of(name))]
    wanted = np.array([9, 6, 12], dtype_of(name))
    assert folded(ReduceOp.premul_sum(3), operands).tobytes() == wanted.tobytes()


def test_narrow_products_are_not_rounded_before_they_are_added() -> None:
    tenth = 0.1
    operands = [np.arange(100, dtype=np.float16) * 3**rank for rank in range(3)]
    wide = sum((x.astype(np.float32) * np.float32(tenth) for x in operands), np.float32(0))
    out = folded(ReduceOp.premul_sum(tenth), operands)
    assert out.tobytes() == np.asarray(wide).astype(np.float16).tobytes()
    rounded = sum((x * np.float16(tenth) for x in operands), np.float16(0))
    assert out.tobytes() != np.asarray(rounded).tobytes()


def test_integers_wrap_around_when_multiplied() -> None:
    assert scale(3, np.array([100], np.int8)).tolist() == [44]
    assert scale(-1, np.array([1, 2], np.int16)).tolist() == [-1, -2]


# ---------------------------------------------------------------- MINLOC, MAXLOC


def test_the_least_and_the_greatest_come_with_their_index() -> None:
    given = [pairs((3, 0), (1, 0)), pairs((2, 1), (5, 1)), pairs((4, 2), (0, 2))]
    assert folded(ReduceOp.MINLOC, given).tolist() == [(2, 1), (0, 2)]
    assert folded(ReduceOp.MAXLOC, given).tolist() == [(4, 2), (5, 1)]


@pytest.mark.parametrize("op", [ReduceOp.MINLOC, ReduceOp.MAXLOC])
def test_of_equal_values_the_least_index_counts(op: ReduceOp) -> None:
    given = [pairs((1, 5), (-0.0, 1)), pairs((1, 2), (0.0, 0)), pairs((1, 9), (0.0, 3))]
    assert folded(op, given).tolist() == [(1, 2), (0, 0)]


@pytest.mark.parametrize("op", [ReduceOp.MINLOC, ReduceOp.MAXLOC])
def test_nan_counts_before_all_numbers_and_the_first_of_them(op: ReduceOp) -> None:
    nan = float("nan")
    given = [pairs((1, 0), (nan, 7)), pairs((nan, 2), (9, 0)), pairs((nan, 1), (nan, 3))]
    found = folded(op, given)
    assert np.isnan(found["value"]).all()
    assert found["index"].tolist() == [1, 3]


@pytest.mark.parametrize("value", ["bool", "int8", "uint64", "float16", "float64"])
@pytest.mark.parametrize("index", ["uint8", "int32"])
def test_pairs_are_of_any_real_number_and_any_integer(value: str, index: str) -> None:
    dtype = np.dtype([("a", value), ("b", index)])
    given = [np.array([(1, 3)], dtype), np.array([(0, 4)], dtype)]
    check(ReduceOp.MINLOC, dtype)
    assert folded(ReduceOp.MINLOC, given).tolist() == [(0, 4)]
    assert folded(ReduceOp.MAXLOC, given).tolist() == [(1, 3)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(
            st.tuples(st.sampled_from([-1, 0, 2, np.nan]), st.integers(0, 3)),
            min_size=4,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    is_least=st.booleans(),
)
def test_any_order_of_pairs_gives_the_same(
    rows: list[list[tuple[float, int]]], is_least: bool
) -> None:
    op = ReduceOp.MINLOC if is_least else ReduceOp.MAXLOC

    def key(pair: tuple[float, int]) -> tuple[bool, float, int]:
        value, index = pair
        lost = value != value
        return not lost, 0 if lost else value if is_least else -value, index

    out = folded(op, [pairs(*row) for row in rows])
    wanted = [min((row[at] for row in rows), key=key) for at in range(4)]
    assert out.tobytes() == pairs(*wanted).tobytes()


# ---------------------------------------------------------------- functions of the user


def test_a_function_is_applied_in_the_order_of_ranks() -> None:
    op = ReduceOp.user(lambda a, b: a * 10 + b, "digits")
    given = [np.array([digit, 0], np.int64) for digit in (1, 2, 3)]
    assert folded(op, given).tolist() == [123, 0]


def test_a_function_may_write_into_what_it_is_given() -> None:
    def spoiling(a: Array, b: Array) -> Array:
        a += b
        b[...] = 99
        return a

    given = [np.array([value], np.int64) for value in (1, 2, 3)]
    assert folded(ReduceOp.user(spoiling), given).tolist() == [6]


def test_a_function_may_take_records() -> None:
    dtype = np.dtype([("name", "S3"), ("count", np.int32)])

    def most(a: Array, b: Array) -> Array:
        return np.where(a["count"] >= b["count"], a, b)

    given = [np.array([(b"one", 1)], dtype), np.array([(b"two", 2)], dtype)]
    check(ReduceOp.user(most), dtype)
    assert folded(ReduceOp.user(most), given).tolist() == [(b"two", 2)]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b: (a + b).astype(np.float64), "not one of shape (3,) of float64"),
        (lambda a, b: (a + b)[:2], "not one of shape (2,) of int64"),
        (lambda a, b: None, "must return an array of 3 elements of int64, as it was given, not a"),
    ],
)
def test_a_function_must_return_an_array_like_those_it_is_given(
    function: Callable[[Array, Array], Array], text: str
) -> None:
    out = np.array([7, 7, 7])
    with pytest.raises(TypeError) as refusal:
        fold(ReduceOp.user(function, "f"), [np.arange(3), np.arange(3)], out, 2)
    assert text in str(refusal.value)
    assert out.tolist() == [7, 7, 7]
