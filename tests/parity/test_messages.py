"""Messages from point to point: rows 102, 108 and 111 of the parity table."""

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


@on_threads(2)
def test_p102_a_message_to_oneself_is_refused(rank):
    x = np.zeros(2)
    for call in (
        lambda: ah.send(x, rank),
        lambda: ah.isend(x, rank),
        lambda: ah.send(x, group_dst=rank),
        lambda: ah.recv(x, rank),
        lambda: ah.irecv(x, group_src=rank),
        lambda: ah.P2POp(ah.isend, x, rank),
    ):
        with pytest.raises(ValueError, match="this rank itself"):
            call()


@on_threads(2)
def test_p102_a_rank_of_the_world_and_one_of_the_group_are_not_given_together(rank):
    x, other = np.zeros(2), 1 - rank
    for call in (ah.send, ah.isend):
        with pytest.raises(ValueError, match=r"dst.*or group_dst.*one of them"):
            call(x, other, None, 0, other)
        with pytest.raises(ValueError, match=r"no receiver: give dst.*or group_dst"):
            call(x)
    for call in (ah.recv, ah.irecv):
        with pytest.raises(ValueError, match=r"src.*or group_src.*one of them"):
            call(x, other, group_src=other)
    with pytest.raises(ValueError, match="one of them"):
        ah.P2POp(ah.isend, x, other, group_peer=other)


@on_threads(3)
def test_p102_peers_may_be_named_by_their_place_in_the_group(rank):
    group = ah.new_group([2, 0])
    if rank == 1:
        return
    x = np.full(3, rank)
    if rank == 2:
        ah.send(x, group=group, group_dst=1)  # the world's rank 0
        assert ah.recv(x, group=group, group_src=1) == 0
        np.testing.assert_array_equal(x, [0, 0, 0])
    else:
        y = np.zeros(3, x.dtype)
        assert ah.recv(y, group=group, group_src=0) == 2
        np.testing.assert_array_equal(y, [2, 2, 2])
        ah.isend(x, group=group, group_dst=0).wait()


@on_threads(4)
def test_p108_isend_and_irecv_return_works(rank):
    right, left = (rank + 1) % 4, (rank - 1) % 4
    x, y = np.arange(5) + 10 * rank, np.zeros(5, np.int64)
    sending = ah.isend(x, right, tag=7)
    receiving = ah.irecv(y, left, tag=7)
    assert sending.wait()
    assert receiving.wait()
    assert receiving.is_completed()
    assert receiving.result() is y
    assert receiving.source_rank() == left
    np.testing.assert_array_equal(y, np.arange(5) + 10 * left)


@on_threads(3)
def test_p108_a_batch_of_messages_cannot_get_stuck_whatever_its_order(rank):
    others = [one for one in range(3) if one != rank]
    gives = {one: np.full((2, 3), 10 * rank + one, np.float32) for one in others}
    takes = {one: np.zeros((2, 3), np.float32) for one in others}
    batch = [ah.P2POp(ah.isend, gives[one], one) for one in others]
    batch += [ah.P2POp(ah.irecv, takes[one], one) for one in others]
    works = ah.batch_isend_irecv(batch[::-1] if rank == 1 else batch)
    assert len(works) == 4
    for work in works:
        work.wait()
    for one in others:
        np.testing.assert_array_equal(takes[one], np.full((2, 3), 10 * one + rank))


@on_threads(2)
def test_p108_a_thousand_messages_each_way_arrive_in_order(rank):
    other, count = 1 - rank, 1000
    gives = np.arange(2 * count, dtype=np.int64).reshape(count, 2) * (rank + 1)
    takes = np.zeros_like(gives)
    batch = []
    for at in range(count):
        batch.append(ah.P2POp(ah.isend, gives[at], other, tag=at % 3))
        batch.append(ah.P2POp(ah.irecv, takes[at], other, tag=at % 3))
    for work in ah.batch_isend_irecv(batch):
        work.wait()
    np.testing.assert_array_equal(takes, gives // (rank + 1) * (other + 1))


@on_threads(2)
def test_p108_a_batch_with_a_mistake_begins_nothing(rank):
    other, x, y = 1 - rank, np.arange(3.0), np.zeros(3)
    read_only = np.zeros(3)
    fine = [ah.P2POp(ah.isend, x + 1, other), ah.P2POp(ah.irecv, read_only, other)]
    read_only.flags.writeable = False  # after it was looked at first
    with pytest.raises(ValueError, match=r"read-only|writeable"):
        ah.batch_isend_irecv(fine)
    with pytest.raises(ValueError, match="empty"):
        ah.batch_isend_irecv([])
    with pytest.raises(TypeError, match="P2POp"):
        ah.batch_isend_irecv([fine[0], ah.isend])
    for wrong in (
        lambda: ah.P2POp(ah.send, x, other),
        lambda: ah.P2POp(ah.isend, x, 2),
        lambda: ah.P2POp(ah.isend, x),
        lambda: ah.P2POp(ah.isend, x, other, tag=-1),
        lambda: ah.P2POp(ah.irecv, read_only, other),
    ):
        with pytest.raises(ValueError):
            wrong()
    # Had any of them set out, it would be the first to arrive.
    works = ah.batch_isend_irecv([ah.P2POp(ah.isend, x, other), ah.P2POp(ah.irecv, y, other)])
    for work in works:
        work.wait()
    np.testing.assert_array_equal(y, [0.0, 1.0, 2.0])


@on_threads(3)
def test_p108_a_rank_outside_the_group_has_no_work_in_a_batch(rank):
    group = ah.new_group([0, 1])
    x = np.full(2, rank)
    if rank == 2:
        with pytest.warns(UserWarning, match="does not belong to"):
            assert ah.batch_isend_irecv([ah.P2POp(ah.isend, x, 0, group)]) == []
        return
    y = np.zeros(2, x.dtype)
    ops = [ah.P2POp(ah.isend, x, 1 - rank, group), ah.P2POp(ah.irecv, y, 1 - rank, group)]
    for work in ah.batch_isend_irecv(ops):
        work.wait()
    np.testing.assert_array_equal(y, [1 - rank] * 2)


@on_threads(4)
def test_p111_a_receive_from_anybody_says_who_sent(rank):
    if rank:
        ah.send(np.full(2, rank), 0)
        return
    first = np.zeros(2, np.int64)
    seen = {ah.recv(first)}
    np.testing.assert_array_equal(first, [*seen] * 2)
    arrays = [np.zeros(2, np.int64) for _ in range(2)]
    works = [ah.irecv(one) for one in arrays]
    for work, array in zip(works, arrays, strict=True):
        work.wait()
        np.testing.assert_array_equal(array, [work.source_rank()] * 2)
        seen.add(work.source_rank())
    assert seen == {1, 2, 3}


@on_threads(3)
def test_p111_the_source_is_a_rank_of_the_group_and_recv_gives_that_of_the_world(rank):
    group = ah.new_group([2, 1])
    if rank == 2:
        for _ in range(2):
            ah.send(np.ones(1), 1, group)
    if rank == 1:
        work = ah.irecv(np.zeros(1), None, group)
        with pytest.raises(ValueError, match="received nothing"):
            ah.irecv(np.zeros(1), None, group, tag=9, timeout=30).source_rank()
        work.wait()
        assert work.source_rank() == 0
        assert ah.recv(np.zeros(1), None, group) == 2
