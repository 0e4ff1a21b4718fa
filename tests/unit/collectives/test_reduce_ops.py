"""ReduceOp as a value: equality, hashing, names comparable across ranks."""

import copy
import pickle

import numpy as np
import pytest

from allhands.collectives.reduction import OPS, ReduceOp


def largest_magnitude(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.where(np.abs(a) >= np.abs(b), a, b)


EVERY = [
    *ReduceOp,
    ReduceOp.premul_sum(0.5),
    ReduceOp.premul_sum(3),
    ReduceOp.user(largest_magnitude),
]


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_copies_and_pickles_of_an_operation_are_equal_to_it(op: ReduceOp) -> None:
    again = pickle.loads(pickle.dumps(op))  # noqa: S301
    for other in (copy.copy(op), copy.deepcopy(op), again):
        assert isinstance(other, ReduceOp)
        assert other == op
        assert hash(other) == hash(op)
        assert other.name == op.name
        assert (other is op) or op not in list(ReduceOp)


def test_operations_differ_by_their_kind_factor_and_function() -> None:
    assert len(set(EVERY)) == len(EVERY)
    assert ReduceOp.premul_sum(2) == ReduceOp.premul_sum(2.0) != ReduceOp.premul_sum(3)
    assert ReduceOp.user(np.add, "one") != ReduceOp.user(np.add, "other")
    assert ReduceOp.SUM not in ("sum", 1, None)


def test_those_that_are_made_are_no_members() -> None:
    ReduceOp.premul_sum(2)
    assert [op.name for op in ReduceOp] == [
        *("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"),
        *("MINLOC", "MAXLOC"),
    ]
    assert list(OPS) == list(ReduceOp)[:11]
    with pytest.raises(ValueError, match="not a valid ReduceOp"):
        ReduceOp("median")


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (2, "PREMUL_SUM(2)"),
        (2.0, "PREMUL_SUM(2)"),
        (np.float32(0.1), "PREMUL_SUM(0.10000000149011612)"),
        (np.array(0.25), "PREMUL_SUM(0.25)"),
        (np.array([[-3]]), "PREMUL_SUM(-3)"),
    ],
)
def test_equal_factors_have_one_name(factor: object, name: str) -> None:
    assert ReduceOp.premul_sum(factor).name == name


@pytest.mark.parametrize(
    ("factor", "kind", "text"),
    [
        (np.inf, ValueError, "finite"),
        (np.nan, ValueError, "finite"),
        (np.ones(2), ValueError, "one number, not an array of 2"),
        ("2", TypeError, "real number"),
        (1j, TypeError, "real number"),
        (True, TypeError, "real number"),
        (None, TypeError, "real number"),
    ],
)
def test_a_factor_is_one_finite_real_number(
    factor: object, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ReduceOp.premul_sum(factor)


def test_a_function_has_a_name_that_ranks_can_compare() -> None:
    assert ReduceOp.user(largest_magnitude).name == "USER(largest_magnitude)"
    assert ReduceOp.user(largest_magnitude, name="lm").name == "USER(lm)"
    with pytest.raises(TypeError, match="must be callable, not 3"):
        ReduceOp.user(3)  # type: ignore[arg-type]
