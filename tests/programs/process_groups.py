"""Process groups as c10d has them, over memory and over links."""

import numpy as np

import allhands as ah
from programs.protocol import tell


def call_every_method() -> None:
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
            check(
                "broadcast",
                pg.broadcast([one(me), one(me, 1)], opts("Broadcast", rootRank=root, rootTensor=1)),
                [one(root, 1)] * 2,
            )
            check("allreduce", pg.allreduce(several, opts("Allreduce")), [total() + total(1)] * 2)
            check("allreduce of one", pg.allreduce([one(me)], opts("Allreduce")), [total()])
            check(
                "allreduce_coalesced",
                pg.allreduce_coalesced([one(me), one(me, 3)], opts("AllreduceCoalesced")),
                [total(), total(3)],
            )
            check(
                "reduce",
                pg.reduce([one(me)], opts("Reduce", rootRank=root)),
                [total() if me == root else one(me)],
            )
            check(
                "allgather",
                pg.allgather([empty(n)], [one(me)], opts("Allgather")),
                [one(rank) for rank in ranks],
            )
            check(
                "allgather of two",
                pg.allgather(
                    [empty(2 * n), empty(2 * n)], [one(me), one(me, 1)], opts("Allgather")
                ),
                [[one(rank, by) for rank in ranks for by in (0, 1)]] * 2,
            )
            check(
                "allgather_coalesced",
                pg.allgather_coalesced([empty(2) for _ in ranks], [one(me), one(me, 1)]),
                [[one(rank, by) for by in (0, 1)] for rank in ranks],
            )
            check(
                "allgather_into_tensor_coalesced",
                pg.allgather_into_tensor_coalesced(
                    [np.zeros((n, length), np.float32) for _ in (0, 1)], [one(me), one(me, 1)]
                ),
                [[one(rank, by) for rank in ranks] for by in (0, 1)],
            )
            check(
                "gather",
                pg.gather(
                    [empty(n)] if me == root else [], [one(me)], opts("Gather", rootRank=root)
                ),
                [one(rank) for rank in ranks] if me == root else [],
            )
            check(
                "scatter",
                pg.scatter(
                    empty(1),
                    [[one(rank) for rank in ranks]] if me == root else [],
                    opts("Scatter", rootRank=root),
                ),
                [one(me)],
            )
            check(
                "reduce_scatter",
                pg.reduce_scatter(empty(1), [[one(me, to) for to in ranks]], opts("ReduceScatter")),
                [total(me)],
            )
            check(
                "reduce_scatter_tensor_coalesced",
                pg.reduce_scatter_tensor_coalesced(
                    empty(2), [np.concatenate([one(me, to + by) for to in ranks]) for by in (0, 1)]
                ),
                [total(me), total(me + 1)],
            )
            check(
                "alltoall",
                pg.alltoall(empty(n), [one(me, to) for to in ranks], opts("AllToAll")),
                [one(rank, me) for rank in ranks],
            )
            whole = np.zeros((n, length), np.float32)
            check(
                "all_gather_single",
                pg.all_gather_single(whole, one(me), opts("Allgather")),
                [[one(rank) for rank in ranks]],
            )
            shares = np.concatenate([one(me, to) for to in ranks])
            check(
                "reduce_scatter_single",
                pg.reduce_scatter_single(empty(1)[0], shares, opts("ReduceScatter")),
                [total(me)],
            )
            check(
                "all_to_all_single",
                pg.all_to_all_single(whole, shares.reshape(n, -1), [], None, opts("AllToAll")),
                [[one(rank, me) for rank in ranks]],
            )
            sent = pg.send([one(me)], (me + 1) % n, 7)
            check("recv", pg.recv(empty(1), (me - 1) % n, 7), [one((me - 1) % n)])
            check("send", sent, [one(me)])
            pg.barrier(opts("Barrier")).wait(30)
            pg.monitored_barrier()
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
