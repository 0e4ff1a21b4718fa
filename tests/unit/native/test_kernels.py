"""Reductions in C equal NumPy's; of half types float32's, rounded once."""

import enum
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allhands.collectives.reduction import OPS, TYPES, ReduceOp, check

native: Any = pytest.importorskip("allhands._native", reason="installed without the native core")

Array = np.ndarray[Any, np.dtype[Any]]

HALVES = ["float16", "bfloat16"]
EIGHTHS = ["float8_e4m3fn", "float8_e5m2"]
NARROW = HALVES + EIGHTHS
INEXACT = [name for name in TYPES if "float" in name or "complex" in name]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def is_defined(op: ReduceOp, name: str) -> bool:
    try:
        check(op, dtype_of(name))
    except TypeError:
        return False
    return True


DEFINED = [(op, name) for op in OPS for name in TYPES if is_defined(op, name)]


def fold(op: ReduceOp, name: str, out: Array, operands: Sequence[Array], divisor: int = 1) -> Array:
    native.fold(OPS.index(op), TYPES.index(name), out, tuple(operands), divisor)
    return out


def folded(op: ReduceOp, operands: Sequence[Array], divisor: int = 1) -> Array:
    return fold(op, operands[0].dtype.name, np.empty_like(operands[0]), operands, divisor)


UFUNCS: dict[ReduceOp, Callable[..., Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
    ReduceOp.LAND: np.logical_and,
    ReduceOp.LOR: np.logical_or,
    ReduceOp.LXOR: np.logical_xor,
}


def complex_product(a: Array, b: Array) -> Array:
    """Every product and every sum rounded: NumPy rounds less often where the processor can."""
    out = np.empty_like(a)
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    return out


def expected(op: ReduceOp, operands: Sequence[Array], divisor: int = 1) -> Array:
    dtype = operands[0].dtype
    ufunc = UFUNCS[op]
    if op is ReduceOp.PRODUCT and dtype.kind == "c":
        ufunc = complex_product
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float32) if dtype.name in NARROW else x for x in operands]
        result = wide[0] != 0 if op.name.startswith("L") else wide[0]
        for operand in wide[1:]:
            result = ufunc(result, operand)
        if op is ReduceOp.AVG and dtype.kind in "iu":
            result = np.array([towards_zero(one, divisor) for one in result.tolist()], dtype)
        elif op is ReduceOp.AVG:
            result = np.true_divide(result, divisor)
        return result.astype(dtype)


def towards_zero(number: int, divisor: int) -> int:
    """Divide as C does."""
    quotient = abs(number) // divisor
    return quotient if number > 0 else -quotient


def parts(x: Array) -> Array:
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


def assert_same(actual: Array, wanted: Array) -> None:
    """Check equality in every bit, with all NaNs equal."""
    assert actual.dtype == wanted.dtype
    actual, wanted = parts(actual), parts(wanted)
    bits = np.dtype(f"u{actual.itemsize}")
    same = actual.view(bits) == wanted.view(bits)
    if actual.dtype.name in INEXACT:
        with np.errstate(invalid="ignore"):  # bfloat16 warns of signalling NaNs
            same |= np.isnan(actual) & np.isnan(wanted)
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, (wrong, actual[wrong], wanted[wrong])


class Special(enum.Enum):
    """Special values among random values."""

    NOTHING = enum.auto()
    FINITE = enum.auto()
    """Zeros of both signs, the greatest, and the least subnormal."""
    ALL = enum.auto()
    """Infinities and NaNs too."""


def values(
    name: str, count: int, rng: np.random.Generator, special: Special = Special.ALL
) -> Array:
    dtype = dtype_of(name)
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    if dtype.kind == "c":
        real = np.dtype(f"f{dtype.itemsize // 2}").name
        return values(real, 2 * count, rng, special).view(dtype)
    out = (rng.normal(size=count) * 10.0 ** rng.integers(-3, 4, count)).astype(dtype)
    if special is Special.NOTHING:
        return out
    info = ml_dtypes.finfo(dtype)
    among = [0.0, -0.0, info.max, info.min, info.smallest_subnormal, info.tiny, 1.0]
    if special is Special.ALL:
        among += [np.inf, -np.inf, np.nan]
    chosen = rng.random(count) < 0.4
    return np.where(chosen, rng.choice(np.array(among, dtype), count), out).astype(dtype)


def test_it_supports_what_may_be_reduced_and_nothing_else() -> None:
    supported = [
        (op, name)
        for op in OPS
        for name in TYPES
        if native.supports(OPS.index(op), TYPES.index(name))
    ]
    assert supported == DEFINED


