"""Calls over shared memory while a rank dies, stops, lags, leaves or calls something else."""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell, until
from support.arrays.collective_cases import (
    Case,
    case,
)

MAKERS: dict[str, Callable[..., npt.NDArray[Any]]] = {"np.empty": np.empty, "shared": ah.empty}
"""What makes arrays, by name: in memory of the process, or in memory that ranks share."""


def variant() -> str:
    """Return the variant of the last call over shared memory."""
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]


def tell_when_called() -> None:
    """Tell "called" when the next call of this rank is under way."""
    group = ah.default_group()
    before = group.sequence

    def watch() -> None:
        until(lambda: group.sequence > before)
        tell("called")

    threading.Thread(target=watch, daemon=True).start()


def outcome(one: Case, **more: Any) -> dict[str, Any]:
    """Make a call; return the error, or the differences in the result."""
    told = failure(lambda: one.run(ah, **more))
    return {**told, "wrong": "" if told["error"] else one.wrong()}


def repeat_until_killed(name: str, length: int, make: str) -> None:
    ah.init_process_group(timeout=40)
    n = ah.get_world_size()
    me = ah.get_rank()
    ah.all_reduce(np.ones(1))
    one = case(name, me, n, length, make=MAKERS[make])
    one.run(ah)
    with open("/proc/self/maps") as file:
        maps = [line.split(maxsplit=5) for line in file]
    files = {one[5].strip() for one in maps if "/dev/shm" in one[-1] or "memfd" in one[-1]}
    tell("running", pid=os.getpid(), variant=variant(), files=list(files))

    def forever():
        while True:
            one.run(ah)

    tell("failed", **failure(forever))
    tell("next", **failure(ah.barrier))
    ah.destroy_process_group()


def recover_from_a_stop(name: str, length: int, make: str) -> None:
    ah.init_process_group(timeout=40)
    n = ah.get_world_size()
    me = ah.get_rank()
    ah.all_reduce(np.ones(1))
    store, over, step = ah.store(), threading.Event(), 0
    last: int | None = None
    errors: list[str] = []

    def wait_for_the_end() -> None:
        hear()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while last is None or step < last:
        one = case(name, me, n, length, seed=step, make=MAKERS[make])
        said = outcome(one, timeout=30 if step < 3 else 0.5)
        assert not said["wrong"], (step, said)
        if 1 in said["ranks"] and not errors:
            tell("timeout", **said)
            errors.append(said["error"])
        step += 1
        if me == 0 and step == 3:
            tell("busy")
        if me == 0 and last is None and over.is_set():
            last = step + 50  # further than any rank is ahead of another
            store.set("last", str(last))
        elif last is None and store.check(["last"]):
            last = int(store.get("last"))
    tell("recovered", latest=said["error"], text=said["text"])
    ah.destroy_process_group()


def call_late(length: int, make: str) -> None:
    ah.init_process_group(timeout=40)
    n = ah.get_world_size()
    me = ah.get_rank()
    delays = random.Random(1)
    errors = []
    for step in range(20):
        delay = delays.choice([0, 0.02, 0.03, 0.04, 0.05, 0.08]) * 2 * delays.random()
        one = case("all_reduce", me, n, length, seed=step, make=MAKERS[make])
        if me == 0:
            time.sleep(delay)
        # Late ranks have time: that they are told so at once is why this test does not hang.
        said = outcome(one, timeout=30 if me == 0 else 0.05)
        assert not said["wrong"], said
        errors.append((said["error"], "gave it up" in said["text"]))
        one = case("all_reduce", me, n, length, seed=step + 1, make=MAKERS[make])
        said = outcome(one)
        assert not said["error"], said
        assert not said["wrong"], said
    tell("done", errors=errors)
    ah.destroy_process_group()


def keep_a_short_deadline() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    x = np.ones(3)
    if me == 0:
        tell("early", **failure(lambda: ah.all_reduce(x, timeout=0.01)))
        work = ah.all_reduce(x, async_op=True, timeout=0.01)
        tell("later", **failure(work.wait))
        tell("waiting")
    hear()
    if me == 1:
        tell("late", **failure(lambda: ah.all_reduce(x)))
        tell("later", **failure(lambda: ah.all_reduce(x)))
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist())
    ah.destroy_process_group()


def call_differently(pairs: list[tuple[str, str]], async_op: bool) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    x, y, big = np.full(6, 7.0), np.full(6, 7.0), np.full(120_000, 7.0)
    for others, mine in pairs:
        call = mine if me == 1 else others
        try:
            if async_op:
                eval(call[:-1] + (", " if call[-2] != "(" else "") + "async_op=True)").wait()  # noqa: S307 our own
            else:
                eval(call)  # noqa: S307 our own
            tell("ended", call=call)
        except ah.CollectiveMismatch as error:
            table = {str(rank): said for rank, said in error.table.items()}
            kept = all((one == 7.0).all() for one in (x, y, big))
            tell("refused", call=call, table=table, kept=kept)
        z = np.ones(3)
        ah.all_reduce(z)
        tell("next", z=z.tolist())
    ah.destroy_process_group()


