"""Threads of one rank with calls on a shared group."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell, until


def race(with_labels: bool) -> None:
    """Call from two threads at once, a thousand times each."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    right: list[float] = []
    wrong: list[float] = []
    refused: list[str] = []

    def use(at: int) -> None:
        for _ in range(1000):
            x = np.full(3, (me + 1.0) * 1000**at)
            try:
                ah.all_reduce(x, label=f"thread {at}" if with_labels else None)
            except (ah.CollectiveMismatch, ah.GroupAborted) as error:
                refused.append(str(error))
            else:
                (right if (x == n * (n + 1) / 2 * 1000**at).all() else wrong).append(x[0])

    ah.barrier()
    tell("ready")
    hear()  # an overlap here ends the barrier of a rank that has not heard of its end yet
    threads = [threading.Thread(target=use, args=[at], name=f"user {at}") for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("raced", right=len(right), wrong=wrong, refused=len(refused), said=refused[:1])
    hear()  # a rank that leaves early has other ranks' last calls refused for that
    ah.destroy_process_group()


Call = Callable[[npt.NDArray[np.float64]], Any]

CALLS: dict[str, Call] = {
    "all_reduce": lambda y: ah.all_reduce(y),
    "all_reduce, async": lambda y: ah.all_reduce(y, async_op=True),
    "all_gather, async": lambda y: ah.all_gather([y, y.copy()], y.copy(), async_op=True),
    "all_reduce_coalesced": lambda y: ah.all_reduce_coalesced([y]),
    "all_gather_object": lambda y: ah.all_gather_object([None] * ah.get_world_size(), 1),
    "barrier": lambda y: ah.barrier(),
    "a prepared call": lambda y: ah.all_reduce_init(y).start(),
    "monitored_barrier": lambda y: ah.monitored_barrier(timeout=5),
}
"""Calls that are refused beside another one."""


def call_beside_another(other: str) -> None:
    """Make a call on rank 0 during a call on a second thread of rank 0."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()
    x, y = np.ones(3), np.ones(3)
    second = ah.new_group()

    def call() -> None:
        until(lambda: ah.default_group().sequence == 2)
        tell("other", **failure(lambda: CALLS[other](y)))

    if me == 0:
        thread = threading.Thread(target=call, name="other")
        thread.start()
        said = failure(lambda: ah.all_reduce(x))
        thread.join()
    else:
        hear()
        said = failure(lambda: ah.all_reduce(x))
    tell("said", x=x.tolist(), **said)
    tell("next", **failure(ah.barrier))
    ah.all_reduce(y, group=second)
    tell("after", y=y.tolist())
    ah.destroy_process_group()


def call_in_turn() -> None:
    """Call from threads in sequence, and beside threads waiting for works."""
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    right: list[bool] = []
    turns: queue.Queue[int | None] = queue.Queue()

    def note(x: npt.NDArray[np.float64], wanted: float) -> None:
        right.append(bool((x == wanted).all()))

    def one_call(at: int) -> None:
        x = np.full(3, at + 0.0)
        ah.all_reduce(x)
        note(x, n * at)

    for at in range(10):  # one thread after the other
        thread = threading.Thread(target=one_call, args=[at])
        thread.start()
        thread.join()
        one_call(at)

    def follower() -> None:  # a thread that stays, and the main thread, as they tell each other
        while (at := turns.get()) is not None:
            one_call(at)
            turns.task_done()

    thread = threading.Thread(target=follower)
    thread.start()
    for at in range(200):
        if at % 2:
            turns.put(at)
            turns.join()
        else:
            one_call(at)
    turns.put(None)
    thread.join()

    x, y = np.full(3, 1.0), np.full(3, 2.0)  # of each rank another thread waits meanwhile
    work = ah.all_reduce(x, async_op=True)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    ah.all_reduce(y)
    waiting.join()
    note(x, n)
    note(y, 2 * n)
    tell("done", right=right)
    ah.destroy_process_group()


def call_from_tasks() -> None:
    async def main() -> list[bool]:
        async with ah.aio.connect(timeout=30) as world:

            async def use(at: int) -> bool:
                x = np.full(3, at + 0.0)
                await world.all_reduce(x)
                return bool((x == at * world.size).all())

            return await asyncio.gather(*(use(at) for at in range(100)))

    tell("done", right=asyncio.run(main()))
