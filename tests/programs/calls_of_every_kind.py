"""Calls of every kind over shared memory that are begun, or awaited: results, order, failures."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell

Array = npt.NDArray[Any]

LENGTHS = {"SMALL": 6, "MIDDLE": 9_000, "LARGE": 60_000}
"""In a slot, in one box of the staging memory, in several; of two and of three ranks."""


@dataclass(frozen=True)
class Case:
    """A call: its name and arguments, the array with its output, and what that must be."""

    name: str
    arguments: tuple[Any, ...]
    output: Array
    wanted: Array
    result: Any = None
    """Of the work, where that is not the array."""


def list_cases(me: int, n: int, length: int, at: int) -> list[Case]:
    """Return a call of every kind, on arrays that tell ranks and calls apart."""
    brought = [np.arange(length) + 1000.0 * rank + at for rank in range(n)]
    mine, share = brought[me], length // n
    x = [mine.copy() for _ in range(5)]
    root = at % n
    gathered, scattered, exchanged = np.zeros(n * length), np.zeros(share), np.zeros(length)
    parts = [one[me * share : (me + 1) * share] for one in brought]
    shares = list(mine.reshape(n, share))
    wholes = [np.zeros((n, length)) for _ in range(2)]
    lists = [list(wholes[0]), list(wholes[1]) if me == root else None]
    received, summed, swapped = np.zeros(share), np.zeros(share), np.zeros((n, share))
    at_root = np.array(brought if me == root else np.zeros((n, length)))
    places = list(swapped)
    before = np.sum(brought[:me], 0) if me else mine
    return [
        Case("all_reduce", (x[0],), x[0], np.sum(brought, 0)),
        Case("broadcast", (x[1], root), x[1], brought[root]),
        Case("reduce", (x[2], root), x[2], np.sum(brought, 0) if me == root else mine),
        Case("scan", (x[3],), x[3], np.sum(brought[: me + 1], 0)),
        Case("exscan", (x[4],), x[4], before),
        Case("all_gather_into_tensor", (gathered, mine), gathered, np.concatenate(brought)),
        Case("reduce_scatter_tensor", (scattered, mine), scattered, np.sum(parts, 0)),
        Case("all_to_all_single", (exchanged, mine), exchanged, np.concatenate(parts)),
        Case("barrier", (), mine, mine),
        Case("all_gather", (lists[0], mine), wholes[0], np.array(brought), lists[0]),
        Case("gather", (mine, lists[1], root), wholes[1], at_root, lists[1]),
        Case(
            "scatter",
            (received, shares if me == root else None, root),
            received,
            brought[root][me * share : (me + 1) * share],
        ),
        Case("reduce_scatter", (summed, shares), summed, np.sum(parts, 0)),
        Case("all_to_all", (places, shares), swapped, np.array(parts), places),
    ]


def check(case: Case) -> None:
    assert (case.output == case.wanted).all(), (case.name, case.output, case.wanted)


def begin(case: Case, **more: Any) -> ah.Work:
    work = getattr(ah, case.name)(*case.arguments, async_op=True, **more)
    assert isinstance(work, ah.Work)
    return work


# ---------------------------------------------------------------- results and order


def begin_every_kind(length: str) -> None:
    """Begin calls of all kinds, with those of other ways between, and wait in any order."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    random = np.random.default_rng(7)  # alike on all ranks
    for turn in range(12):
        cases = [one for at in range(2) for one in list_cases(me, n, LENGTHS[length], turn + at)]
        kept: list[tuple[ah.Work | None, Case]] = []
        for at in random.permutation(len(cases)):
            case = cases[at]
            if random.integers(3):
                kept.append((begin(case), case))
                continue
            with ah.coalescing():
                sums = [np.full(4, me + 1.0) for _ in range(3)]
                for one in sums:
                    ah.all_reduce(one)
            assert all((one == n * (n + 1) / 2).all() for one in sums)
            getattr(ah, case.name)(*case.arguments)
            check(case)
        mine = np.random.default_rng(100 * turn + me)  # each rank waits in an order of its own
        for at in mine.permutation(len(kept)):
            work, case = kept[at]
            assert work is not None
            work.wait()
            check(case)
    tell("done", calls=ah.default_group().sequence)
    ah.destroy_process_group()


