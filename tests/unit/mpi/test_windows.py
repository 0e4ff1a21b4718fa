"""Windows: the order of locks, and what targets believe of the places that they are told."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.mpi.datatypes.predefined import CONSTANTS
from allhands.mpi.windows import places
from allhands.mpi.windows.locks import LockQueue, LockTable
from allhands.mpi.windows.shared_memory import SharedMemory


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


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ask", "share", "give", "leave"]))))
def test_locks_in_shared_memory_go_on_as_they_were(steps: list[tuple[int, str]]) -> None:
    memory = np.zeros(LockTable.count_bytes(4), np.uint8)
    table, other = LockTable(memory, 4), LockTable(memory, 4)
    table.clear()
    kept, known = LockQueue(), set()
    for number, (rank, step) in enumerate(steps):
        queue = (table if number % 2 else other).read(2)
        assert queue.dump() == kept.dump()
        if step in ("ask", "share") and rank not in known:
            known.add(rank)
            assert queue.ask(rank, number, step == "share") == kept.ask(
                rank, number, step == "share"
            )
        elif step == "leave":
            known.discard(rank)
            assert queue.withdraw(rank) == kept.withdraw(rank)
        elif step == "give" and rank in kept.list_holders():
            known.discard(rank)
            assert queue.release(rank) == kept.release(rank)
        table.write(2, queue)
        assert table.read(2).list_holders() == kept.list_holders()
        assert table.read(1).list_holders() == []


def test_a_rank_that_gives_up_lets_the_next_one_pass() -> None:
    queue = LockQueue()
    queue.ask(1, 10, True)
    assert queue.ask(2, 11, False) == []
    assert queue.ask(3, 12, True) == []
    assert queue.withdraw(2) == [(3, 12)]
    assert queue.list_holders() == [1, 3]
    assert queue.withdraw(1) == []
    assert queue.list_holders() == [3]


def test_a_mutex_is_given_back_by_the_end_of_its_process() -> None:
    memory = SharedMemory.make(64)
    taken, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        other = SharedMemory.open(os.getppid(), memory.descriptor, 64)
        other.acquire(3, 1.0)
        other.data[0] = 7
        os.write(taken[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        os.read(taken[0], 1)
        with pytest.raises(TimeoutError, match="another process has changed shared memory"):
            memory.acquire(3, 0.05)
        memory.acquire(4, 0.05)
    finally:
        os.write(go_on[1], b"x")
        os.waitpid(child, 0)
    memory.acquire(3, 1.0)
    assert memory.data[0] == 7
    memory.close()
    memory.close()


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
