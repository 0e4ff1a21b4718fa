"""Many calls begun before the first wait: right results, in call order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.torch.ranks import on_ranks
from support.torch.reduction_cases import equal, options

SIZE = 2
CALLS = 1000
TOTAL = SIZE * (SIZE - 1) // 2

Begin = Callable[[int], tuple[Any, Callable[[], None]]]


def ended(begin: Begin) -> None:
    """Begin all calls; check each call's condition after the end of its work or future."""
    begun = [begin(at) for at in range(CALLS)]
    for work, check in begun:
        work.wait()
        check()


def sum_of(at: int) -> Any:
    return torch.tensor([at * SIZE + TOTAL])


@on_ranks(SIZE)
def test_p018_broadcast_a_thousand_times(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        x = torch.tensor([at * SIZE + rank])
        work = dist.group.WORLD.broadcast(x, root=at % SIZE)
        return work, lambda: equal(x, torch.tensor([at * SIZE + at % SIZE]))

    ended(begin)


@on_ranks(SIZE)
def test_p022_allreduce_a_thousand_times(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        future = dist.group.WORLD.allreduce(torch.tensor([at + rank])).get_future()
        return future, lambda: equal(future.value(), [sum_of(at)])

    ended(begin)


@on_ranks(SIZE)
def test_p024_allreduce_coalesced_a_thousand_times(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        xs = 2 * [torch.tensor([at + rank])]  # one tensor, as c10d's own test has it
        future = dist.group.WORLD.allreduce_coalesced(xs).get_future()
        return future, lambda: equal(future.value(), [sum_of(at)] * 2)

    ended(begin)


@on_ranks(SIZE)
def test_p027_reduce_a_thousand_times_to_roots_in_turn(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        x, root = torch.tensor([at + rank]), at % SIZE
        work = dist.group.WORLD.reduce(x, root=root)
        return work, lambda: equal(x, sum_of(at) if rank == root else torch.tensor([at + rank]))

    ended(begin)


@on_ranks(SIZE)
def test_p030_gather_a_thousand_times_to_roots_in_turn(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        outputs, root = [torch.tensor([-1]) for _ in range(SIZE)], at % SIZE
        opts = options(dist.GatherOptions, rootRank=root)
        lists = [outputs] if rank == root else []
        work = dist.group.WORLD.gather(lists, [torch.tensor([at + rank])], opts)
        wanted = [torch.tensor([at + one if rank == root else -1]) for one in range(SIZE)]
        return work, lambda: equal(outputs, wanted)

    ended(begin)


@on_ranks(SIZE)
def test_p032_scatter_a_thousand_times_from_roots_in_turn(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        output, root = torch.tensor([-1]), at % SIZE
        opts = options(dist.ScatterOptions, rootRank=root)
        each = [torch.tensor([at + 10 * to + rank]) for to in range(SIZE)]
        work = dist.group.WORLD.scatter([output], [each] if rank == root else [], opts)
        return work, lambda: equal(output, torch.tensor([at + 10 * rank + root]))

    ended(begin)


@on_ranks(SIZE)
def test_p035_allgather_a_thousand_times(rank: int) -> None:
    def begin(at: int) -> tuple[Any, Callable[[], None]]:
        outputs = [torch.tensor([-1]) for _ in range(SIZE)]
        work = dist.group.WORLD.allgather([outputs], [torch.tensor([at + rank])])
        return work, lambda: equal(outputs, [torch.tensor([at + one]) for one in range(SIZE)])

    ended(begin)


@on_ranks(SIZE)
def test_p046_a_barrier_ends_after_the_calls_before_it(rank: int) -> None:
    """Also for calls with copied tensors, with results in their place by then."""
    works, xs = [], []
    for at in range(100):
        whole = torch.full((1000, 2), at + rank)
        xs.append(whole[:, 0] if at % 2 else whole)
        works.append(dist.all_reduce(xs[-1], async_op=True))
    dist.barrier()
    for at, (work, x) in enumerate(zip(works, xs, strict=True)):
        assert work.is_completed()
        equal(x, torch.full_like(x, at * SIZE + TOTAL))


@on_ranks(SIZE)
def test_p005_there_are_no_lists_of_devices_and_the_error_says_what_there_is(rank: int) -> None:
    for call in (
        lambda: dist.new_group([0, 1], pg_options=object()),
        lambda: dist.split_group(split_ranks=[[0, 1]], pg_options=object()),
    ):
        with pytest.raises(ValueError, match=r"no pg_options.*one address, which ALLHANDS_INTERF"):
            call()


@on_ranks(SIZE)
def test_p005_futures_of_one_group_overlap() -> None:
    futures = [dist.group.WORLD.allreduce(torch.ones(at + 1)).get_future() for at in range(4)]
    for at, future in enumerate(futures):
        equal(future.wait(), [torch.full((at + 1,), float(SIZE))])