@pytest.mark.parametrize(("op", "name"), DEFINED)
def test_it_folds_as_numpy_does(op: ReduceOp, name: str) -> None:
    rng = np.random.default_rng(0)
    counts = (0, 1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 1000, 4099)
    for n, count in itertools.product((1, 2, 3, 4, 5, 6, 7, 8, 11, 64), counts):
        operands = [values(name, count, rng) for _ in range(n)]
        kept = [operand.copy() for operand in operands]
        assert_same(folded(op, operands, n), expected(op, operands, n))
        assert [x.tobytes() for x in operands] == [x.tobytes() for x in kept]


@pytest.mark.parametrize(("op", "name"), DEFINED)
def test_the_result_may_take_the_place_of_any_operand(op: ReduceOp, name: str) -> None:
    rng = np.random.default_rng(0)
    for n, count in itertools.product((1, 2, 3, 4, 5, 9), (1, 5, 33, 3001)):
        operands = [values(name, count, rng) for _ in range(n)]
        separate = folded(op, operands, n)
        for place in range(n):
            copies = [operand.copy() for operand in operands]
            fold(op, name, copies[place], copies, n)
            assert copies[place].tobytes() == separate.tobytes()


@pytest.mark.parametrize(("op", "name"), DEFINED)
def test_neither_alignment_nor_cuts_change_the_bits(op: ReduceOp, name: str) -> None:
    rng = np.random.default_rng(0)
    count = 1234
    for n in (2, 3, 4):
        operands = [values(name, count, rng) for _ in range(n)]
        whole = folded(op, operands, n).tobytes()
        for offset in (1, 2, 4, 8, 31):
            assert folded_at(offset, op, operands) == whole
        for step in (1, 5, 16, 333):
            cuts = [
                folded(op, [x[at : at + step] for x in operands], n) for at in range(0, count, step)
            ]
            assert b"".join(cut.tobytes() for cut in cuts) == whole


def folded_at(offset: int, op: ReduceOp, operands: Sequence[Array]) -> bytes:
    """Fold copies at odd places, and check for no writes beside the result."""
    dtype = operands[0].dtype
    copies = [
        np.frombuffer(bytes(offset * i) + x.tobytes(), np.uint8)[offset * i :].view(dtype)
        for i, x in enumerate(operands, start=1)
    ]
    room = np.full(operands[0].nbytes + offset + 64, 0xA5, np.uint8)
    out = room[offset:-64].view(dtype)
    fold(op, dtype.name, out, copies, len(operands))
    assert (room[:offset] == 0xA5).all()
    assert (room[-64:] == 0xA5).all()
    return out.tobytes()


@pytest.mark.parametrize("name", INEXACT)
def test_there_is_but_one_nan(name: str) -> None:
    dtype = dtype_of(name)
    real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    bits = np.dtype(f"u{real.itemsize}")
    infinity = np.array(np.inf, real).view(bits)
    quiet = np.array(np.nan, real).view(bits)
    sign = bits.type(1 << (8 * bits.itemsize - 1))
    a, b, c, d = map(bits.type, (1, 2, 3, 5))
    nans = [
        np.full(41, pattern, bits).view(dtype if real == dtype else real)
        for pattern in (quiet | a, quiet | sign | b, infinity | c, infinity | sign | d)
    ]
    operands = [np.repeat(x, 2).view(dtype) if dtype.kind == "c" else x for x in nans]
    for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        if not is_defined(op, name):
            continue
        for n in (2, 3, 4):
            for out in (folded(op, operands[:n], n), folded(op, operands[:n][::-1], n)):
                assert (parts(out).view(bits) == quiet).all(), (op, n)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_least_and_greatest_are_nan_where_any_operand_is(name: str) -> None:
    x = np.arange(12).astype(dtype_of(name))
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        for n in (2, 3, 4, 5):
            for place in range(n):
                operands = [x.copy() for _ in range(n)]
                operands[place][::3] = np.nan
                out = folded(op, operands)
                assert np.isnan(out).tolist() == [i % 3 == 0 for i in range(12)]


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 7, 8, 64, 1000, 4096])
@pytest.mark.parametrize("name", [name for name in TYPES if name != "bool"])
def test_an_average_is_the_sum_divided_once(name: str, divisor: int) -> None:
    rng = np.random.default_rng(divisor)
    for n in (1, 2, 4):
        operands = [values(name, 999, rng) for _ in range(n)]
        actual = folded(ReduceOp.AVG, operands, divisor)
        assert_same(actual, expected(ReduceOp.AVG, operands, divisor))


