"""Composite calls: routes, and failures between the steps."""

import asyncio
import threading
from typing import Any

import numpy as np

import allhands as ah
from allhands.collectives import scans
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


def be_held_up_between_steps(timeout: float, goes_on: bool = False) -> None:
    ah.init_process_group(timeout=timeout)
    me = ah.get_rank()
    ah.scan(np.ones(5000))
    honest, waited = scans._combine, []

    def combine(*arguments):
        if me == 1 and not waited:
            waited.append(True)
            tell("between")
            hear()
        return honest(*arguments)

    scans._combine = combine
    x = np.full(5000, float(me))
    said = failure(lambda: ah.scan(x))
    scans._combine = honest
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
            else:
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
    me = ah.get_rank()
    x, out = np.full(4, float(me)), np.zeros((2, 4))
    said = failure(lambda: ah.scan(x) if me == 0 else ah.all_gather_into_tensor(out, x))
    fine = bool((x == me).all() and not out.any())
    ah.scan(x)
    tell("done", fine=fine, sum=float(x[0]), **said)
    ah.destroy_process_group()


def cancel_between_steps() -> None:
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    ah.scan(np.ones(5000))
    gate, honest = threading.Event(), scans._combine

    def combine(*arguments):
        if me == 1 and not gate.is_set():
            tell("between")
            gate.wait()
        return honest(*arguments)

    scans._combine = combine
    x = np.full(5000, float(me))
    work = ah.scan(x, async_op=True)
    if me == 1:
        hear()
        work.cancel()
        hear()
        gate.set()
    said = failure(work.wait)
    scans._combine = honest
    tell("ended", same=bool((x == me).all()), **said)
    ah.scan(x)
    tell("sum", sum=float(x[0]))
    ah.destroy_process_group()
