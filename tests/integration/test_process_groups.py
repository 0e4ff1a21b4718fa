"""Process groups on each route: memory, links, and groups with more options."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import run_threads
from programs import process_groups
from support.ranks.processes import Job


def test_a_call_that_its_caller_waits_for_has_ended_when_there_is_a_work(job: Job) -> None:
    ranks = job(2, process_groups.wait_within_a_call)
    for rank in ranks:
        refused = rank.expect("done")["refused"]
        assert [text.partition(":")[0] for text in refused] == [
            "tensors[0] must be C-contiguous, this one has shape (2,) and strides (-8,)",
            "allreduce",
            "two arrays of tensors share memory",
            "allreduce",
        ]
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_every_method_is_right_over_memory_and_links(job: Job) -> None:
    ranks = job(3, process_groups.call_every_method)
    assert [rank.expect("done")["wrong"] for rank in ranks] == [[]] * 3
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


UNLIKE: dict[str, tuple[Callable[..., ah.Work], Callable[..., ah.Work]]] = {
    "one array more": (
        lambda pg, x, y: pg.allreduce([x, y]),
        lambda pg, x, y: pg.allreduce([x]),
    ),
    "another operation": (
        lambda pg, x, y: pg.allreduce([x, y]),
        lambda pg, x, y: pg.allreduce([x, y], op=ah.ReduceOp.MAX),
    ),
    "another root": (
        lambda pg, x, y: pg.broadcast([x, y], root=0),
        lambda pg, x, y: pg.broadcast([x, y], root=1),
    ),
    "other shapes of equal length": (
        lambda pg, x, y: pg.allreduce_coalesced([x[:2], x[2:], y]),
        lambda pg, x, y: pg.allreduce_coalesced([x[:3], x[3:], y]),
    ),
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_ranks_that_bring_other_lists_are_told_and_nothing_is_written(kind: str) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        x, y = np.arange(5.0) + rank, np.arange(5.0) - rank
        with pytest.raises(ah.CollectiveMismatch) as it:
            UNLIKE[kind][rank == 1](pg, x, y).wait(20)
        assert sorted(it.value.table) == [0, 1, 2]
        assert it.value.table[0] == it.value.table[2] != it.value.table[1]
        assert x.tolist() == (np.arange(5.0) + rank).tolist()
        assert y.tolist() == (np.arange(5.0) - rank).tolist()
        pg.barrier().wait(20)

    run_threads(3)(body)


@pytest.mark.parametrize("options", [{"verify": True}, {"retryable": True}], ids=str)
def test_process_groups_of_groups_that_check_or_try_again(options: dict[str, Any]) -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        x, y = np.array([rank + 1.0]), np.array([10.0])
        assert np.ravel(pg.allreduce([x, y]).result()).tolist() == [36.0, 36.0]
        assert np.ravel(pg.allreduce(np.array([rank])).result()).tolist() == [3]
        outputs = [np.zeros(1) for _ in range(3)]
        assert pg.allgather([outputs], [np.array([rank + 0.5])]).wait(20)
        assert np.ravel(outputs).tolist() == [0.5, 1.5, 2.5]
        other = pg.send([np.array([rank])], (rank + 1) % 3)
        assert pg.recv([np.array([-1])], (rank - 1) % 3).result() == [np.array([(rank - 1) % 3])]
        assert other.wait(20)

    run_threads(3, **options)(body)


def test_calls_of_a_process_group_are_collected_with_the_others() -> None:
    def body(rank: int) -> None:
        pg = ah.process_group()
        x, y = np.array([rank]), np.array([2 * rank])
        before = pg.group.sequence
        with ah.coalescing() as block:
            pg.allreduce(x)
            ah.all_reduce(y)
            assert (x.tolist(), y.tolist()) == ([rank], [2 * rank])
        assert (x.tolist(), y.tolist()) == ([3], [6])
        assert pg.group.sequence == before + 1
        assert len(block.works) == 2

    run_threads(3)(body)


def test_what_is_written_has_to_be_contiguous_writeable_and_apart() -> None:
    shut = np.zeros(3)
    shut.flags.writeable = False
    whole: npt.NDArray[Any] = np.zeros((3, 3))

    def body() -> None:
        pg = ah.process_group()
        column, x = whole[:, 0], np.zeros(3)
        attempts: list[tuple[str, Callable[[], object]]] = [
            ("must be C-contiguous", lambda: pg.broadcast([x, column])),
            ("must be C-contiguous", lambda: pg.allreduce([column])),
            ("must be C-contiguous", lambda: pg.allgather([[x, column]], [x])),
            ("must be C-contiguous", lambda: pg.gather([[x, column]], [x], root=pg.rank())),
            ("must be C-contiguous", lambda: pg.scatter([column], [[x, x]], root=pg.rank())),
            ("must be C-contiguous", lambda: pg.reduce_scatter([column], [[x, x]])),
            ("must be C-contiguous", lambda: pg.recv([column], 1 - pg.rank())),
            ("is read-only", lambda: pg.broadcast([x, shut])),
            ("is read-only", lambda: pg.reduce([shut], root=pg.rank())),
            ("share memory", lambda: pg.allreduce([whole[:2], whole[1:]])),
            ("share memory", lambda: pg.broadcast([whole[:2], whole[1:]])),
            ("share memory", lambda: pg.allgather([[x, x]], [np.ones(3)])),
            ("positive number", lambda: pg.allreduce([x], timeout=0)),
            ("timeout is a number", lambda: pg.allreduce([x], c10d.AllreduceOptions(timeout=-1))),
        ]
        for text, attempt in attempts:
            with pytest.raises(ValueError, match=text):
                attempt()
        assert not x.any()
        assert not whole.any()
        assert pg.group.sequence == 0

    run_threads(2)(body)
