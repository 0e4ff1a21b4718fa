"""Types of plain calls: mypy reads them, and so does whoever runs this.

With `async_op=True` a call is a `Work`, else None, and nothing has to be asserted; only a group
that this rank may not be in leaves both open.
"""

from typing import assert_type

import numpy as np

import allhands as ah


def check_types(rank: int) -> None:
    x, peer = np.ones(2), 1 - rank
    assert_type(ah.all_reduce(x), None)
    assert_type(ah.all_reduce(x, "max", async_op=False), None)
    assert_type(ah.all_reduce(x, async_op=True), ah.Work).wait()
    assert_type(ah.all_reduce(x, group=ah.default_group(), async_op=True), ah.Work).wait()
    assert_type(ah.all_reduce(x, group=ah.group.WORLD, async_op=True), ah.Work).wait()
    assert_type(ah.broadcast(x, group_src=1, async_op=True, timeout=5), ah.Work).wait()
    assert_type(ah.barrier(async_op=True), ah.Work).wait()
    assert_type(ah.scan(x, ah.ReduceOp.MAX, async_op=True, label="scan"), ah.Work).wait()
    assert_type(ah.all_reduce_coalesced([x], async_op=True), ah.Work).wait()
    assert_type(ah.broadcast_coalesced([x], 0, async_op=True), ah.Work).wait()
    ends = [
        assert_type(ah.irecv(x, peer), ah.Work),
        assert_type(ah.isend(np.ones(2), peer), ah.Work),
    ]
    for end in ends:
        end.wait()
    parts = ah.all_gather_v(x, async_op=True).result()
    assert [one.shape for one in parts] == [(2,), (2,)]
    maybe = assert_type(ah.all_reduce(x, group=ah.new_group([0]), async_op=True), ah.Work | None)
    assert (maybe is None) == (rank == 1)
    assert_type(_choose(x, True), ah.Work | None)


def _choose(x: "np.ndarray[tuple[int], np.dtype[np.float64]]", later: bool) -> ah.Work | None:
    return ah.all_reduce(x, async_op=later)
