"""Objects decode to the values encoded, and malformed bytes decode to nothing."""

import contextlib
import dataclasses
import datetime
import math
from datetime import timedelta, timezone
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allhands.data.codec import BUFFER_BYTES, DataclassRegistry, align, decode, encode
from allhands.data.dtypes import get_dtype_name, parse_dtype

NOTHING = DataclassRegistry()

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.datetimes()
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(hashable, inner, max_size=4)
    ),
    max_leaves=10,
)


def restore(encoded: tuple[bytes, list[np.ndarray[Any, Any]]], types: DataclassRegistry) -> Any:
    """Decode a value, with its large arrays laid out as a message has them."""
    packed, arrays = encoded
    laid_out = b"".join(one.tobytes().ljust(align(one.nbytes), b"\0") for one in arrays)
    return decode(packed, types, np.frombuffer(bytearray(laid_out), np.uint8))


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, down to the types of their items."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    return bool(one == other)


@given(values)
@settings(max_examples=300, deadline=None)
def test_values_of_known_types_come_back_with_their_types(value):
    packed, arrays = encode(value, NOTHING)
    assert alike(restore((packed, arrays), NOTHING), value)
    assert alike(decode(packed, NOTHING), value)


@given(st.binary(max_size=60) | values.map(lambda one: encode(one, NOTHING)[0][:-1]))
@settings(max_examples=500, deadline=None)
def test_whatever_bytes_come_they_are_a_value_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        decode(data, NOTHING)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=">i4")[::2],
        np.zeros((0, 3), np.int8),
        np.array(3 + 1j),
        np.arange(4, dtype=ml_dtypes.bfloat16),
        np.arange(4, dtype=ml_dtypes.float8_e4m3fn),
        np.array([(1, [2.0, 3.0])], [("a", "i4"), ("b", ">f8", (2,))]),
        np.array(["a", "bcd"]),
        np.array(["2026-01-01"], "M8[s]"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_keep_dtype_shape_and_bits(array):
    found = restore(encode([array], NOTHING), NOTHING)[0]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable
    scalar = array.reshape(-1)[:1].copy()
    for one in scalar:
        back = restore(encode(one, NOTHING), NOTHING)
        assert type(back) is type(one)
        assert np.asarray(back).tobytes() == np.asarray(one).tobytes()


def test_large_arrays_lie_beside_and_are_not_copied_twice():
    large = (
        np.arange(BUFFER_BYTES, dtype=np.int16)[::2],
        np.arange(3 * BUFFER_BYTES, dtype=np.uint8),
    )
    value = {"a": [large[0], (large[1], "text")], "b": np.arange(3), 4: large[1][1:]}
    packed, arrays = encode(value, NOTHING)
    assert len(packed) < BUFFER_BYTES
    assert np.shares_memory(arrays[1], large[1])
    found = restore((packed, arrays), NOTHING)
    back = [found["a"][0], found["a"][1][0], found[4]]
    for one, given_ in zip(back, (*large, large[1][1:]), strict=True):
        assert (one.dtype, one.tolist()) == (given_.dtype, given_.tolist())
        assert one.flags.writeable
    assert not np.shares_memory(back[1], back[2])


@pytest.mark.parametrize("at", [-1, 16, 1 << 40])
def test_an_array_that_lies_outside_of_what_came_is_refused(at):
    packed = msgpack.packb(msgpack.ExtType(16, msgpack.packb(["uint8", [8], at])))
    with pytest.raises(ValueError, match="lies in no bytes"):
        decode(packed, NOTHING, np.zeros(16, np.uint8))


def test_arrays_that_would_share_their_bytes_are_refused():
    one = msgpack.ExtType(16, msgpack.packb(["uint8", [8], 0]))
    with pytest.raises(ValueError, match="lies in no bytes"):
        decode(msgpack.packb([one, one]), NOTHING, np.zeros(16, np.uint8))


def test_a_nan_and_the_fold_of_a_time_are_kept():
    assert math.isnan(restore(encode(math.nan, NOTHING), NOTHING))
    twice = datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=1)))
    assert restore(encode(twice, NOTHING), NOTHING).fold == 1


def test_what_would_lose_something_is_refused():
    class Number(int):
        pass

    for value in (Number(1), object(), print, np.array([None]), np.ma.array([1]), Number):
        with pytest.raises(TypeError, match="travel"):
            encode([value], NOTHING)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="more than 64 deep"):
        encode(endless, NOTHING)


def test_bytes_that_lie_deep_in_themselves_are_refused():
    data = b"\x90"
    for _ in range(100):
        data = b"\xc9" + len(data).to_bytes(4, "big") + b"\x01" + data
    with pytest.raises(ValueError, match="more than 64 deep"):
        decode(data, NOTHING)


def test_values_of_every_depth_come_back_after_each_other():
    types = DataclassRegistry()
    for depth, is_refused in ((64, False), (65, True), (2, False), (65, True), (64, False)):
        packed, value = msgpack.packb(7), 7
        for _ in range(depth):
            packed = msgpack.packb(msgpack.ExtType(1, b"\x91" + packed))
            value = (value,)
        with pytest.raises(ValueError, match="deep") if is_refused else contextlib.nullcontext():
            assert decode(packed, types) == value


@pytest.mark.parametrize("length", [1, 31, 32, 100])
def test_no_item_of_a_long_container_is_overlooked(length):
    for at in {0, length // 2, length - 1}:
        items: list[Any] = [1.5] * length
        items[at] = (1, [2])
        by_name = {str(index): one for index, one in enumerate(items)}
        for value in (items, by_name):
            assert alike(decode(encode(value, NOTHING)[0], NOTHING), value)
        items[at] = print
        with pytest.raises(TypeError, match=rf"the object\[{at}\] is of type"):
            encode(items, NOTHING)


def test_dataclasses_travel_by_name_and_are_checked_when_told_of():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        left: int
        right: tuple[int, ...] = ()

    @dataclasses.dataclass
    class Kept:
        made: int = dataclasses.field(init=False, default=1)

    types = DataclassRegistry()
    types.add(Pair)
    types.add(Pair)  # again: no news
    assert restore(encode([Pair(1, (2,))], types), types) == [Pair(1, (2,))]
    with pytest.raises(ValueError, match="is not registered here"):
        restore(encode(Pair(1), types), NOTHING)
    with pytest.raises(TypeError, match=r"call ah\.register_dataclass"):
        encode(Pair(1), NOTHING)
    with pytest.raises(TypeError, match=r"fields that cannot be given to it: \['made'\]"):
        types.add(Kept)
    with pytest.raises(TypeError, match="is no dataclass"):
        types.add(int)
    with pytest.raises(ValueError, match="another dataclass is registered as"):
        types.add(
            dataclasses.make_dataclass("Other", ["x"]), "test_dataclasses" and Pair.__qualname__
        )


@pytest.mark.parametrize(
    "name", ["O", "ml_dtypes.finfo", "ml_dtypes.nothing", "[('a', 'O')]", "x("]
)
def test_names_of_no_dtype_that_may_travel_are_refused(name):
    with pytest.raises(ValueError, match="dtype"):
        parse_dtype(name)


def test_names_of_dtypes_lead_back_to_them():
    for dtype in (
        np.dtype("f4"),
        np.dtype(">c8"),
        np.dtype(ml_dtypes.int4),
        np.dtype([("a", "i1")]),
    ):
        assert parse_dtype(get_dtype_name(dtype)) == dtype