def read_results() -> None:
    """Tell what the works of begun calls have as their results."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    told = {}
    for case in list_cases(me, n, LENGTHS["SMALL"], 0):
        work = begin(case, label="this one")
        found = work.get_future().result(20)
        assert work.result() is found
        assert (work.operation, work.label, work.is_success()) == (case.name, "this one", True)
        result = case.output if case.result is None else case.result
        told[case.name] = None if found is None else found is result
    tell("done", results=told)
    ah.destroy_process_group()


def await_every_kind(length: str, kind_of_loop: str) -> None:
    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            me, n = world.rank, world.size
            await world.barrier()  # from here on there is a communicator
            for turn in range(6):
                for case in list_cases(me, n, LENGTHS[length], turn):
                    await getattr(world, case.name)(*case.arguments)
                    check(case)
                cases = list_cases(me, n, LENGTHS[length], turn)
                calls = [getattr(world, one.name)(*one.arguments) for one in cases]
                await asyncio.gather(*calls)
                for case in cases:
                    check(case)
            tell("done")

    run_on(kind_of_loop, main())


def run_on(kind_of_loop: str, main: Coroutine[Any, Any, None]) -> None:
    if kind_of_loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


# ---------------------------------------------------------------- failures


def await_a_missing_rank(length: str) -> None:
    """Await each kind on rank 0 alone, until its time is over; then all ranks go on."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            me, n = world.rank, world.size
            await world.barrier()  # from here on there is a communicator
            for case in list_cases(me, n, LENGTHS[length], 1):
                if me == 0:
                    try:
                        with ah.deadline(0.1):
                            await getattr(world, case.name)(*case.arguments)
                        tell("ended", kind=case.name)
                    except ah.CollectiveTimeout as error:
                        tell("failed", kind=case.name, ranks=list(error.missing_ranks), op=error.op)
                    tell("late")
                else:
                    await asyncio.to_thread(hear)
                    tell("late", **failure(begin_on(world, case).wait))
            x = await world.all_reduce(np.full(3, me + 1.0))
            tell("next", right=bool((x == n * (n + 1) / 2).all()))

    asyncio.run(main())


def begin_on(world: Any, case: Case) -> ah.Work:
    work = getattr(world.group, case.name)(*case.arguments)
    assert isinstance(work, ah.Work)
    return work


def await_a_dead_rank(name: str, length: str) -> None:
    async def main() -> None:
        async with ah.aio.connect(timeout=40) as world:
            await world.barrier()  # from here on there is a communicator
            if world.rank == 1:
                tell("here")
                await asyncio.to_thread(hear)
            cases = list_cases(world.rank, world.size, LENGTHS[length], 1)
            case = next(one for one in cases if one.name == name)
            calling = asyncio.create_task(getattr(world, name)(*case.arguments))
            for _ in range(20):
                await asyncio.sleep(0)
            tell("begun")
            try:
                await calling
                tell("ended")
            except ah.PeerFailed as error:
                tell("failed", ranks=list(error.failed_ranks))

    asyncio.run(main())


def await_differently(pairs: list[tuple[str, str]]) -> None:
    async def main() -> None:
        async with ah.aio.connect(timeout=30) as world:
            await world.barrier()  # from here on there is a communicator
            for pair in pairs:
                name = pair[world.rank]
                cases = list_cases(world.rank, world.size, LENGTHS["SMALL"], 1)
                case = next(one for one in cases if one.name == name)
                held = case.output.copy()
                try:
                    await getattr(world, name)(*case.arguments)
                    tell("ended", call=name)
                except ah.CollectiveMismatch as error:
                    kept = bool((case.output == held).all())
                    table = {str(rank): said for rank, said in error.table.items()}
                    tell("refused", call=name, table=table, kept=kept)
            x = await world.all_reduce(np.full(3, world.rank + 1.0))
            tell("next", right=bool((x == 3).all()))

    asyncio.run(main())
