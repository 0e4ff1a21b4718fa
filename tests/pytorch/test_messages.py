"""Messages and objects between ranks of torch.distributed."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.ranks import on_ranks
from support.torch.reduction_cases import equal

SIZE = 3


@on_ranks(SIZE)
def test_p049_broadcast_object_list_overwrites_those_of_all_but_the_root(rank: int) -> None:
    objects = [99, {"of": [rank]}, torch.full((2,), rank)] if rank == 1 else [None] * 3
    dist.broadcast_object_list(objects, src=1)
    assert objects[:2] == [99, {"of": [1]}]
    equal(objects[2], torch.tensor([1, 1]))


@on_ranks(SIZE)
def test_p051_send_and_receive_between_all_pairs(rank: int) -> None:
    pg = dist.group.WORLD
    sent = [torch.tensor([rank + 1]) for _ in range(SIZE)]
    got = [torch.tensor([-1]) for _ in range(SIZE)]
    others = [one for one in range(SIZE) if one != rank]
    works = [pg.send([sent[one]], one, 13 + rank) for one in others]
    for one in others:
        pg.recv([got[one]], one, 13 + one).wait()
    for work in works:
        work.wait()
        assert work.is_completed()
    equal([got[one] for one in others], [torch.tensor([one + 1]) for one in others])


@on_ranks(2)
def test_p051_messages_are_told_apart_by_their_tags(rank: int) -> None:
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.tensor([tag]), 1, tag=tag)
    else:
        for tag in (2, 1):
            x = torch.zeros(1, dtype=torch.int64)
            assert dist.recv(x, 0, tag=tag) == 0
            assert x.item() == tag


@on_ranks(2)
def test_p102_sending_to_itself_and_both_kinds_of_rank_are_refused(rank: int) -> None:
    x = torch.zeros(1)
    other = 1 - rank
    for call, kind in (
        (dist.send, "dst"),
        (dist.isend, "dst"),
        (dist.recv, "src"),
        (dist.irecv, "src"),
    ):
        with pytest.raises(ValueError, match="Can't specify both group_rank and global_rank"):
            call(x, other, **{f"group_{kind}": other})
    for itself in ({"dst": rank}, {"group_dst": rank}):
        with pytest.raises(ValueError, match="Invalid destination rank"):
            dist.send(x, **itself)
        with pytest.raises(ValueError, match=f"dst={rank} is this rank itself"):
            dist.isend(x, **itself)
    for call in (dist.recv, dist.irecv):
        with pytest.raises(ValueError, match=f"src={rank} is this rank itself"):
            call(x, rank)
    assert dist.group.WORLD._get_sequence_number_for_group() == 0
    dist.barrier()


@on_ranks(SIZE)
def test_p108_messages_in_flight_and_batches_of_them(rank: int) -> None:
    after, before = (rank + 1) % SIZE, (rank - 1) % SIZE
    x, got = torch.full((2,), float(rank)), torch.zeros(2)
    works = [dist.isend(x, after), dist.irecv(got, before)]
    for work in works:
        work.wait()
    equal(got, torch.full((2,), float(before)))
    column = torch.zeros(2, 2)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x * 10, after, tag=3),
            dist.P2POp(dist.irecv, column[:, 0], before, tag=3),
            dist.P2POp(dist.isend, x * 100, before),
            dist.P2POp(dist.irecv, got, after),
        ]
    )
    for work in works:
        work.wait()
    equal(column, torch.tensor([[10.0 * before, 0.0]] * 2))
    equal(got, torch.full((2,), 100.0 * after))


@on_ranks(SIZE)
def test_p108_messages_within_a_part_of_the_world(rank: int) -> None:
    part = dist.new_group([1, 2])
    if rank == 0:
        return
    got = torch.zeros(1, dtype=torch.int64)
    theirs = 3 - rank
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.tensor([rank]), theirs, part),
            dist.P2POp(dist.irecv, got, group=part, group_peer=theirs - 1),
        ]
    )
    for work in works:
        work.wait()
    assert got.item() == theirs
    assert works[-1].is_completed()


@on_ranks(SIZE)
def test_p111_receiving_from_any_rank_says_from_which(rank: int) -> None:
    if rank:
        dist.send(torch.full((2,), rank), 0)
    else:
        sources = []
        for _ in range(SIZE - 1):
            x = torch.zeros(2, dtype=torch.int64)
            sources.append(dist.recv(x))
            equal(x, torch.full((2,), sources[-1]))
        assert sorted(sources) == [1, 2]
    part = dist.new_group([2, 0, 1])
    if rank == 2:
        dist.send(torch.ones(1), 0, group=part)
    elif rank == 0:
        x = torch.zeros(2, 1)[:, 0][:1]
        work = part.recv_anysource([x], 0)
        work.wait()
        assert dist.get_global_rank(part, work._source_rank()) == 2
        assert x.item() == 1


@on_ranks(SIZE)
def test_p109_objects_are_gathered_scattered_and_sent(rank: int) -> None:
    mine: Any = {"rank": rank, "list": list(range(rank))}
    wanted = [{"rank": one, "list": list(range(one))} for one in range(SIZE)]
    found = [None] * SIZE
    dist.all_gather_object(found, mine)
    assert found == wanted
    gathered = [None] * SIZE if rank == 2 else None
    dist.gather_object(mine, gathered, dst=2)
    assert gathered == (wanted if rank == 2 else None)
    output = [None]
    dist.scatter_object_list(output, wanted if rank == 1 else None, src=1)
    assert output == [wanted[rank]]
    if rank == 0:
        dist.send_object_list([mine, "and", None], dst=1)
    elif rank == 1:
        objects: list[Any] = [None] * 3
        assert dist.recv_object_list(objects, src=0) == 0
        assert objects == [wanted[0], "and", None]
