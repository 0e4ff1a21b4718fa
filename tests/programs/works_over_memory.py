"""Calls over shared memory with a deferred wait: the running thread, and the order."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands._native import AsyncCall
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import CallNumbering
from allhands.engine.shm.group_channel import GroupChannel
from allhands.engine.work.shm_work import ShmWorkContext
from allhands.runtime.loop_thread import LoopThread
from programs.protocol import failure, hear, tell, until

SMALL, LARGE = 3, 100_000
LENGTHS = {"SMALL": SMALL, "LARGE": LARGE}


def begin(kind: str, length: int = SMALL) -> tuple[ah.Work, npt.NDArray[np.float64]]:
    """Begin a call with the result 3.0 on two ranks; return work and array."""
    me = ah.get_rank()
    if kind == "all_reduce":
        x = np.full(length, me + 1.0)
        work = ah.all_reduce(x, async_op=True)
    else:
        x = np.full(length, 3.0 if me == 0 else 0.0)
        work = ah.broadcast(x, 0, async_op=True)
    assert work is not None
    return work, x


def _then(work: ah.Work) -> None:
    told = threading.Event()
    work.get_future().then(lambda _: told.set())
    told.wait(20)


ASKING: dict[str, Callable[[ah.Work], object]] = {
    "then": _then,
    "is_completed": lambda work: until(work.is_completed),
    "is_success": lambda work: until(work.is_success),
    "wait": lambda work: work.wait(20),
    "result": lambda work: work.get_future().result(20),
}
"""How the end of a call can be asked for."""


def begin_and_do_something_else(kind: str, length: str) -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    work, x = begin(kind, LENGTHS[length])
    if me == 0:
        tell("does something else")
        hear()
    work.wait()
    tell("ended", right=bool((x == 3).all()))
    ah.destroy_process_group()


def ask_for_the_end(kind: str, length: str, ask: str) -> None:
    ah.init_process_group(timeout=30)
    ah.barrier()  # from here on there is a communicator
    for _ in range(3):
        work, x = begin(kind, LENGTHS[length])
        ASKING[ask](work)
        assert (x == 3).all()
        assert work.is_success()
        assert work.exception() is None

    tell("done", how=work.explain())
    ah.destroy_process_group()


def call_small_ones() -> None:
    ah.init_process_group(timeout=30)
    ah.barrier()  # from here on there is a communicator
    for _ in range(100):
        work, _ = begin("all_reduce")
        work.wait()
    tell("done", threads=[one.name for one in threading.enumerate() if "callbacks" in one.name])
    ah.destroy_process_group()


def begin_many(kind: str, length: str) -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me:
        hear()
    both = [begin(kind, LENGTHS[length]) for _ in range(40)]
    if not me:
        tell("begun")
        hear()
    for work, _ in both[::-1]:
        work.wait()
    tell("done", right=all((x == 3).all() for _, x in both))
    ah.destroy_process_group()


def begin_beyond_the_room() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me:
        hear()
    for _ in range(140):
        work, _ = begin("all_reduce")
        if not me:
            work.cancel()
        until(work.is_completed)
    work, x = begin("all_reduce")
    if not me:
        tell("begun")
    work.wait()
    assert (x == 3).all()
    ah.destroy_process_group()


def begin_on_one_array() -> None:
    """Begin calls on an array again and again, and on parts that overlap, beside others."""
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    random = np.random.default_rng(ah.get_rank())
    for turn in range(60):
        whole, wanted = np.arange(24.0), np.arange(24.0)
        works, others = [], []
        for at in range(20):
            part = slice(at * turn % 20, at * turn % 20 + 4)
            works.append(ah.all_reduce(whole[part], async_op=True))
            wanted[part] *= n
            others.append(np.full(5, float(at)))
            works.append(ah.all_reduce(others[-1], async_op=True))
        if random.integers(2):
            works.reverse()
        for work in works:
            work.wait()
        assert (whole == wanted).all(), (turn, whole, wanted)
        assert all((x == n * at).all() for at, x in enumerate(others)), (turn, others)
    ah.destroy_process_group()


def cancel_among_many() -> None:
    """Cancel a call, behind which there are others, while one before it is waited for."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me:
        ah.all_reduce(np.ones(SMALL))
        hear()
        both = [begin("all_reduce") for _ in range(9)]
    else:
        both = [begin("all_reduce") for _ in range(10)]
        both.pop(0)[0].wait()  # with which the rest is on its way
        both[4][0].cancel()
        tell("cancelled")
    right = []
    for work, x in both:
        with contextlib.suppress(ah.AllhandsError):  # of the one that was cancelled
            work.wait()
        right.append(bool((x == 3).all()))
    tell("done", right=right[:4] + right[5:])
    y = np.ones(3)
    ah.all_reduce(y)
    assert (y == 2).all()
    ah.destroy_process_group()


