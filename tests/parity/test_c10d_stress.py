"""A thousand calls of a process group under way at once, with exact results.

Each rank makes all of them before it waits for the first.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import on_threads

NIGHTLY = pytest.mark.nightly
WAYS = ("threads", pytest.param("shm", marks=NIGHTLY), pytest.param("links", marks=NIGHTLY))
"""By day the seeds' own bodies call as often from processes."""

SIZE = 4
CALLS = 1000

Array = npt.NDArray[Any]


def outstanding(begin: Callable[[int, int], ah.Work], wanted: Callable[[int, int], Any]) -> None:
    """Begin a thousand calls, each with a number and a root; compare results."""
    works = [begin(at, at % SIZE) for at in range(CALLS)]
    for at, work in enumerate(works):
        assert work.wait(50)
        found = np.concatenate([np.ravel(one) for one in work.result()] or [np.zeros(0)])
        assert found.tolist() == wanted(at, at % SIZE), f"call {at}"


@on_threads(SIZE)
def test_p018_broadcast_a_thousand_times(rank: int) -> None:
    pg = ah.process_group()
    outstanding(
        lambda at, root: pg.broadcast(np.array([at * SIZE + rank]), root=root),
        lambda at, root: [at * SIZE + root],
    )


@on_threads(SIZE)
def test_p022_allreduce_a_thousand_times(rank: int) -> None:
    pg = ah.process_group()
    outstanding(
        lambda at, root: pg.allreduce(np.array([at + rank])),
        lambda at, root: [at * SIZE + 6],
    )


@on_threads(SIZE)
def test_p024_allreduce_coalesced_a_thousand_times(rank: int) -> None:
    pg = ah.process_group()
    outstanding(
        lambda at, root: pg.allreduce_coalesced(2 * [np.array([at + rank])]),
        lambda at, root: [at * SIZE + 6] * 2,
    )


@on_threads(SIZE)
def test_p027_reduce_a_thousand_times_to_roots_in_turn(rank: int) -> None:
    pg = ah.process_group()

    def begin(at: int, root: int) -> ah.Work:
        opts = c10d.ReduceOptions()
        opts.rootRank = root
        return pg.reduce([np.array([at + rank])], opts)

    outstanding(begin, lambda at, root: [at * SIZE + 6 if rank == root else at + rank])


@on_threads(SIZE)
def test_p030_gather_a_thousand_times_to_roots_in_turn(rank: int) -> None:
    pg = ah.process_group()

    def begin(at: int, root: int) -> ah.Work:
        opts = c10d.GatherOptions()
        opts.rootRank = root
        outputs = [[np.array([-1]) for _ in range(SIZE)]] if rank == root else []
        return pg.gather(outputs, [np.array([at + rank])], opts)

    outstanding(begin, lambda at, root: [at + one for one in range(SIZE)] if rank == root else [])


@on_threads(SIZE)
def test_p032_scatter_a_thousand_times_from_roots_in_turn(rank: int) -> None:
    pg = ah.process_group()

    def begin(at: int, root: int) -> ah.Work:
        opts = c10d.ScatterOptions()
        opts.rootRank = root
        inputs = [[np.array([at + root, to]) for to in range(SIZE)]] if rank == root else []
        return pg.scatter([np.array([-1, -1])], inputs, opts)

    outstanding(begin, lambda at, root: [at + root, rank])


@on_threads(SIZE)
def test_p035_allgather_a_thousand_times(rank: int) -> None:
    pg = ah.process_group()
    outstanding(
        lambda at, root: pg.allgather(
            [[np.array([-1]) for _ in range(SIZE)]], [np.array([at + rank])]
        ),
        lambda at, root: [at + one for one in range(SIZE)],
    )


@on_threads(SIZE)
def test_p018_a_thousand_calls_of_every_kind_keep_their_order(rank: int) -> None:
    pg = ah.process_group()
    ranks = range(SIZE)

    def begin(at: int, root: int) -> ah.Work:
        x = np.array([at + rank])
        match at % 5:
            case 0:
                return pg.allreduce([x, x.copy()])
            case 1:
                return pg.broadcast([x, x + 1], c10d.BroadcastOptions(rootRank=root, rootTensor=1))
            case 2:
                return pg.allgather([np.array([-1]) for _ in ranks], x)
            case 3:
                return pg.alltoall_base(np.zeros(SIZE, np.int64), np.repeat(x, SIZE))
            case _:
                return pg._reduce_scatter_base(np.zeros(1, np.int64), np.repeat(x, SIZE))

    def wanted(at: int, root: int) -> list[int]:
        each = [at + one for one in ranks]
        match at % 5:
            case 0:
                return [2 * sum(each)] * 2
            case 1:
                return [at + root + 1] * 2
            case 2 | 3:
                return each
            case _:
                return [sum(each)]

    outstanding(begin, wanted)
