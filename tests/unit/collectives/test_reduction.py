"""Reductions: accepted dtypes, refusals, results."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from allhands.collectives.reduction import (
    OPS,
    ReduceOp,
    check,
    check_mean,
    combine,
    finish,
    folds,
    get_dtype_name,
)

BOOL = ["bool"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
WHOLE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR, ReduceOp.LAND, ReduceOp.LOR, ReduceOp.LXOR]

DEFINED = {
    (op, name)
    for ops, names in (
        ([ReduceOp.SUM, ReduceOp.PRODUCT], BOOL + INTEGERS + FLOATS + COMPLEX),
        ([ReduceOp.MIN, ReduceOp.MAX], BOOL + INTEGERS + FLOATS),
        ([ReduceOp.AVG], INTEGERS + FLOATS + COMPLEX),
        (WHOLE, BOOL + INTEGERS),
    )
    for op in ops
    for name in names
}


def combined(op: ReduceOp, left: object, right: object, dtype: str) -> list[Any]:
    out = np.array(left, dtype)
    combine(op, out, np.array(right, dtype), out)
    assert out.dtype == dtype
    result: list[Any] = out.tolist()
    return result


@pytest.mark.parametrize("name", BOOL + INTEGERS + FLOATS + COMPLEX)
@pytest.mark.parametrize("op", ReduceOp)
def test_check_allows_what_is_defined_and_nothing_else(op: ReduceOp, name: str) -> None:
    if (op, name) in DEFINED:
        check(op, np.dtype(name))
    else:
        with pytest.raises(TypeError, match=op.name):
            check(op, np.dtype(name))


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (ReduceOp.AVG, "bool", "Cannot use ReduceOp.AVG with Boolean inputs: AVG of bool is not"),
        (ReduceOp.MIN, "complex64", "MIN of complex64 is not defined: complex numbers have no"),
        (ReduceOp.BAND, "float32", "Cannot use ReduceOp.BAND with non-integral dtype float32"),
        (ReduceOp.LOR, "float16", "LOR with non-integral dtype float16; use x != 0"),
        (ReduceOp.MINLOC, "float32", "MINLOC of float32 is not defined: it takes pairs of a value"),
        (ReduceOp.MAXLOC, "f4,f4", "it takes pairs of a value and an index, such as np.dtype"),
        (ReduceOp.MAXLOC, "c8,i4", "it takes pairs"),
        (ReduceOp.MAXLOC, "f4,i4,i4", "it takes pairs"),
        (ReduceOp.premul_sum(2), "bool", "PREMUL_SUM(2) of bool is not defined; use an integer"),
        (ReduceOp.premul_sum(0.5), "int8", "its factor is no whole number"),
        (ReduceOp.premul_sum(128), "int8", "it cannot hold the factor"),
        (ReduceOp.premul_sum(1e300), "float32", "its factor would be infinite"),
        (ReduceOp.user(np.add), object, "cannot reduce object arrays; convert to a numeric"),
        (ReduceOp.BXOR, "complex64", "Cannot use ReduceOp.BXOR with non-integral dtype"),
        (ReduceOp.SUM, object, "cannot reduce object arrays; convert to a numeric dtype first"),
        (ReduceOp.SUM, ">f8", "cannot reduce >f8, whose byte order is not this machine's; convert"),
        (ReduceOp.SUM, ">i2", "byte order"),
        (ReduceOp.SUM, "datetime64[s]", "reductions take bool, int8 to int64"),
        (ReduceOp.SUM, "U4", "reductions take bool"),
        (ReduceOp.SUM, [("x", "f4")], "reductions take bool"),
        (ReduceOp.SUM, [("x", object)], "convert to a numeric dtype first"),
        (ReduceOp.SUM, np.longdouble, "whose bits differ between machines; convert first"),
        (ReduceOp.MAX, np.clongdouble, "x.astype(np.complex128)"),
    ],
)
def test_a_refusal_says_what_to_do(op: ReduceOp, dtype: object, text: str) -> None:
    with pytest.raises(TypeError) as refusal:
        check(op, np.dtype(dtype))  # type: ignore[call-overload]
    assert text in str(refusal.value)


@pytest.mark.parametrize("name", BOOL + INTEGERS + FLOATS + COMPLEX)
def test_equal_dtypes_are_reduced_alike(name: str) -> None:
    described = np.dtype(name, metadata={"unit": "m"})  # type: ignore[call-overload]
    for dtype in (described, np.dtype(name).newbyteorder("="), np.dtype(name)):
        check(ReduceOp.SUM, dtype)
        assert get_dtype_name(dtype) == name
    assert get_dtype_name(np.dtype(np.longlong)) == "int64"
    swapped = np.dtype(name).newbyteorder()
    assert get_dtype_name(swapped) == (name if swapped == np.dtype(name) else None)


def test_an_operation_must_be_a_reduce_op() -> None:
    with pytest.raises(TypeError, match=r"must be a ReduceOp such as ReduceOp.SUM, or .*, not 7"):
        check(7, np.dtype("float32"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", INTEGERS + FLOATS + COMPLEX)
def test_arithmetic_keeps_the_dtype(name: str) -> None:
    assert combined(ReduceOp.SUM, [3, 4], [2, 5], name) == [5, 9]
    assert combined(ReduceOp.PRODUCT, [3, 4], [2, 5], name) == [6, 20]


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_order_keeps_the_dtype(name: str) -> None:
    assert combined(ReduceOp.MIN, [3, 4], [2, 5], name) == [2, 4]
    assert combined(ReduceOp.MAX, [3, 4], [2, 5], name) == [3, 5]


@pytest.mark.parametrize("name", INTEGERS)
def test_bitwise_operations_take_integers(name: str) -> None:
    assert combined(ReduceOp.BAND, [12], [10], name) == [8]
    assert combined(ReduceOp.BOR, [12], [10], name) == [14]
    assert combined(ReduceOp.BXOR, [12], [10], name) == [6]


def test_of_booleans_sum_is_or_and_product_is_and() -> None:
    left, right = [False, False, True, True], [False, True, False, True]
    either, both = [False, True, True, True], [False, False, False, True]
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR):
        assert combined(op, left, right, "bool") == either
    for op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND):
        assert combined(op, left, right, "bool") == both
    assert combined(ReduceOp.BXOR, left, right, "bool") == [False, True, True, False]


def test_integers_wrap_around() -> None:
    assert combined(ReduceOp.SUM, [127], [1], "int8") == [-128]
    assert combined(ReduceOp.SUM, [255], [2], "uint8") == [1]
    assert combined(ReduceOp.PRODUCT, [2**62], [2], "int64") == [-(2**63)]


@pytest.mark.parametrize("name", FLOATS)
def test_floats_overflow_without_a_warning_whatever_the_caller_set(name: str) -> None:
    largest = np.finfo(name).max
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert combined(ReduceOp.SUM, [largest], [largest], name) == [np.inf]
        assert combined(ReduceOp.PRODUCT, [largest], [-largest], name) == [-np.inf]
        assert np.isnan(combined(ReduceOp.SUM, [np.inf], [-np.inf], name)).all()
        average = np.full(1, np.finfo(name).smallest_subnormal)
        finish(ReduceOp.AVG, average, 3)
        assert average == 0
        assert np.geterr()["over"] == "raise"


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_a_nan_is_not_lost(op: ReduceOp) -> None:
    assert np.isnan(combined(op, [np.nan, 1.0], [1.0, np.nan], "float32")).all()


@settings(max_examples=50, deadline=None)
@given(data=st.data(), case=st.sampled_from(sorted(DEFINED, key=str)))
def test_out_may_be_either_operand(data: st.DataObject, case: tuple[ReduceOp, str]) -> None:
    op, name = case
    arrays = hnp.arrays(name, 5)
    left, right = data.draw(arrays), data.draw(arrays)
    apart, over_left, over_right = np.empty(5, name), left.copy(), right.copy()
    combine(op, left, right, apart)
    combine(op, over_left, right, over_left)
    combine(op, left, over_right, over_right)
    np.testing.assert_array_equal(over_left, apart)
    np.testing.assert_array_equal(over_right, apart)


@pytest.mark.parametrize("name", FLOATS + COMPLEX)
def test_avg_is_the_sum_divided_by_the_size_of_the_group(name: str) -> None:
    array = np.array([1, 2, 6], name)
    combine(ReduceOp.AVG, array, array, array)
    finish(ReduceOp.AVG, array, 4)
    assert array.dtype == name
    assert array.tolist() == [0.5, 1, 3]


@pytest.mark.parametrize("has_core", [True, False])
@pytest.mark.parametrize("name", INTEGERS)
def test_avg_of_integers_is_divided_towards_zero(
    name: str, has_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_core:
        monkeypatch.setattr(folds, "_find_core", lambda: None)
    limits = np.iinfo(name)
    given = [one for one in (limits.min, -7, -4, -1, 0, 1, 7, 8, limits.max) if one >= limits.min]
    for divisor in (1, 2, 3, 4, 200):
        wanted = [abs(one) // divisor * (1 if one > 0 else -1) for one in given]
        finish(ReduceOp.AVG, array := np.array(given, name), divisor)
        assert array.tolist() == wanted
        assert array.dtype == name
        out = np.empty(len(given), name)
        folds.fold(ReduceOp.AVG, [np.array(given, name), np.zeros(len(given), name)], out, divisor)
        assert out.tolist() == wanted


def test_means_of_integers_are_no_gradients() -> None:
    for name in FLOATS + COMPLEX:
        check_mean(np.dtype(name))
    for name in INTEGERS:
        with pytest.raises(TypeError, match=f"the mean of {name} arrays would lose its fraction"):
            check_mean(np.dtype(name))
    with pytest.raises(TypeError, match="AVG of bool is not defined"):
        check_mean(np.dtype(bool))


@pytest.mark.parametrize("op", [op for op in OPS if op is not ReduceOp.AVG])
def test_every_other_operation_is_finished_as_it_is(op: ReduceOp) -> None:
    array = np.array([1, 2, 6])
    finish(op, array, 4)
    assert array.tolist() == [1, 2, 6]