def look_when_calls_began() -> None:
    """Look at the records of two calls, of which the second waits for the first, and afterwards."""
    ah.init_process_group(timeout=30)
    ah.barrier()  # from here on there is a communicator
    if ah.get_rank():
        hear()
    works = [ah.all_reduce(np.ones(SMALL), async_op=True, label=label) for label in "ab"]
    queued = ah.flight_recorder()[-2:]
    tell("begun", started=[one.started for one in queued])
    for work in works:
        work.wait()
    records = ah.flight_recorder()[-2:]
    tell(
        "done",
        started=[one.started for one in records],
        finished=[one.finished for one in records],
        unchanged=[
            (one.sequence, one.signature, one.label, one.source)
            == (other.sequence, other.signature, other.label, other.source)
            for one, other in zip(queued, records, strict=True)
        ],
    )
    ah.destroy_process_group()


def wait_for_the_first() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 0:
        works = [begin("all_reduce", length)[0] for length in (SMALL, LARGE)]
        tell("begun")
        works[0].wait()
        tell("first")
        works[1].wait()
    else:
        for length in (SMALL, LARGE):
            hear()
            begin("all_reduce", length)[0].wait()
    ah.destroy_process_group()


def call_in_every_way() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator

    def number(at):  # of the call, once for each rank
        return np.full(LARGE if at % 5 == 0 else SMALL, at + 1.0)

    random = np.random.default_rng(7)
    for _ in range(30):
        kept: list[tuple[ah.Work | None, Any, int]] = []
        for at in range(12):
            x = number(at)
            match random.integers(6):
                case 0:
                    ah.all_reduce(x)
                    kept.append((None, x, n * (at + 1)))
                case 1 | 2:
                    kept.append((ah.all_reduce(x, async_op=True), x, n * (at + 1)))
                case 3:
                    kept.append((ah.broadcast(x, 1, async_op=True), x, at + 1))
                case 4:  # several steps, so it goes by the loop
                    kept.append((ah.scan(x, async_op=True), None, (me + 1) * (at + 1)))
                case 5:
                    ah.monitored_barrier()
                    kept.append((None, x, at + 1))
        for work, x, wanted in kept[:: 1 - 2 * int(random.integers(2))]:
            if work is not None:
                work.wait()
            found = work.result() if x is None else x
            assert (found == wanted).all(), (found, wanted)
    tell("done", calls=ah.default_group().sequence)
    ah.destroy_process_group()


def wait_past_the_deadline() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    x = np.full(SMALL, me + 1.0)
    work = ah.all_reduce(x, timeout=0.2, async_op=True)
    over = time.monotonic() + 0.2
    tell("begun")
    hear()
    until(lambda: time.monotonic() > over)
    work.wait()
    assert (x == 3).all()
    ah.destroy_process_group()


def leave_a_call_alone(kind: str, length: str) -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 0:
        x = np.zeros(LENGTHS[length])
        if kind == "all_reduce":
            work = ah.all_reduce(x, async_op=True, timeout=0.3)
        else:
            work = ah.broadcast(x, 1, async_op=True, timeout=0.3)
        assert work is not None
        until(lambda: work.has_ended)  # which asks nobody
        tell("ended", error=type(work.exception()).__name__)
    else:
        hear()
    ah.destroy_process_group()


def outlive_a_group() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    for _ in range(20):
        group = ah.new_group([0, 1])
        x, y = np.full(SMALL, me + 1.0), np.full(SMALL, me + 1.0)
        works = [ah.all_reduce(x, group=group, async_op=True), ah.all_reduce(y, group=group)]
        works[0].wait()
        works.append(ah.all_reduce(x, group=group, async_op=True))
        ah.destroy_process_group(group)
        later = ah.new_group([0, 1])
        ah.barrier(group=later)
        works[2].wait()
        assert (x == 6).all()
        del works
        gc.collect()
        z = np.full(LARGE, me + 1.0)
        ah.all_reduce(z, group=later)
        assert (z == 3).all()
        ah.destroy_process_group(later)
    ah.destroy_process_group()


