"""Rows in groups with ranks unlike places: over memory, over links and on threads.

PyTorch sorts the ranks that `new_group` is given; this package's own splits keep their order.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import allhands.torch
from support.torch import thread_ranks
from support.torch.ranks import run_ranks
from support.torch.reduction_cases import equal, options
from support.torch.shared_world import SharedWorld

SIZE = 4
PARTS = ([2, 0], [3, 1])
ORDERS = ([2, 0], [3, 1, 2, 0])
LENGTHS = (1, 300, 40_000)

MEMORY = SharedWorld(SIZE, environment={"ALLHANDS_BACKEND": "shm"})
LINKS = SharedWorld(SIZE, environment={"ALLHANDS_BACKEND": "socket"})


def on_every_way(test: Callable[[int], None]) -> Callable[[str], None]:
    """Decorate a test of a rank to run over shared memory, over links, and on threads."""
    ways = {
        "shm": MEMORY(test),
        "links": LINKS(test),
        # In a process of their own: one that has had threads as ranks is not to be forked.
        "threads": partial(run_ranks, 1, lambda _: _on_threads(test), init=False),
    }

    def run(way: str) -> None:
        ways[way]()

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return pytest.mark.parametrize("way", ways)(run)


def _on_threads(test: Callable[[int], None]) -> None:
    with warnings.catch_warnings():
        # Names that programs use as they always have.
        warnings.filterwarnings("ignore", ".*deprecated")
        thread_ranks.run_threads(SIZE, test)


def groups(rank: int) -> Iterator[tuple[Any, list[int]]]:
    """Make the groups; yield this rank's groups, with the ranks by place."""
    for given in PARTS:
        group, ranks = dist.new_group(given), sorted(given)
        if rank in ranks:
            assert dist.get_group_rank(group, rank) == ranks.index(rank)
            yield group, ranks
    for ranks in ORDERS:
        if (group := allhands.torch.split_group(None, [ranks])) is not None:
            assert group.rank() == ranks.index(rank)
            yield group, ranks


def of(rank: int, length: int) -> Any:
    return torch.arange(length, dtype=torch.float32) % 100 + 1000 * (rank + 1)


def names(kind: str, ranks: list[int], root: int) -> list[dict[str, int]]:
    """Return the names of a root in programs: by world rank, and by place."""
    return [{kind: root}, {f"group_{kind}": ranks.index(root)}]


@on_every_way
def test_p017_broadcast_of_each_root_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            for length in LENGTHS:
                for named in names("src", ranks, root):
                    x = of(rank, length)
                    dist.broadcast(x, group=group, **named)
                    equal(x, of(root, length))
                x = of(rank, length)
                opts = options(dist.BroadcastOptions, rootRank=ranks.index(root))
                group.broadcast([x], opts).wait()
                equal(x, of(root, length))


@on_every_way
def test_p026_reduce_to_each_root_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            for length in LENGTHS:
                total = sum(of(one, length) for one in ranks)
                for named in names("dst", ranks, root):
                    x = of(rank, length)
                    dist.reduce(x, group=group, **named)
                    equal(x, total if rank == root else of(rank, length))
                x = of(rank, length)
                opts = options(dist.ReduceOptions, rootRank=ranks.index(root))
                group.reduce([x], opts).wait()
                equal(x, total if rank == root else of(rank, length))


@on_every_way
def test_p028_gather_to_each_root_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            for length in LENGTHS:
                for named in names("dst", ranks, root):
                    found = [torch.zeros(length) for _ in ranks] if rank == root else None
                    dist.gather(of(rank, length), found, group=group, **named)
                    equal(found or [], [of(one, length) for one in ranks if found])


@on_every_way
def test_p031_scatter_from_each_root_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            for length in LENGTHS:
                for named in names("src", ranks, root):
                    given = [of(to, length) + root for to in ranks] if rank == root else None
                    x = torch.zeros(length)
                    dist.scatter(x, given, group=group, **named)
                    equal(x, of(rank, length) + root)


