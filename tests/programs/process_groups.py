"""Process groups in the form of c10d, over memory and over links."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import tell

Array = npt.NDArray[Any]


class _EveryMethod:
    """Calls of every method of a process group, on arrays of one length."""

    def __init__(self, pg: ah.c10d.ProcessGroup, length: int, is_async: bool) -> None:
        self._pg = pg
        self._length = length
        self._is_async = is_async
        self._n, self._me = pg.size(), pg.rank()
        self._ranks = range(self._n)
        self._root = self._n - 1
        self.wrong: list[str] = []

    def _check(self, name: str, work: Any, wanted: Sequence[Any]) -> None:
        work.wait(30)
        found = [np.asarray(one) for one in work.result()]
        if [one.tolist() for one in found] != [np.asarray(one).tolist() for one in wanted]:
            self.wrong.append(name)

    def _one(self, rank: int, by: int = 0) -> Array:
        return np.arange(self._length, dtype=np.float32) % 100 + 10 * rank + by

    def _two(self, by: int = 1) -> list[Array]:
        return [self._one(self._me), self._one(self._me, by)]

    def _total(self, by: int = 0) -> Array:
        return functools.reduce(np.add, [self._one(rank, by) for rank in self._ranks])

    def _empty(self, count: int) -> list[Array]:
        return [np.full(self._length, -1, np.float32) for _ in range(count)]

    def _options(self, kind: str, **more: Any) -> Any:
        return getattr(ah.c10d, kind + "Options")(asyncOp=self._is_async, **more)

    def reduce(self) -> None:
        pg, me, root, total = self._pg, self._me, self._root, self._total
        work = pg.allreduce(self._two(), self._options("Allreduce"))
        self._check("allreduce", work, [total() + total(1)] * 2)
        work = pg.allreduce([self._one(me)], self._options("Allreduce"))
        self._check("allreduce of one", work, [total()])
        work = pg.allreduce_coalesced(self._two(3), self._options("AllreduceCoalesced"))
        self._check("allreduce_coalesced", work, [total(), total(3)])
        work = pg.reduce([self._one(me)], self._options("Reduce", rootRank=root))
        self._check("reduce", work, [total() if me == root else self._one(me)])

    def reduce_scatter(self) -> None:
        pg, me, ranks, one, total = self._pg, self._me, self._ranks, self._one, self._total
        options = self._options("ReduceScatter")
        work = pg.reduce_scatter(self._empty(1), [[one(me, to) for to in ranks]], options)
        self._check("reduce_scatter", work, [total(me)])
        both = [np.concatenate([one(me, to + by) for to in ranks]) for by in (0, 1)]
        work = pg.reduce_scatter_tensor_coalesced(self._empty(2), both)
        self._check("reduce_scatter_tensor_coalesced", work, [total(me), total(me + 1)])
        shares = np.concatenate([one(me, to) for to in ranks])
        work = pg.reduce_scatter_single(self._empty(1)[0], shares, options)
        self._check("reduce_scatter_single", work, [total(me)])

    def gather(self) -> None:
        pg, n, ranks, root, one = self._pg, self._n, self._ranks, self._root, self._one
        mine, is_root, options = [one(self._me)], self._me == root, self._options("Allgather")
        everyone = [one(rank) for rank in ranks]
        self._check("allgather", pg.allgather([self._empty(n)], mine, options), everyone)
        pairs = [[one(rank, by) for by in (0, 1)] for rank in ranks]
        outs = [self._empty(2 * n), self._empty(2 * n)]
        work = pg.allgather(outs, self._two(), options)
        self._check("allgather of two", work, [[x for pair in pairs for x in pair]] * 2)
        work = pg.allgather_coalesced([self._empty(2) for _ in ranks], self._two())
        self._check("allgather_coalesced", work, pairs)
        whole = [np.zeros((n, self._length), np.float32) for _ in (0, 1)]
        work = pg.allgather_into_tensor_coalesced(whole, self._two())
        wanted = [[one(rank, by) for rank in ranks] for by in (0, 1)]
        self._check("allgather_into_tensor_coalesced", work, wanted)
        work = pg.all_gather_single(whole[0], mine[0], options)
        self._check("all_gather_single", work, [everyone])
        outs = [self._empty(n)] if is_root else []
        work = pg.gather(outs, mine, self._options("Gather", rootRank=root))
        self._check("gather", work, everyone if is_root else [])

    def move(self) -> None:
        pg, n, me, root = self._pg, self._n, self._me, self._root
        ranks, one = self._ranks, self._one
        options = self._options("Broadcast", rootRank=root, rootTensor=1)
        self._check("broadcast", pg.broadcast(self._two(), options), [one(root, 1)] * 2)
        ins = [[one(rank) for rank in ranks]] if me == root else []
        work = pg.scatter(self._empty(1), ins, self._options("Scatter", rootRank=root))
        self._check("scatter", work, [one(me)])
        shares, received = [one(me, to) for to in ranks], [one(rank, me) for rank in ranks]
        work = pg.alltoall(self._empty(n), shares, self._options("AllToAll"))
        self._check("alltoall", work, received)
        whole = np.zeros((n, self._length), np.float32)
        options = self._options("AllToAll")
        work = pg.all_to_all_single(whole, np.stack(shares), [], None, options)
        self._check("all_to_all_single", work, [received])
        sent = pg.send([one(me)], (me + 1) % n, 7)
        self._check("recv", pg.recv(self._empty(1), (me - 1) % n, 7), [one((me - 1) % n)])
        self._check("send", sent, [one(me)])
        pg.barrier(self._options("Barrier")).wait(30)
        pg.monitored_barrier()


def call_every_method() -> None:
    ah.init_process_group(timeout=30)
    pg = ah.process_group()
    wrong = []
    for length in (0, 1, 1000, 100_000):
        for is_async in (True, False):
            calls = _EveryMethod(pg, length, is_async)
            for group in (calls.reduce, calls.reduce_scatter, calls.gather, calls.move):
                group()
            wrong += calls.wrong
    tell("done", wrong=wrong)
    ah.destroy_process_group()


def wait_within_a_call() -> None:
    ah.init_process_group(timeout=30)
    pg, group = ah.process_group(), ah.default_group()
    pg.barrier().wait(30)  # by then there is memory in common
    x = np.array([group.rank, 1.0])
    opts = ah.c10d.AllreduceOptions(asyncOp=False, label="mine")
    before = group.sequence
    work = pg.allreduce([x], opts)
    assert x.tolist() == [1.0, 2.0], x  # before anybody has waited
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert (work.operation, work.sequence, work.label) == ("all_reduce", before + 1, "mine")
    assert str(work) == "all_reduce #2 of group 'world' (mine)", work
    assert work.result()[0] is x
    assert work.wait(0.01)
    future = work.get_future()
    assert future is work.get_future()
    assert future.done()
    assert future.value()[0] is x
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