COMPOSITES: dict[str, Callable[[Any, int, int], tuple[ah.Work, object]]] = {
    "all_gather_object": lambda calls, me, n: (
        calls.all_gather_object({"rank": me}),
        [{"rank": rank} for rank in range(n)],
    ),
    "gather_object": lambda calls, me, n: (
        calls.gather_object({"rank": me}, 1),
        [{"rank": rank} for rank in range(n)] if me == 1 else None,
    ),
    "scatter_object": lambda calls, me, n: (
        calls.scatter_object(list("abcd"[:n]) if me == 1 else None, 1),
        "abcd"[me],
    ),
    "broadcast_object_list": lambda calls, me, n: (
        calls.broadcast_object_list([me, "text" * (me == 1)], 1),
        [1, "text"],
    ),
    "all_gather_v": lambda calls, me, n: (
        calls.all_gather_v(np.full(1 + me, me)),
        [np.full(1 + rank, rank) for rank in range(n)],
    ),
    "gather_v": lambda calls, me, n: (
        calls.gather_v(np.full((2, 1 + me), me), 1),
        [np.full((2, 1 + rank), rank) for rank in range(n)] if me == 1 else None,
    ),
    "scatter_v": lambda calls, me, n: (
        calls.scatter_v([np.full(at, at) for at in range(n)] if me == 1 else None, 1),
        np.full(me, me),
    ),
    "all_to_all_v": lambda calls, me, n: (
        calls.all_to_all_v([np.full(1 + me + to, me) for to in range(n)]),
        [np.full(1 + rank + me, rank) for rank in range(n)],
    ),
    "reduce_scatter_v": lambda calls, me, n: (
        calls.reduce_scatter_v([np.full(1 + to, me + 1.0) for to in range(n)]),
        np.full(1 + me, n * (n + 1) / 2),
    ),
    "large all_gather_object": lambda calls, me, n: (
        calls.all_gather_object(np.full(LARGE, me)),
        [np.full(LARGE, rank) for rank in range(n)],
    ),
    "large broadcast_object_list": lambda calls, me, n: (
        calls.broadcast_object_list([np.full(LARGE, me)], 1),
        [np.full(LARGE, 1)],
    ),
    "large all_to_all_v": lambda calls, me, n: (
        calls.all_to_all_v([np.full(LARGE + to, me) for to in range(n)]),
        [np.full(LARGE + me, rank) for rank in range(n)],
    ),
}
"""Composite calls that the core makes as one: begun on a group, with what they give."""


def are_equal(found: Any, wanted: object) -> bool:
    """Return whether results are the same, arrays with their dtypes and shapes."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(are_equal, found, wanted))
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and np.array_equal(found, wanted)
    return bool(found == wanted)


def ask_for_the_end_of_composites(ask: str) -> None:
    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            await world.barrier()  # from here on there is a communicator
            for name, start in COMPOSITES.items():
                for _ in range(3):
                    work, wanted = start(world.group.awaited, world.rank, world.size)
                    assert isinstance(work, AsyncCall), name
                    ASKING[ask](work)
                    assert work.is_success(), name
                    assert work.exception() is None, name
                    assert are_equal(work.result(), wanted), (name, work.result())
                    assert work.explain().startswith(f"{name.split()[-1]} #"), work.explain()

    asyncio.run(main())
    tell("done")


def begin_many_composites() -> None:
    """Begin composite calls beside others, of which one rank makes all before another comes."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            await world.barrier()  # from here on there is a communicator
            if world.rank:
                await asyncio.to_thread(hear)
            begun = []
            for start in (*COMPOSITES.values(), *COMPOSITES.values()):
                begun.append(start(world.group.awaited, world.rank, world.size))
                x = np.full(SMALL, 1.0)
                work = world.group.awaited.all_reduce(x)
                begun.append((work, np.full(SMALL, float(world.size))))
            if not world.rank:
                tell("begun")
            wrong = [
                str(work) for work, wanted in begun[::-1] if not are_equal(work.result(), wanted)
            ]
            tell("done", wrong=wrong)

    asyncio.run(main())


