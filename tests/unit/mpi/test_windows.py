"""Windows: the order of locks, and what targets believe of the places that they are told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi.datatypes.predefined import CONSTANTS
from allhands.mpi.windows import places
from allhands.mpi.windows.locks import LockQueue


def test_shared_locks_are_held_together_and_exclusive_ones_alone() -> None:
    queue = LockQueue()
    assert queue.ask(1, 10, True) == [(1, 10)]
    assert queue.ask(2, 11, True) == [(2, 11)]
    assert queue.ask(3, 12, False) == []
    assert queue.ask(4, 13, True) == [], "it does not pass the one that waits"
    assert queue.release(1) == []
    assert queue.release(2) == [(3, 12)]
    assert queue.release(3) == [(4, 13)]
    with pytest.raises(ValueError, match="rank 3 unlocks a window that it has not locked"):
        queue.release(3)


def test_places_come_back_as_they_were() -> None:
    datatype = CONSTANTS["INT"].Create_vector(2, 1, 3)
    place = places.make_place(5, 4, datatype, "SUM")
    data = np.arange(7, dtype=np.uint8)
    found, rest = places.load(places.dump(place, data))
    assert (found.disp, found.count, found.element, found.op) == (5, 4, "INT", "SUM")
    assert found.layout.offsets.tolist() == [0, 12]
    assert rest.tolist() == data.tolist()


def test_a_place_beyond_the_memory_is_refused() -> None:
    memory = np.zeros(16, np.uint8)
    place, _ = places.load(places.dump(places.make_place(0, 5, CONSTANTS["INT"])))
    with pytest.raises(ValueError, match="of a buffer of 16 bytes"):
        places.read(place, memory, 0)
    with pytest.raises(ValueError, match="are brought for a place of 20"):
        places.write(place, memory, 0, memory)


@given(st.binary(max_size=80), st.integers(0, 200))
def test_what_is_no_place_is_refused(noise: bytes, at: int) -> None:
    whole = places.dump(places.make_place(1, 2, CONSTANTS["INT"].Create_vector(2, 1, 3), "SUM"))
    spoilt = np.concatenate([whole[:at], np.frombuffer(noise, np.uint8), whole[at + len(noise) :]])
    try:
        place, _ = places.load(spoilt)
        places.read(place, np.zeros(64, np.uint8), place.disp)
    except ValueError:
        return
    assert place.nbytes <= 64


@pytest.mark.parametrize(
    "fields",
    [
        [0, -1, 4, None, "INT", ""],
        [0, 1 << 50, 4, None, "INT", ""],
        [0, 1, "4", None, "INT", ""],
        [0, 1, 8, [b"\0" * 16, b"\4" + b"\0" * 7, 8], "INT", ""],
        [0, 1, 8, [b"\0" * 8, b"\4" + b"\0" * 7, 8], "INT", ""],
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(fields: list[object]) -> None:
    import msgpack

    head = msgpack.packb(fields)
    payload = np.frombuffer(len(head).to_bytes(4, "little") + head, np.uint8)
    with pytest.raises(ValueError, match="operation on a window"):
        places.load(payload)