@pytest.mark.parametrize("name", HALVES)
def test_every_half_survives_being_widened_and_narrowed(name: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    ones = np.ones_like(every)
    assert_same(folded(ReduceOp.PRODUCT, [every, ones]), every)
    assert_same(folded(ReduceOp.AVG, [every]), every)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.AVG])
def test_halves_are_rounded_to_the_nearest_and_ties_to_even(op: ReduceOp, name: str) -> None:
    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    for _ in range(20):
        operands = [every, rng.permutation(every), rng.permutation(every)]
        assert_same(folded(op, operands[:2], 2), expected(op, operands[:2], 2))
        assert_same(folded(op, operands, 3), expected(op, operands, 3))


@pytest.mark.parametrize("name", EIGHTHS)
@pytest.mark.parametrize(
    "op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG]
)
def test_all_pairs_of_eight_bits_are_rounded_once(op: ReduceOp, name: str) -> None:
    every = np.arange(1 << 8, dtype=np.uint8).view(dtype_of(name))
    operands = [np.repeat(every, 1 << 8), np.tile(every, 1 << 8)]
    for divisor in (2, 3):
        assert_same(folded(op, operands, divisor), expected(op, operands, divisor))


def test_numbers_too_large_for_eight_bits_are_infinite_or_nan() -> None:
    largest = {name: ml_dtypes.finfo(dtype_of(name)).max for name in EIGHTHS}
    for name, value in largest.items():
        x = np.full(20, value, dtype_of(name))
        for out in (folded(ReduceOp.SUM, [x, x]), folded(ReduceOp.PRODUCT, [x, -x])):
            assert not np.isfinite(out).any()
            assert np.isnan(out).all() == (name == "float8_e4m3fn")
        assert (folded(ReduceOp.SUM, [x, x, -x]) == value).all()


@pytest.mark.parametrize("op", [ReduceOp.LAND, ReduceOp.LOR, ReduceOp.LXOR])
@pytest.mark.parametrize("name", [name for name in TYPES if "int" in name])
def test_what_is_true_is_one(op: ReduceOp, name: str) -> None:
    given = [np.array(row * 9, name) for row in ([0, 0, 2, 2], [0, 4, 0, 4], [0, 64, 64, 1])]
    for n in (1, 2, 3):
        truths = [x != 0 for x in given[:n]]
        out = folded(op, given[:n])
        assert out.tolist() == [int(x) for x in UFUNCS[op].reduce(truths)]  # type: ignore[attr-defined]


def test_a_sum_of_halves_overflows_only_at_the_end() -> None:
    big = np.full(50, 60000, np.float16)
    assert np.isinf(folded(ReduceOp.SUM, [big, big])).all()
    assert (folded(ReduceOp.SUM, [big, big, -big]) == big).all()
    assert (folded(ReduceOp.AVG, [big, big, big, big, big], 5) == big).all()


def test_a_byte_that_is_not_zero_is_true() -> None:
    left = np.array([0, 1, 2, 255, 4, 0] * 20, np.uint8)
    right = np.array([0, 1, 4, 0, 2, 7] * 20, np.uint8)
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BXOR):
        out = fold(op, "bool", np.empty_like(left), [left, right])
        wanted = UFUNCS[op](left.astype(bool), right.astype(bool))
        assert out.tolist() == wanted.astype(np.uint8).tolist()


@given(
    which=st.sampled_from(DEFINED),
    n=st.integers(1, 9),
    count=st.integers(0, 300),
    divisor=st.integers(1, 70),
    place=st.integers(0, 9),
    special=st.sampled_from(Special),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=300)
def test_any_fold_is_as_numpy_has_it(
    which: tuple[ReduceOp, str],
    n: int,
    count: int,
    divisor: int,
    place: int,
    special: Special,
    seed: int,
) -> None:
    op, name = which
    rng = np.random.default_rng(seed)
    operands = [values(name, count, rng, special) for _ in range(n)]
    wanted = expected(op, operands, divisor)
    out = operands[place] if place < n else np.empty_like(operands[0])
    assert_same(fold(op, name, out, operands, divisor), wanted)


def test_the_loops_are_those_of_this_processor_whichever_compiler_made_them() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    assert ("avx2" if {"avx2", "f16c"} <= flags else "baseline") == native.INSTRUCTIONS
