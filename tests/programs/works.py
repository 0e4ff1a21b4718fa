"""Works, futures and timeouts of ranks, on every route."""

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import allhands as ah
from allhands.runtime.helper_threads import HelperThreads
from programs.protocol import failure, tell, until


def let_go_of_arrays() -> None:
    """Drop arrays whose calls have ended: no collection of garbage is needed to free them."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    gc.disable()

    def exchange(x: Any) -> None:
        works = [ah.isend(x, 1 - me), ah.irecv(np.empty_like(x), 1 - me)]
        for work in works:
            work.wait()

    calls: dict[str, Callable[[Any], object]] = {
        "plain": ah.all_reduce,
        "begun": lambda x: ah.all_reduce(x, async_op=True).wait(),
        "all_gather_v": ah.all_gather_v,
        "scan": ah.scan,
        "object": lambda x: ah.broadcast_object_list([x if me == 0 else None], 0),
        "messages": exchange,
    }
    kept = []
    for name, call in calls.items():
        for count in (3, 1 << 17, 1 << 20):
            x = np.ones(count)
            array = weakref.ref(x)
            call(x)
            del x
            try:
                until(partial(_is_gone, array))
            except AssertionError:
                kept.append((name, count))
    tell("done", kept=kept)
    ah.destroy_process_group()


def _is_gone(array: "weakref.ref[Any]") -> bool:
    return array() is None


def call_from_threads_and_a_loop() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    groups = [ah.new_group(range(n)) for _ in range(8)]
    wrong: list[Any] = []

    def own(number):
        arrays = [np.full(50, 1000 * number + at + me) for at in range(60)]
        works = [ah.all_reduce(x, group=groups[number], async_op=True) for x in arrays]
        for at, (x, work) in enumerate(zip(arrays, works, strict=True)):
            work.wait()
            if not (x == n * (1000 * number + at) + n * (n - 1) // 2).all():
                wrong.append((number, at))

    def shared(number):
        # On one group of all, where threads begin like calls: which is paired with which says
        # the order of each rank, and that does not matter. None is in a call of its own.
        for at in range(30):
            works = []
            for _ in range(2):
                x = np.full(5, me + 1)
                works.append((x, ah.all_reduce(x, async_op=True)))
            y = np.full(5, me + 1)
            ah.all_reduce(y, async_op=True).wait()
            for x, work in works:
                work.wait()
                if not (x == n * (n + 1) // 2).all() or not (y == n * (n + 1) // 2).all():
                    wrong.append((number, at, "shared"))

    async def loop():
        arrays = [np.full(5, me + 1) for _ in range(60)]
        works = [ah.all_reduce(x, async_op=True) for x in arrays]
        await asyncio.gather(*(asyncio.wrap_future(work.get_future()) for work in works))
        wrong.extend("loop" for x in arrays if not (x == n * (n + 1) // 2).all())

    with ThreadPoolExecutor(17) as pool:
        running = [pool.submit(own, number) for number in range(8)]
        running += [pool.submit(shared, number) for number in range(8)]
        running.append(pool.submit(lambda: asyncio.run(loop())))
        for one in running:
            one.result()
    tell("done", wrong=wrong, calls=ah.default_group().sequence)
    ah.destroy_process_group()


def call_within_then() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()

    def go_on(done):
        x = done.value()
        ah.all_reduce(x)
        return x

    x = np.ones(3)
    last = ah.all_reduce(x, async_op=True).get_future()
    for _ in range(4):
        last = last.then(go_on)
    got = last.wait(20).tolist()

    # Also of messages, which other threads carry on.
    y = np.zeros(3)
    ah.isend(x, (me + 1) % n)
    work = ah.irecv(y, (me - 1) % n)
    after = work.get_future().then(lambda done: (ah.barrier(), np.sum(np.asarray(done.value())))[1])
    tell("done", got=got, after=float(after.wait(20)))
    ah.destroy_process_group()


def time_out_in_every_way() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    x = np.ones(3)
    again = ah.all_reduce_init(x)
    again.start()
    again.wait()
    ah.all_reduce(x)
    ah.send(x, 1) if me == 0 else ah.recv(x, 0)
    ah.barrier()
    late = []
    if me == 0:
        ah.default_group().timeout = 0.2
        calls = {
            "all_reduce": lambda: ah.all_reduce(x),
            "async": lambda: ah.all_reduce(x, async_op=True).wait(),
            "persistent": lambda: (again.start(), again.wait()),
            "recv": lambda: ah.recv(x, 1, tag=3),
            "irecv": lambda: ah.irecv(x, 1, tag=3).wait(),
        }
        for name, call in calls.items():
            told = failure(call)
            late.append([name, told["error"], told["seconds"]])
        ah.set_timeout(30)
        ah.send(x, 1)
    else:
        ah.recv(x, 0)
        for _ in range(3):
            with contextlib.suppress(ah.CollectiveTimeout):
                ah.all_reduce(x)
    y = np.ones(2)
    ah.all_reduce(y)
    tell("done", late=late, sum=y.tolist())
    ah.destroy_process_group()


def send_and_leave() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    if me == 0:
        for number in range(30):
            ah.isend(np.full(number * 5_000, number), 1)
        ah.destroy_process_group()
        tell("done", wrong=[])
    else:
        wrong = []
        for number in range(30):
            y = np.zeros(number * 5_000, np.int64)
            ah.recv(y, 0)
            wrong += [number] * int((y != number).any())
        tell("done", wrong=wrong)
        ah.destroy_process_group()


def label_calls() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    x = np.ones(4)
    for label in ("first", "second"):
        ah.all_reduce(x, label=f"{label} sum")
        ah.all_reduce(x, async_op=True, label=f"{label} async").wait()
        ah.broadcast(x, 0, label=f"{label} broadcast")
        ah.barrier(label=f"{label} barrier")
        (ah.send if me == 0 else ah.recv)(x, 1 - me, label=f"{label} message")
        work = (ah.isend if me == 0 else ah.irecv)(x, 1 - me, label=f"{label} imessage")
        work.wait()
    labels = sorted(one.label for one in ah.flight_recorder() if one.label)
    tell("done", labels=labels)
    ah.destroy_process_group()


def label_calls_of_blocks() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    x, group = np.ones(4), ah.new_group([0, 1])
    ah.all_reduce(x)  # so that the next calls go as most do: past the queue
    earlier = len(ah.flight_recorder())
    with ah.record_comm("outer"):
        ah.all_reduce(x)
        ah.all_reduce(x, group=group, async_op=True).wait()
        with ah.record_comm("inner"):
            ah.scan(x)
            ah.broadcast(x, 0, label="own")
        (ah.send if me == 0 else ah.recv)(x, 1 - me)
        ah.monitored_barrier()
        beside = threading.Thread(target=ah.barrier)  # which is in no block
        beside.start()
        beside.join()
    with ah.record_comm("of the group", group=group):
        ah.barrier(group)
        ah.reduce(x, 0)
    ah.all_reduce(x)
    later = ah.flight_recorder()[earlier:]
    tell("done", calls=[(one.operation, one.label) for one in later])
    ah.destroy_process_group()


def name_peers_by_one_number() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    x, pair = np.full(3, me), ah.new_group([1, 0])
    texts = []
    for group in (None, pair):
        for _ in range(2):  # first through the loop, then past it
            if me == 0:
                ah.send(x, 1, group)
                ah.recv(x, 1, group)
            else:
                ah.recv(np.zeros(3, x.dtype), 0, group)
                ah.send(x, 0, group)
        other = 1 - me
        for call in (
            lambda: ah.send(x, other, group, 0, other),
            lambda: ah.recv(x, other, group, 0, other),
            lambda: ah.send(x, me, group),
        ):
            texts.append(failure(call)["error"])
    # Rank 1 is the group's first.
    y = np.zeros(3, x.dtype)
    if me == 0:
        ah.send(np.full(3, 7), group=pair, group_dst=0)
    else:
        assert ah.recv(y, group=pair, group_src=1) == 0
    tell("done", texts=texts, got=y.tolist())
    ah.destroy_process_group()


def leave_while_functions_run() -> None:
    ah.init_process_group(timeout=30)
    ended = []

    def slow(done):
        time.sleep(0.2)
        ended.append(done.value().sum())

    ah.all_reduce(np.ones(3), async_op=True).get_future().then(slow)
    ah.destroy_process_group()
    tell(
        "done",
        ended=[float(one) for one in ended],
        left=[one.name for one in threading.enumerate() if "callbacks" in one.name],
    )


def leave_while_a_thread_ends(slow: str) -> None:
    start = HelperThreads.start
    started = []

    def start_slow(self: HelperThreads, name: str, act: Callable[[], None]) -> None:
        def act_and_linger() -> None:
            act()
            if name == slow:
                time.sleep(1)  # as on a host that is busy with other things

        started.append(name)
        start(self, name, act_and_linger)

    setattr(HelperThreads, "start", start_slow)  # noqa: B010
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    for length in (3, 1_000_000):
        exchange = [ah.isend(np.ones(length), 1 - me), ah.irecv(np.ones(length), 1 - me)]
        for work in exchange:
            work.wait()
        ah.all_reduce(np.ones(length), async_op=True).wait()
    ah.destroy_process_group()
    running = [one.name for one in threading.enumerate()]
    tell("done", started=started, left=[name for name in running if name in started])


def call_from_tasks_and_threads() -> None:
    async def main():
        async with ah.aio.connect(timeout=30) as world:
            n, me = world.size, world.rank
            arrays = [np.full(20, me + 1) for _ in range(200)]

            def by_thread(mine):
                for x in mine:
                    world.group.all_reduce(x).wait()

            await asyncio.gather(
                *(world.all_reduce(x) for x in arrays[:100]),
                *(asyncio.to_thread(by_thread, arrays[100 + at :: 4]) for at in range(4)),
            )
            return sum(int((x != n * (n + 1) // 2).any()) for x in arrays)

    tell("done", wrong=asyncio.run(main()))


def pass_a_barrier() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    arrays = [np.full(length, me + 1.0) for length in (1, 100, 20_000, 300_000) * 5]
    works = [ah.all_reduce(x, async_op=True) for x in arrays]
    ah.barrier()
    ended = [work.is_completed() for work in works]
    right = [bool((x == 3).all()) for x in arrays]
    tell("done", ended=ended, right=right)
    ah.destroy_process_group()