def poll_large_composites() -> None:
    """Poll for what is too large for a slot, and is left to who waits: no thread runs it."""

    async def main() -> None:
        wrong: list[str] = []
        run_queue = ShmWorkContext.run_queue
        async with ah.aio.connect(timeout=30) as world:
            await world.barrier()  # from here on there is a communicator
            ShmWorkContext.run_queue = lambda *_: None  # type: ignore[method-assign]
            for name, start in [*COMPOSITES.items()] * 2:
                work, wanted = start(world.group.awaited, world.rank, world.size)
                assert isinstance(work, AsyncCall)
                ended = [work.poll(300_000) for _ in range(5)]
                wrong += [f"{name} ended"] if name.startswith("large") and any(ended) else []
                wrong += [] if are_equal(work.result(), wanted) else [name]
            ShmWorkContext.run_queue = run_queue  # type: ignore[method-assign]
        tell("done", wrong=wrong)

    asyncio.run(main())


READERS: list[threading.Thread] = []
BOTH_READ = threading.Barrier(2)


@dataclass
class Read:
    """An object that notes which threads read it, and waits a little for a second one."""

    rank: int

    def __post_init__(self) -> None:
        READERS.append(threading.current_thread())
        with contextlib.suppress(threading.BrokenBarrierError):
            BOTH_READ.wait(0.2)


def read_in_two_threads() -> None:
    """Let two threads ask for the result of a call, which one of them reads."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            world.group.awaited.objects.types.add(Read, "Read")
            await world.barrier()  # from here on there is a communicator
            mine = Read(world.rank)
            READERS.clear()
            BOTH_READ.reset()
            work = world.group.awaited.all_gather_object(mine)
            found: list[Any] = []
            asking = [threading.Thread(target=lambda: found.append(work.result())) for _ in "ab"]
            for one in asking:
                one.start()
            for one in asking:
                one.join()
            tell(
                "done",
                ranks=[one.rank for one in found[0]],
                is_same=found[0] is found[1],
                readers=len({*READERS}),
            )

    asyncio.run(main())


def await_an_unknown_object() -> None:
    """Await an object the class of which one rank alone knows, then another call."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            await world.barrier()  # from here on there is a communicator
            if world.rank == 0:
                world.group.awaited.objects.types.add(Read, "Read")
            value = Read(7) if world.rank == 0 else 7
            work = world.group.awaited.all_gather_object(value)
            said = failure(work.wait)
            again = failure(work.get_future().result)["error"]
            x = await world.all_reduce(np.ones(1))
            tell("done", sum=x[0], is_success=work.is_success(), again=again, **said)

    asyncio.run(main())


def begin_while_memory_opens() -> None:
    """Begin a call whose group finds out that its ranks share memory while it is begun."""
    begun, opened = threading.Event(), threading.Event()
    comm, negotiate, make = (
        CallNumbering.comm,
        GroupChannel.negotiate,
        GroupEngine.make_direct_calls,
    )

    async def leave_it_to_the_first_call(channel: GroupChannel, *_: object) -> None:
        pass

    async def wait_for_the_call(channel: GroupChannel, *given: Any) -> None:
        await asyncio.to_thread(begun.wait, 30)
        await negotiate(channel, *given)

    def set_comm(order: CallNumbering, value: Any) -> None:
        comm.fset(order, value)  # type: ignore[attr-defined]
        opened.set()

    def make_meanwhile(engine: GroupEngine, thread: LoopThread) -> Any:
        begun.set()
        assert opened.wait(30)
        return make(engine, thread)

    GroupChannel.negotiate_early = leave_it_to_the_first_call  # type: ignore[method-assign,assignment]
    GroupChannel.negotiate = wait_for_the_call  # type: ignore[method-assign,assignment]
    CallNumbering.comm = property(comm.fget, set_comm)  # type: ignore[assignment,attr-defined]
    GroupEngine.make_direct_calls = make_meanwhile  # type: ignore[method-assign,assignment]
    ah.init_process_group(timeout=30)
    values = []
    for _ in range(3):
        x = np.ones(2)
        ah.all_reduce(x, async_op=True).wait()
        values.append(x.tolist())
    tell("done", values=values, met=begun.is_set(), how=ah.default_group().explain())
    ah.destroy_process_group()
