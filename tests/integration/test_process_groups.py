"""Process groups on what carries calls otherwise: memory, links, groups that can do more."""

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands import c10d
from allhands.testing import run_threads
from support.ranks.processes import Job

EVERY_METHOD = """
ah.init_process_group(timeout=30)
pg = ah.process_group()
n, me = pg.size(), pg.rank()
ranks = range(n)
root = n - 1
wrong = []

def check(name, work, wanted):
    work.wait(30)
    found = [np.asarray(one) for one in work.result()]
    if [one.tolist() for one in found] != [np.asarray(one).tolist() for one in wanted]:
        wrong.append(name)

for length in (0, 1, 1000, 100_000):
    def one(rank, by=0):
        return np.arange(length, dtype=np.float32) % 100 + 10 * rank + by
    def total(by=0):
        return sum(one(rank, by) for rank in ranks)
    for asyncOp in (True, False):
        def opts(kind, **more):
            return getattr(ah.c10d, kind + "Options")(asyncOp=asyncOp, **more)
        def empty(count):
            return [np.full(length, -1, np.float32) for _ in range(count)]
        several = [one(me), one(me, 1)]
        check("broadcast", pg.broadcast(
            [one(me), one(me, 1)], opts("Broadcast", rootRank=root, rootTensor=1)),
            [one(root, 1)] * 2)
        check("allreduce", pg.allreduce(several, opts("Allreduce")), [total() + total(1)] * 2)
        check("allreduce of one", pg.allreduce([one(me)], opts("Allreduce")), [total()])
        check("allreduce_coalesced", pg.allreduce_coalesced(
            [one(me), one(me, 3)], opts("AllreduceCoalesced")), [total(), total(3)])
        check("reduce", pg.reduce([one(me)], opts("Reduce", rootRank=root)),
            [total() if me == root else one(me)])
        check("allgather", pg.allgather([empty(n)], [one(me)], opts("Allgather")),
            [one(rank) for rank in ranks])
        check("allgather of two",
            pg.allgather([empty(2 * n), empty(2 * n)], [one(me), one(me, 1)], opts("Allgather")),
            [[one(rank, by) for rank in ranks for by in (0, 1)]] * 2)
        check("allgather_coalesced",
            pg.allgather_coalesced([empty(2) for _ in ranks], [one(me), one(me, 1)]),
            [[one(rank, by) for by in (0, 1)] for rank in ranks])
        check("allgather_into_tensor_coalesced", pg.allgather_into_tensor_coalesced(
            [np.zeros((n, length), np.float32) for _ in (0, 1)], [one(me), one(me, 1)]),
            [[one(rank, by) for rank in ranks] for by in (0, 1)])
        check("gather", pg.gather(
            [empty(n)] if me == root else [], [one(me)], opts("Gather", rootRank=root)),
            [one(rank) for rank in ranks] if me == root else [])
        check("scatter", pg.scatter(
            empty(1), [[one(rank) for rank in ranks]] if me == root else [],
            opts("Scatter", rootRank=root)), [one(me)])
        check("reduce_scatter", pg.reduce_scatter(
            empty(1), [[one(me, to) for to in ranks]], opts("ReduceScatter")), [total(me)])
        check("reduce_scatter_tensor_coalesced", pg.reduce_scatter_tensor_coalesced(
            empty(2), [np.concatenate([one(me, to + by) for to in ranks]) for by in (0, 1)]),
            [total(me), total(me + 1)])
        check("alltoall", pg.alltoall(
            empty(n), [one(me, to) for to in ranks], opts("AllToAll")),
            [one(rank, me) for rank in ranks])
        whole = np.zeros((n, length), np.float32)
        check("all_gather_single", pg.all_gather_single(whole, one(me), opts("Allgather")),
            [[one(rank) for rank in ranks]])
        shares = np.concatenate([one(me, to) for to in ranks])
        check("reduce_scatter_single", pg.reduce_scatter_single(
            empty(1)[0], shares, opts("ReduceScatter")), [total(me)])
        check("all_to_all_single", pg.all_to_all_single(
            whole, shares.reshape(n, -1), [], None, opts("AllToAll")),
            [[one(rank, me) for rank in ranks]])
        sent = pg.send([one(me)], (me + 1) % n, 7)
        check("recv", pg.recv(empty(1), (me - 1) % n, 7), [one((me - 1) % n)])
        check("send", sent, [one(me)])
        pg.barrier(opts("Barrier")).wait(30)
        pg.monitored_barrier()
tell("done", wrong=wrong)
ah.destroy_process_group()
"""


WAITED_FOR = """
ah.init_process_group(timeout=30)
pg, group = ah.process_group(), ah.default_group()
pg.barrier().wait(30)  # by then there is memory in common
x = np.array([group.rank, 1.0])
opts = ah.c10d.AllreduceOptions(asyncOp=False, label="mine")
before = group.sequence
work = pg.allreduce([x], opts)
assert x.tolist() == [1.0, 2.0], x  # before anybody has waited
assert work.is_completed() and work.is_success() and work.exception() is None
assert (work.operation, work.sequence, work.label) == ("all_reduce", before + 1, "mine")
assert str(work) == "all_reduce #2 of group 'world' (mine)", work
assert work.result()[0] is x and work.wait(0.01)
future = work.get_future()
assert future is work.get_future() and future.done() and future.value()[0] is x
assert future.then(lambda done: done.value()[0] is x).wait(10)
assert "#2, 16 bytes, over shared memory" in work.explain(), work.explain()
work.cancel()
work.abandon()
assert work.is_success()
pg.barrier(ah.c10d.BarrierOptions(asyncOp=False))
pg.barrier().wait(30)
assert "#2, 16 bytes" in work.explain()
refused = []
y = np.arange(3.0)
for given, op in (([x[::-1]], "SUM"), ([x > 1], "AVG"), ([y[:2], y[1:]], "SUM"), ([], "SUM")):
    try:
        opts.reduceOp = ah.ReduceOp[op]
        pg.allreduce(given, opts)
    except (ValueError, TypeError) as error:
        refused.append(str(error))
assert group.sequence == before + 3
tell("done", refused=refused)
ah.destroy_process_group()
"""


def test_a_call_that_its_caller_waits_for_has_ended_when_there_is_a_work(job: Job) -> None:
    ranks = job(2, textwrap.dedent(WAITED_FOR))
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
    ranks = job(3, textwrap.dedent(EVERY_METHOD))
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
            ("must be C-contiguous", lambda: pg.allreduce_coalesced([x, column])),
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
