"""Composite calls: routes, and failures between the steps."""

import asyncio
import threading
from typing import Any

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell


def mix_with_other_calls(verify: bool, on_failure: str) -> None:
    ah.init_process_group(timeout=20, verify=verify, on_failure=on_failure)
    n, me = ah.get_world_size(), ah.get_rank()
    wrong: list[Any] = []
    for length in (0, 3, 3000, 200_000):
        x = np.arange(length) % 7 + me
        ah.scan(x)
        want = sum(np.arange(length) % 7 + one for one in range(me + 1))
        wrong += [f"scan {length}"] if (x != want).any() else []
        found = ah.all_gather_v(np.full(length + me, me, np.float32))
        fine = [(one == at).all() and len(one) == length + at for at, one in enumerate(found)]
        wrong += [] if all(fine) else [f"all_gather_v {length}"]
        y = np.full(4, float(me))
        ah.all_reduce(y)
        wrong += [f"all_reduce {length}"] if y[0] != n * (n - 1) / 2 else []
    works = []
    for at in range(50):
        works.append(ah.all_gather_v(np.full(at + me, at), async_op=True))
        x = np.full(3, at)
        works.append(ah.all_reduce(x, async_op=True))
        works.append(ah.scan(np.full(5000, at), async_op=True))
    for at in range(50):
        parts, total, prefix = (work.result() for work in works[3 * at : 3 * at + 3])
        fine = [(one == at).all() and len(one) == at + rank for rank, one in enumerate(parts)]
        wrong += (
            [] if all(fine) and total[0] == n * at and (prefix == at * (me + 1)).all() else [at]
        )
    values = [b"x" * 3_000_000] if me == 1 else [None]
    ah.broadcast_object_list(values, 1)
    wrong += [] if values == [b"x" * 3_000_000] else ["objects"]
    tell("done", wrong=wrong, explained=ah.scan(np.zeros(5000), async_op=True).result() is not None)
    ah.destroy_process_group()


def exchange_at_once(loops: int) -> None:
    """Take turns of plain and composite calls, of which none goes through the queue."""
    ah.init_process_group(timeout=20)
    n, me = ah.get_world_size(), ah.get_rank()
    ah.barrier()
    wrong: list[Any] = []
    for at in range(loops):
        size = (0, 5, 3000, 60_000)[at % 4]
        value = {"rank": me, "array": np.arange(size) + me, "rows": [np.ones((2, size), ">f4")] * 2}
        found: list[Any] = [None] * n
        ah.all_gather_object(found, value)
        for rank, one in enumerate(found):
            fine = one["rank"] == rank and (one["array"] == np.arange(size) + rank).all()
            fine = fine and [row.shape for row in one["rows"]] == [(2, size)] * 2
            wrong += [] if fine else [("object", at, rank)]
            one["array"][...] = -1  # each is the caller's own
        wrong += [] if (value["array"] == np.arange(size) + me).all() else [("own", at)]
        root = at % n
        values = [value, at] if me == root else [None, None]
        ah.broadcast_object_list(values, root)
        wrong += [] if (values[0]["rank"], values[1]) == (root, at) else [("broadcast", at)]
        objects: list[Any] | None = [None] * n if me == root else None
        ah.gather_object((me, at), objects, root)
        fine = objects == ([(rank, at) for rank in range(n)] if me == root else None)
        ah.scatter_object_list(mine := [None, "kept"], [*range(at, at + n)], root)
        fine = fine and mine == [at + me, "kept"]
        wrong += [] if fine else [("rooted", at, objects, mine)]
        gathered = ah.gather_v(np.full((me, 2), me, "M8[s]"), root)
        if me == root:
            shapes = [one.shape for one in gathered]
            wrong += [] if shapes == [(rank, 2) for rank in range(n)] else [("gather", shapes)]
        x = np.full(size, me + 1.0, np.float16)
        ah.exscan(x, ah.ReduceOp.MAX)
        wrong += [] if (x == max(me, 1)).all() else [("exscan", at)]
    refused = failure(lambda: ah.reduce_scatter_v([np.ones(3 + (me == 1))] * n))
    records = [row for row in ah.flight_recorder() if row.operation == "all_gather_object"]
    queued = [row.operation for row in ah.flight_recorder() if "queue" in row.how]
    tell(
        "done",
        wrong=wrong,
        refused=refused["error"],
        recorded=len(records),
        signature=records[-1].signature,
        how=records[-1].how,
        queued=queued,
    )
    ah.destroy_process_group()