@on_every_way
def test_p033_blocks_come_in_the_order_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        size, place = len(ranks), ranks.index(rank)
        for length in LENGTHS:
            found = [torch.zeros(length) for _ in ranks]
            dist.all_gather(found, of(rank, length), group=group)
            equal(found, [of(one, length) for one in ranks])
            whole = torch.zeros(size * length)
            dist.all_gather_into_tensor(whole, of(rank, length), group=group)
            equal(whole, torch.cat([of(one, length) for one in ranks]))
            given = torch.cat([of(to, length) + rank for to in ranks])
            share = torch.zeros(length)
            dist.reduce_scatter_tensor(share, given, group=group)
            equal(share, size * of(rank, length) + sum(ranks))
            dist.all_to_all_single(whole, given, group=group)
            equal(whole, torch.cat([of(rank, length) + one for one in ranks]))
            x = of(rank, length)
            dist.all_reduce(x, group=group)
            equal(x, sum(of(one, length) for one in ranks))
        assert dist.get_rank(group) == place


@on_every_way
def test_p109_objects_of_each_root_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            for source, goal in zip(
                names("src", ranks, root), names("dst", ranks, root), strict=True
            ):
                items: list[Any] = [rank, {"of": rank}]
                dist.broadcast_object_list(items, group=group, **source)
                assert items == [root, {"of": root}]
                found: list[Any] | None = [None] * len(ranks) if rank == root else None
                dist.gather_object({"of": rank}, found, group=group, **goal)
                assert found is None or found == [{"of": one} for one in ranks]
                mine: list[Any] = [None]
                given = [(root, to) for to in ranks] if rank == root else None
                dist.scatter_object_list(mine, given, group=group, **source)
                assert mine == [(root, rank)]
        everywhere: list[Any] = [None] * len(ranks)
        dist.all_gather_object(everywhere, rank, group=group)
        assert everywhere == ranks


@on_every_way
def test_p051_messages_between_all_pairs_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        others = [one for one in ranks if one != rank]
        for length in LENGTHS:
            got = {one: torch.zeros(length) for one in others}
            works = []
            for other in others:
                works.append(group.send([of(rank, length) + other], ranks.index(other), 3))
                works.append(group.recv([got[other]], ranks.index(other), 3))
            for work in works:
                work.wait()
            for other, x in got.items():
                equal(x, of(other, length) + rank)


@on_every_way
def test_p108_messages_to_ranks_of_the_world_and_of_a_part(rank: int) -> None:
    for group, ranks in groups(rank):
        after = ranks[(ranks.index(rank) + 1) % len(ranks)]
        before = ranks[ranks.index(rank) - 1]
        for length in LENGTHS:
            for to, source in zip(
                names("dst", ranks, after), names("src", ranks, before), strict=True
            ):
                got = torch.zeros(length)
                sent = dist.isend(of(rank, length), group=group, tag=7, **to)
                assert dist.recv(got, group=group, tag=7, **source) == before
                equal(got, of(before, length))
                sent.wait()
            there, back = torch.zeros(length), torch.zeros(length)
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, of(rank, length), after, group),
                    dist.P2POp(dist.irecv, there, group=group, group_peer=ranks.index(before)),
                    dist.P2POp(dist.isend, -of(rank, length), before, group, tag=1),
                    dist.P2POp(dist.irecv, back, after, group, tag=1),
                ]
            ):
                work.wait()
            equal(there, of(before, length))
            equal(back, -of(after, length))


@on_every_way
def test_p111_who_sent_in_a_part_is_named_as_the_world_does(rank: int) -> None:
    for group, ranks in groups(rank):
        if rank == ranks[0]:
            seen = set()
            for _ in ranks[1:]:
                x = torch.zeros(2)
                seen.add(dist.recv(x, group=group))
                assert int(x[0]) in seen
            assert seen == {*ranks[1:]}
        else:
            dist.send(torch.full((2,), float(rank)), ranks[0], group=group)
        dist.barrier(group)