def go_on_from_another_call(before: str, first: str, then: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    x = np.zeros(4)
    eval(before)  # noqa: S307  # from now on it waits for nobody
    ah.barrier()
    x = np.full(4, float(me))
    outs = [np.zeros(4) for _ in range(3)] if me == 0 else None
    if me == 1:
        eval(first)  # noqa: S307 our own
        tell("ended")
        hear()
    else:
        hear()
        try:
            eval(then)  # noqa: S307 our own
        except ah.CollectiveMismatch as error:
            kept = bool((x == me).all() and not (outs and any(map(np.any, outs))))
            table = {str(rank): said for rank, said in error.table.items()}
            tell("refused", table=table, kept=kept)
    z = np.ones(3)
    ah.all_reduce(z)
    tell("next", z=z.tolist())
    ah.destroy_process_group()


def interrupt_a_call(length: int) -> None:
    ah.init_process_group(timeout=40)
    n = ah.get_world_size()
    me = ah.get_rank()
    ah.barrier()
    one = case("all_reduce", me, n, length)
    if me == 0:
        try:
            tell_when_called()
            one.run(ah)
        except KeyboardInterrupt:
            tell("interrupted")
    hear()
    if me:
        tell("told", **failure(lambda: one.run(ah)))
    one = case("all_reduce", me, n, length)
    tell("next", **outcome(one))
    ah.destroy_process_group()


def interrupt_a_queued_call() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()
    x, y = np.ones(3), np.ones(3)
    call = ah.all_reduce_init(x)
    main = threading.get_ident()

    def reduce():
        ah.all_reduce(y)

    def interrupt():
        # Its own number it takes only when the one that was started has ended.
        until(lambda: sys._current_frames()[main].f_code is reduce.__code__)
        os.kill(os.getpid(), signal.SIGINT)

    if me == 0:
        call.start()
        threading.Thread(target=interrupt).start()
        try:
            reduce()
        except KeyboardInterrupt:
            tell("interrupted")
        said = failure(call.wait)
        tell("waited", **said)
    hear()
    ah.destroy_process_group()


def cancel_calls() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()
    if me == 0:
        works = [ah.all_reduce(np.ones(100_000), async_op=True) for _ in range(24)]
        for work in works[22::-1]:
            work.cancel()
            tell("ended", **failure(work.wait))
        hear()
        tell("last", **failure(works[23].wait), sum=np.asarray(works[23].result())[-3:].tolist())
    else:
        hear()
        for _ in range(23):
            tell("ended", **failure(lambda: ah.all_reduce(np.ones(100_000))))
        x = np.ones(100_000)
        tell("last", **failure(lambda: ah.all_reduce(x)), sum=x[-3:].tolist())
    x = np.ones(3)
    ah.all_reduce(x)
    tell("next", sum=x.tolist())
    ah.destroy_process_group()


def cancel_an_await() -> None:
    async def main():
        async with ah.aio.connect(timeout=40) as world:
            x = np.ones(1_000_000)
            if world.rank == 0:
                waiting = asyncio.create_task(world.all_reduce(x))
                await asyncio.sleep(0)
                waiting.cancel()
                try:
                    await waiting
                except asyncio.CancelledError:
                    x[:] = 5  # it is the caller's again
                tell("cancelled", still=bool((x == 5).all()))
            await asyncio.to_thread(hear)
            if world.rank == 1:
                try:
                    await world.all_reduce(x)
                except ah.GroupAborted as error:
                    tell("told", text=str(error))
            x = np.ones(100_000)
            await world.all_reduce(x)
            tell("next", right=bool((x == 2).all()))

    asyncio.run(main())


def leave_after_calls(raises: bool) -> None:
    ah.init_process_group(timeout=40)
    n = ah.get_world_size()
    me = ah.get_rank()

    def calls():
        yield case("broadcast", me, n, 3, root=0)
        yield case("gather", me, n, 2_000, root=2)
        yield case("scatter", me, n, 300, root=0)

    for one in calls():  # all know that all make such calls: from now on roots run ahead
        one.run(ah)
    if me == 2:
        hear()
    if me == 1:
        tell("gone first")
    steps = [outcome(one) for one in calls()] if me != 1 else []
    if me == 1:
        for one in calls():
            one.run(ah)
    if me != 0:
        tell("steps", errors=[one["error"] for one in steps], wrong=[one["wrong"] for one in steps])
        told = failure(lambda: ah.all_reduce(np.ones(3)))
        tell("gone", **told)
        hear()
        os._exit(0)
    tell("leaving")
    if raises:
        raise LookupError("enough")
    ah.destroy_process_group()


def close_a_group_after_calls() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    part = ah.new_group([0, 1])
    for _ in range(2):  # all know that all make such calls: from now on the root runs ahead
        ah.broadcast(np.ones(8), src=0, group=part)
    if me == 1:
        hear()
        tell("gone", **failure(lambda: ah.all_reduce(np.ones(3))))
    x = np.full(8, 7.0 + me)
    tell("ended", **failure(lambda: ah.broadcast(x, src=0, group=part)))
    if me == 1:
        tell("got", right=bool((x == 7).all()))
        tell("next", **failure(lambda: ah.broadcast(x, src=0, group=part)))
    ah.destroy_process_group(part)
    ah.destroy_process_group()


def leave_others_in_a_call(length: int) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    x = np.ones(length)
    ah.all_reduce(x)
    if me == 1:
        hear()
        ah.destroy_process_group()
        sys.exit()
    tell_when_called()
    tell("told", **failure(lambda: ah.all_reduce(x)))
    ah.destroy_process_group()
