"""Objects of this rank are made anew from their parts, as those of others are from bytes."""

from collections.abc import Callable

import numpy as np
import pytest

from allhands.data.codec import DataclassRegistry
from allhands.data.serializer import ObjectSerializer, join_parts


@pytest.mark.parametrize(
    "decode",
    [
        lambda objects, parts: objects.decode_parts(parts),
        lambda objects, parts: objects.decode(join_parts(parts)),
    ],
)
@pytest.mark.parametrize("length", [4096, 4097, 20_001, 300_003])
def test_large_arrays_are_made_anew(length: int, decode: Callable[..., object]) -> None:
    objects = ObjectSerializer(DataclassRegistry())
    given = [np.arange(length, dtype=np.uint8), "between", np.arange(length, dtype=np.float64)]
    found = decode(objects, objects.encode_parts(given))
    assert isinstance(found, list)
    assert found[1] == "between"
    for at in (0, 2):
        np.testing.assert_array_equal(found[at], given[at])
        assert found[at].dtype == given[at].dtype
        assert found[at].flags.writeable
        assert not np.shares_memory(found[at], given[at])


def test_pickled_objects_are_made_anew() -> None:
    objects = ObjectSerializer(DataclassRegistry(), allow_pickle=True)
    given = {"range": slice(1, 2), "list": [1]}
    found = objects.decode_parts(objects.encode_parts(given))
    assert found == given
    assert found["list"] is not given["list"]


@pytest.mark.parametrize("length", [0, 1, 1000, 1020, 1021, 1022, 1100])
def test_texts_around_the_size_of_small_messages_come_back(length: int) -> None:
    objects = ObjectSerializer(DataclassRegistry())
    parts = objects.encode_parts("x" * length)
    assert objects.decode(join_parts(parts)) == objects.decode_parts(parts) == "x" * length


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it has no bytes"),
        (b"\x01N.", "does not allow that"),
        (b"\x02\x00", "ends too early"),
        (b"\x03\xc0", "of kind 3"),
        (b"\x00", "incomplete"),
    ],
)
def test_small_messages_that_are_no_objects_are_refused(data: bytes, reason: str) -> None:
    objects = ObjectSerializer(DataclassRegistry())
    with pytest.raises(ValueError, match=reason):
        objects.decode(np.frombuffer(data, np.uint8))
