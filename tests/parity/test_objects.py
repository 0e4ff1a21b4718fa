"""Objects between ranks: values of known types; pickle only where allowed."""

import dataclasses
import datetime

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


@dataclasses.dataclass
class Point:
    x: int
    y: list[float]


@dataclasses.dataclass
class Stranger:
    x: int


class Odd:
    """An object of an unregistered type."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.value == self.value


def item(rank: int) -> dict[object, object]:
    """Return a rank's object, of a different size on each rank."""
    return {
        "rank": rank,
        rank: [None, True, 1.5, b"x" * rank * 1000, (1, {2, 3})],
        (1, "a"): datetime.datetime(2026, 1, 1 + rank, tzinfo=datetime.UTC),
    }


@on_threads(4)
def test_p049_broadcast_object_list_overwrites_those_of_all_but_the_root(rank):
    for root in range(4):
        values = [item(rank), "foo" if rank == root else None, rank]
        ah.broadcast_object_list(values, root)
        assert values == [item(root), "foo", root]


@on_threads(3)
def test_p109_all_gather_object_gives_everybody_all(rank):
    found = [None] * 3
    ah.all_gather_object(found, item(rank))
    assert found == [item(one) for one in range(3)]


@on_threads(3)
def test_p109_gather_object_gives_the_root_all(rank):
    for root in range(3):
        found = [None] * 3 if rank == root else None
        ah.gather_object(item(rank), found, root)
        assert found == ([item(one) for one in range(3)] if rank == root else None)


@on_threads(3)
def test_p109_scatter_object_list_gives_each_its_own(rank):
    for root in range(3):
        found = [None, "kept"]
        ah.scatter_object_list(found, [item(one) for one in range(3)], root)
        assert found == [item(rank), "kept"]


@on_threads(3)
def test_p109_object_lists_are_sent_and_received_also_from_whoever_sends(rank):
    if rank == 0:
        heard = {}
        for _ in range(4):
            found = [None, None]
            sender = ah.recv_object_list(found, tag=3)
            heard.setdefault(sender, []).append(found)
        assert heard == {one: [[item(one), at] for at in range(2)] for one in (1, 2)}
        ah.send_object_list([b"back"], 1)
    else:
        for at in range(2):
            ah.send_object_list([item(rank), at], 0, tag=3)
        if rank == 1:
            found = [None]
            assert ah.recv_object_list(found, 0) == 0
            assert found == [b"back"]


@on_threads(2)
def test_p109_a_list_of_another_length_is_refused_and_kept(rank):
    if rank == 0:
        ah.send_object_list([1, 2], 1)
    else:
        found = ["kept"]
        with pytest.raises(ValueError, match="rank 0 sent 2 objects, and object_list has 1"):
            ah.recv_object_list(found, 0)
        assert found == ["kept"]
    with pytest.raises(ValueError, match="object_list has 1 items, the group has 2 ranks"):
        ah.all_gather_object([None], 1)
    with pytest.raises(ValueError, match="must be a list that is not empty"):
        ah.broadcast_object_list([])
    ah.barrier()


@on_threads(2)
def test_arrays_and_registered_dataclasses_travel(rank):
    ah.register_dataclass(Point)
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    sent = {
        "points": [Point(rank, [1.0]), Point(2, [])],
        "array": np.arange(6, dtype=bfloat16).reshape(2, 3),
        "scalar": np.float32(rank),
    }
    found = [None] * 2
    ah.all_gather_object(found, sent)
    for one in range(2):
        assert found[one]["points"] == [Point(one, [1.0]), Point(2, [])]
        assert found[one]["array"].dtype == bfloat16
        assert found[one]["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert type(found[one]["scalar"]) is np.float32
        assert found[one]["scalar"] == one
    found[0]["array"][0] = 7  # it is the receiver's


@on_threads(2)
def test_what_does_not_travel_is_refused_before_anything_moves(rank):
    found = [None] * 2
    with pytest.raises(TypeError, match=r"object\[1\] is of type .*Odd.*allow_pickle=True"):
        ah.all_gather_object(found, [1, Odd(2)])
    with pytest.raises(TypeError, match=r"Stranger, which is not registered: call ah\.regist"):
        ah.all_gather_object(found, Stranger(2))
    ah.all_gather_object(found, rank)
    assert found == [0, 1]


@on_threads(2)
def test_pickles_travel_on_groups_that_allow_them_and_on_no_others(rank):
    free = ah.new_group([0, 1], allow_pickle=True)
    found = [None] * 2
    ah.all_gather_object(found, Odd(rank), free)
    assert found == [Odd(0), Odd(1)]
    # One rank alone allows it: the other must not run what it is sent.
    mixed = ah.new_group([0, 1], allow_pickle=rank == 0)
    values = [Odd(1)]
    if rank == 0:
        ah.broadcast_object_list(values, 0, mixed)
    else:
        with pytest.raises(ValueError, match="sent a pickled object, and this rank's group does"):
            ah.broadcast_object_list(values, 0, mixed)
        assert values == [Odd(1)]


@on_threads(2, allow_pickle=True)
def test_a_world_may_allow_pickles_and_a_group_of_it_not(rank):
    found = [None] * 2
    ah.all_gather_object(found, Odd(rank))
    assert found == [Odd(0), Odd(1)]
    strict = ah.new_group([0, 1], allow_pickle=False)
    with pytest.raises(TypeError, match="does not travel"):
        ah.all_gather_object(found, Odd(rank), strict)


@on_threads(2)
def test_a_dataclass_that_only_the_sender_knows_is_named(rank):
    if rank == 0:
        ah.register_dataclass(Point)
    values = [Point(1, [])] if rank == 0 else [None]
    if rank == 0:
        ah.broadcast_object_list(values)
    else:
        with pytest.raises(ValueError, match="'Point', which is not registered here"):
            ah.broadcast_object_list(values)
