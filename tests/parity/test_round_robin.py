"""Several groups used in turn as a single group."""

from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


def _call_twice(group: Any) -> None:
    for _ in range(2):
        ah.all_reduce(np.ones(1), group=group)


@on_threads(3)
def test_p048_round_robin_deals_calls_to_each_group(rank: int):
    groups = [ah.new_group() for _ in range(2)]
    dealt = ah.round_robin(groups)
    for _ in range(3):
        x = np.full((100, 100), float(rank))
        ah.broadcast(x, 0, group=dealt)
        assert (x == 0).all()
    assert [group.sequence for group in groups] == [2, 1]
    assert ah.get_sequence_number(dealt) == 3
    assert (dealt.rank, dealt.size) == (rank, 3)


@on_threads(2)
def test_p048_round_robin_is_created_and_destroyed_again_and_again():
    for _ in range(3):
        groups = [ah.new_group() for _ in range(2)]
        dealt = ah.round_robin(groups)
        for _ in range(3):
            x = np.ones((10, 10))
            dealt.all_reduce(x).wait()
            assert (x == 2).all()
        ah.destroy_process_group(dealt)
        with pytest.raises(ah.AllhandsError, match="destroyed"):
            ah.all_reduce(np.ones(1), group=groups[1])


@on_threads(2)
def test_p048_round_robin_lets_a_call_pass_one_that_waits(rank: int):
    dealt = ah.round_robin([ah.new_group(), ah.new_group()])
    first, second = np.ones(1), np.ones(2)
    works = []
    if rank == 0:
        works = [dealt.all_reduce(first), dealt.all_reduce(second)]
        works[1].wait()  # rank 1 makes the first only after it has heard of this
        assert not works[0].is_completed()
        ah.send(np.ones(1), 1)
        works[0].wait()
    else:
        one, other = dealt.parts
        other.all_reduce(second).wait()
        ah.recv(np.ones(1), 0)
        one.all_reduce(first).wait()
    assert (first == 2).all()
    assert (second == 2).all()


@on_threads(2)
def test_p048_barrier_of_a_round_robin_waits_for_calls_on_every_group(rank: int):
    dealt = ah.round_robin([ah.new_group(), ah.new_group()])
    one, other = dealt.parts
    x = np.ones(5)
    if rank == 0:
        other.all_reduce(x)
        barrier = dealt.barrier()
        one.all_reduce(np.ones(1)).wait()  # it comes after the barrier of this group
        assert not barrier.is_completed()
        ah.send(np.ones(1), 1)
        barrier.wait()
        assert (x == 2).all()
    else:
        one.barrier().wait()
        one.all_reduce(np.ones(1)).wait()
        ah.recv(np.empty(1), 0)
        other.all_reduce(x).wait()
        other.barrier().wait()


@on_threads(2)
def test_p048_messages_on_a_round_robin_keep_their_order(rank: int):
    dealt = ah.round_robin([ah.new_group() for _ in range(2)])
    if rank == 0:
        dealt.all_reduce(np.ones(1))  # takes a turn here before the messages, there after them
    for number in range(4):
        x = np.full(1, number if rank == 0 else -1)
        if rank == 0:
            ah.send(x, 1, dealt)
        else:
            assert ah.recv(x, 0, dealt) == 0
            assert x[0] == number
    if rank == 1:
        dealt.all_reduce(np.ones(1))
    ah.barrier(dealt)


@on_threads(2)
def test_p048_abort_of_a_round_robin_ends_all_its_groups(rank: int):
    dealt = ah.round_robin([ah.new_group() for _ in range(2)])
    if rank == 0:
        works = [dealt.all_reduce(np.ones(1)) for _ in range(2)]
        ah.recv(np.empty(1), 1)  # it has heard of the calls
        ah.abort("enough", dealt)
        for work in works:
            with pytest.raises(ah.GroupAborted, match="enough"):
                work.wait()
        ah.send(np.ones(1), 1)
    else:
        ah.send(np.ones(1), 0)
        with pytest.raises(ah.GroupAborted, match="enough"):
            ah.recv(np.empty(1), 0, dealt)  # never sent
        ah.recv(np.empty(1), 0)
        with pytest.raises(ah.GroupAborted, match="enough"):
            _call_twice(dealt.parts[1])  # the first may find the other's contribution
    ah.barrier()


@on_threads(2)
def test_p048_round_robin_has_every_kind_of_call(rank: int):
    parts = [ah.new_group() for _ in range(2)]
    dealt = ah.round_robin(parts)
    arrays = [np.full(3, float(at)) for at in range(4)]
    with ah.coalescing(dealt):
        for x in arrays:
            ah.all_reduce(x, group=dealt)
    assert [x.tolist() for x in arrays] == [[2.0 * at] * 3 for at in range(4)]
    told: list[object] = [None, None]
    ah.all_gather_object(told, {"rank": rank}, dealt)
    assert told == [{"rank": 0}, {"rank": 1}]
    ah.monitored_barrier(dealt)
    call = ah.all_reduce_init(arrays[1], group=dealt)
    assert call is not None
    call.start()
    call.wait()
    assert arrays[1].tolist() == [4] * 3
    assert all(part.sequence for part in parts)
    ah.set_timeout(0.2, dealt)
    if rank == 0:
        with pytest.raises(ah.CollectiveTimeout, match=r"after 0\.2 s"):  # not after the parts' own
            ah.all_reduce(arrays[0], group=dealt)
        ah.send(np.ones(1), 1)
    else:
        ah.recv(np.empty(1), 0)


@on_threads(2)
def test_p048_round_robin_refuses_groups_of_other_ranks(rank: int):
    pair, mine = ah.new_group(), ah.new_group([rank])
    with pytest.raises(ValueError, match="same ranks"):
        ah.round_robin([pair, mine])
    with pytest.raises(ValueError, match="each of them once"):
        ah.round_robin([pair, pair])
    with pytest.raises(ValueError, match="each of them once"):
        ah.round_robin([])
    with pytest.raises(ValueError, match="go on by themselves"):
        ah.round_robin([ah.new_group(retryable=True)])
    with pytest.raises(TypeError, match="new_group"):
        ah.round_robin([None])  # type: ignore[list-item]
    dealt = ah.round_robin([pair])
    with pytest.raises(ValueError, match="positive number of seconds"):
        ah.all_reduce(np.ones(1), group=dealt, timeout=-1 if rank else 0)
    assert ah.get_sequence_number(dealt) == 0  # no turn was taken