def send_objects_ahead() -> None:
    """Send lists from rank 0, which does not wait for the others once all have made such a call."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    for at in range(20):
        values = [at, "text"] if me == 0 else [None, None]
        if at == 10 and me:
            hear()
        ah.broadcast_object_list(values, 0)
        assert values == [at, "text"], values
    if me == 0:
        tell("ahead")
        hear()
    large = [np.arange(50_000)] if me == 0 else [None]
    ah.broadcast_object_list(large, 0)
    assert (large[0] == np.arange(50_000)).all()
    ah.destroy_process_group()


def coalesce_calls() -> None:
    """Take blocks that are one call of the core, and blocks that are not."""
    ah.init_process_group(timeout=20)
    n, me = ah.get_world_size(), ah.get_rank()
    ah.barrier()
    wrong: list[Any] = []
    for loop in range(4):
        arrays = [np.full((2, 9 * at), me + at, np.float32) for at in range(60)]
        with ah.coalescing() as block:
            for x in arrays:
                ah.all_reduce(x)
        total = n * (n - 1) // 2
        fine = all((x == total + n * at).all() for at, x in enumerate(arrays))
        results = [work.result() is x for work, x in zip(block.works, arrays, strict=True)]
        wrong += [] if fine and all(results) else [("block", loop)]
        with ah.coalescing(async_ops=True) as block:
            for x in arrays:
                ah.all_reduce(x, ah.ReduceOp.MAX)
        block.wait()
        wrong += [] if len(block.works) == 60 else [("async", loop)]
        # The same array twice, another dtype, other calls, one with a label: in their order.
        x, y, z = np.ones(4), np.full(5, 2), np.full(3, float(me))
        with ah.coalescing() as block:
            ah.all_reduce(x)
            ah.all_reduce(x)
            ah.all_reduce(y)
            ah.all_reduce(x, label="named")
            ah.scan(y)
            ah.broadcast(z, n - 1)
        wrong += [] if (x == n**3).all() else [("twice", x.tolist())]
        wrong += [] if (y == 2 * n * (me + 1)).all() else [("dtype", y.tolist())]
        wrong += [] if (z == n - 1).all() and len(block.works) == 6 else [("mixed", z.tolist())]
        w = np.ones(6)
        with ah.coalescing():
            ah.all_reduce(w)
            ah.all_reduce(w[:3])
        wrong += [] if w.tolist() == [n * n] * 3 + [n] * 3 else [("overlap", w.tolist())]
        with ah.coalescing():
            ah.all_reduce(z)
    x = [np.ones(3), np.ones(4 if me == 1 else 5)]

    def differ() -> None:
        with ah.coalescing():
            ah.all_reduce(x[0])
            ah.all_reduce(x[1])

    said = failure(differ)
    names = [row.operation for row in ah.flight_recorder()]
    tell("done", wrong=wrong, intact_arrays=[float(one[0]) for one in x], names=names, **said)
    ah.destroy_process_group()


def mismatch_a_composite() -> None:
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    ah.barrier()
    found: list[Any] = [None, None]
    x = np.ones(4)
    said = failure(lambda: ah.all_gather_object(found, me) if me == 0 else ah.all_reduce(x))
    ah.all_gather_object(found, me)
    tell("done", found=found, **said)
    ah.destroy_process_group()


def miss_a_composite(timeout: float) -> None:
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    ah.barrier()
    tell("ready")
    if me == 1:
        hear()
    said = failure(lambda: ah.all_gather_v(np.full(me, 1.0), timeout=timeout, label="late"))
    tell("ended", **said)
    found = ah.all_gather_v(np.full(me, 1.0))
    tell("lengths", lengths=[len(one) for one in found])
    ah.destroy_process_group()


def add(one, other):
    return one + other


def be_held_up_between_steps(timeout: float, goes_on: bool = False) -> None:
    ah.init_process_group(timeout=timeout)
    me = ah.get_rank()
    waited: list[bool] = []

    def add_slowly(one, other):
        if me == 1 and not waited:
            waited.append(True)
            tell("between")
            hear()
        return one + other

    ah.all_reduce(np.ones(5000), ah.ReduceOp.user(add))
    x = np.full(5000, float(me))
    said = failure(lambda: ah.all_reduce(x, ah.ReduceOp.user(add_slowly)))
    tell("ended", same=bool((x == me).all()), **said)
    if goes_on:
        ah.all_reduce(x)
        tell("sum", sum=float(x[0]))
        ah.destroy_process_group()


def call_from_asyncio() -> None:
    async def main():
        async with ah.aio.connect(timeout=20) as world:
            me = world.rank
            found = await world.all_gather_v(np.full(me, me))
            objects = await world.all_gather_object({"rank": me})
            x = await world.scan(np.ones(3))
            one = await world.scatter_object([b"a", b"b", b"c"] if me == 0 else None)
            if me == 0:
                waiting = asyncio.ensure_future(world.scan(np.ones(9000)))
                await asyncio.sleep(0)
                waiting.cancel()
                try:
                    await waiting
                except asyncio.CancelledError:
                    ended = "cancelled"
                tell("cancelled")
            else:
                await asyncio.to_thread(hear)  # else it may have all that it needs before
                try:
                    await world.scan(np.ones(9000))
                except ah.GroupAborted as error:
                    ended = error.reason
            total = await world.all_reduce(np.ones(1))
            tell(
                "done",
                lengths=[len(one) for one in found],
                objects=objects,
                x=x[0],
                one=one.decode(),
                ended=ended,
                total=total[0],
            )

    asyncio.run(main())


def call_a_step_elsewhere() -> None:
    ah.init_process_group(timeout=20)
    me, op = ah.get_rank(), ah.ReduceOp.user(add)
    x, out = np.full(4, float(me)), np.zeros(4)
    said = failure(lambda: ah.all_reduce(x, op) if me == 0 else ah.all_to_all_single(out, x))
    fine = bool((x == me).all() and not out.any())
    ah.all_reduce(x, op)
    tell("done", fine=fine, sum=float(x[0]), **said)
    ah.destroy_process_group()


def cancel_between_steps() -> None:
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    gate = threading.Event()

    def add_slowly(one, other):
        if me == 1 and not gate.is_set():
            tell("between")
            gate.wait()
        return one + other

    ah.all_reduce(np.ones(5000), ah.ReduceOp.user(add))
    x = np.full(5000, float(me))
    work = ah.all_reduce(x, ah.ReduceOp.user(add_slowly), async_op=True)
    if me == 1:
        hear()
        work.cancel()
        hear()
        gate.set()
    said = failure(work.wait)
    tell("ended", same=bool((x == me).all()), **said)
    ah.scan(x)
    tell("sum", sum=float(x[0]))
    ah.destroy_process_group()
