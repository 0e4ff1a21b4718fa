"""Calls with roots and peers given as ranks of the group, which differ from those of the world."""

from typing import Any

import numpy as np

import allhands as ah
from programs.protocol import tell

RANKS = (3, 1, 2)
"""The group; its rank 0 is rank 3 of the world."""


def make_group() -> ah.Group | ah.NonMember:
    return ah.new_group(RANKS)


def exchange_arrays(rank: int) -> None:
    group = make_group()
    if isinstance(group, ah.NonMember):
        return
    for root, its_rank in enumerate(RANKS):
        x = np.full(3, float(rank))
        ah.broadcast(x, group=group, group_src=root)
        assert (x == its_rank).all()
        ah.broadcast(x, its_rank, group)
        assert (x == its_rank).all()
        x[:] = rank
        ah.reduce(x, group=group, group_dst=root)
        assert (x == sum(RANKS)).all() or rank != its_rank
        outputs = [np.empty(1) for _ in RANKS] if rank == its_rank else None
        ah.gather(np.full(1, float(rank)), outputs, group=group, group_dst=root)
        assert outputs is None or [one[0] for one in outputs] == list(RANKS)
        inputs = [np.full(1, float(one)) for one in RANKS] if rank == its_rank else None
        ah.scatter(x[:1], inputs, group=group, group_src=root)
        assert x[0] == rank
        work = ah.broadcast(x, group=group, group_src=root, async_op=True)
        assert work is not None
        work.wait()
        assert x[0] == its_rank


def exchange_objects(rank: int) -> None:
    group = make_group()
    if isinstance(group, ah.NonMember):
        return
    for root, its_rank in enumerate(RANKS):
        items: list[Any] = [rank, "x"]
        ah.broadcast_object_list(items, group=group, group_src=root)
        assert items == [its_rank, "x"]
        ah.broadcast_object_list(items, group=group, group_src=root, label="slowly")
        gathered: list[Any] | None = [None] * 3 if rank == its_rank else None
        ah.gather_object(rank, gathered, group=group, group_dst=root)
        assert gathered is None or gathered == list(RANKS)
        output: list[Any] = [None]
        ah.scatter_object_list(output, list(RANKS), group=group, group_src=root)
        assert output == [rank]
        found = ah.gather_v(np.arange(rank), group=group, group_dst=root)
        assert found is None or [len(one) for one in found] == list(RANKS)
        blocks = [np.arange(one) for one in RANKS] if rank == its_rank else None
        assert len(ah.scatter_v(blocks, group=group, group_src=root)) == rank


def exchange_messages(rank: int) -> None:
    group = make_group()
    if isinstance(group, ah.NonMember):
        return
    x, mine = np.zeros(1), group.rank
    if mine == 0:
        ah.send(np.full(1, 7.0), group=group, group_dst=2)
        ah.send_object_list(["a", 1], group=group, group_dst=2)
        ah.batch_isend_irecv([ah.P2POp(ah.isend, np.full(1, 8.0), group=group, group_peer=2)])
    elif mine == 2:
        assert ah.recv(x, group=group, group_src=0) == RANKS[0]
        assert x[0] == 7
        items: list[Any] = [None, None]
        assert ah.recv_object_list(items, group=group, group_src=0) == RANKS[0]
        assert items == ["a", 1]
        [work] = ah.batch_isend_irecv([ah.P2POp(ah.irecv, x, group=group, group_peer=0)])
        work.wait()
        assert x[0] == 8
    ah.barrier(group)


def exchange_all() -> None:
    ah.init_process_group(timeout=30)
    rank = ah.get_rank()
    for exchange in (exchange_arrays, exchange_objects, exchange_messages):
        exchange(rank)
    tell("done")
    ah.destroy_process_group()
