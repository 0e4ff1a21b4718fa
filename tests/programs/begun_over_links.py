"""Calls over links that are only begun: values, peers that come late, and failures."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import allhands as ah
from allhands.engine import direct_calls
from allhands.engine.call_runner import CallRunner
from allhands.engine.direct_calls import DirectCalls
from allhands.engine.link_calls import LinkCalls
from allhands.engine.p2p.direct_messages import DirectMessages
from allhands.engine.work.completed import CompletedSend
from allhands.engine.work.work import Work
from allhands.runtime import loop_thread
from programs.counts import count_calls
from programs.protocol import CheckedLabel, failure, hear, tell

COUNTS = (1, 8, 1000, 16_384, 100_000)
"""The last is queued, and made on the loop's thread."""

Begun: TypeAlias = tuple[Work, np.ndarray[Any, Any], Any, Any]
"""A work, an output, what that is to be, and what the work's result is to be."""


def _join(*, verify: bool = False) -> tuple[int, int]:
    ah.init_process_group(backend="socket", timeout=30, verify=verify)
    x = np.zeros(4)
    for _ in range(5):
        ah.all_reduce(x, async_op=True).wait()
    return ah.get_rank(), ah.get_world_size()


def begin_calls_of_all_kinds(seed: int, rounds: int, verify: bool) -> None:
    """Begin runs of calls, to some of which ranks come late, and wait for them in any order."""
    me, size = _join(verify=verify)
    at_once, handed = (
        count_calls(DirectCalls, "make_completed_work"),
        count_calls(DirectCalls, "hand_over"),
    )
    queued = _note_queued()
    alike, own, wrong = random.Random(seed), random.Random(seed + me), []
    for number in range(rounds):
        if own.random() < 0.1:
            time.sleep(0.002)  # longer than any caller is held for others
        begun = [
            (kind, *begin(me, size, alike.choice(COUNTS), number))
            for kind, begin in alike.choices(_KINDS, k=alike.choice((1, 1, 4)))
        ]
        own.shuffle(begun)
        for kind, work, output, wanted, result in begun:
            if work.result() is not result or not (output == wanted).all():
                wrong.append((kind, number))
    core = sum(execution is None for execution in queued)
    tell(
        "done",
        wrong=wrong,
        at_once=len(at_once),
        handed=len(handed),
        core=core,
        queued=len(queued),
    )
    ah.destroy_process_group()


def _note_queued() -> list[object]:
    """Return a list that gets what is left of each queued call after the core has had it."""
    seen: list[object] = []
    run = LinkCalls._run_on_loop

    def note(self: LinkCalls, operation: Any) -> Any:
        seen.append(run(self, operation))
        return seen[-1]

    LinkCalls._run_on_loop = note  # type: ignore[method-assign]
    return seen


def _begin_all_reduce(me: int, size: int, count: int, number: int) -> Begun:
    x = np.full(count, me + number)
    return ah.all_reduce(x, async_op=True), x, size * (size - 1) // 2 + size * number, x


def _begin_broadcast(me: int, size: int, count: int, number: int) -> Begun:
    x, root = np.full(count, 1000 * me + number), number % size
    return ah.broadcast(x, root, async_op=True), x, 1000 * root + number, x


def _begin_reduce(me: int, size: int, count: int, number: int) -> Begun:
    x, root = np.full(count, me + number), number % size
    work = ah.reduce(x, root, async_op=True)
    if me != root:
        return work, x, me + number, None
    return work, x, size * (size - 1) // 2 + size * number, x


def _begin_barrier(me: int, size: int, count: int, number: int) -> Begun:
    return ah.barrier(async_op=True), np.zeros(1), 0, None


def _begin_all_gather(me: int, size: int, count: int, number: int) -> Begun:
    x, y = np.full(count, me + number), np.empty((size, count), np.int64)
    work = ah.all_gather_into_tensor(y, x, async_op=True)
    return work, y, np.arange(number, number + size).reshape(size, 1), y


def _begin_reduce_scatter(me: int, size: int, count: int, number: int) -> Begun:
    x, y = np.arange(size * count) * (me + number), np.empty(count, np.int64)
    total = size * (size - 1) // 2 + size * number
    work = ah.reduce_scatter_tensor(y, x, async_op=True)
    return work, y, np.arange(me * count, (me + 1) * count) * total, y


_KINDS = (
    ("all_reduce", _begin_all_reduce),
    ("broadcast", _begin_broadcast),
    ("reduce", _begin_reduce),
    ("barrier", _begin_barrier),
    ("all_gather_into_tensor", _begin_all_gather),
    ("reduce_scatter_tensor", _begin_reduce_scatter),
)


def begin_from_two_threads(calls: int) -> None:
    """Begin calls in two threads at once, alike, so that any order of them is right."""
    _, size = _join()
    wrong: list[str] = []

    def begin() -> None:
        try:
            for _ in range(calls):
                x = np.ones(4)
                ah.all_reduce(x, async_op=True).wait()
                if not (x == size).all():
                    wrong.append(str(x))
        except ah.AllhandsError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("done", wrong=wrong)
    ah.destroy_process_group()


def begin_without_others() -> None:
    """Let rank 0 begin a call to which the others do not come before its deadline."""
    me, _ = _join()
    x = np.full(100, float(me))
    told: dict[str, Any] = {}
    if me == 0:
        work = ah.all_reduce(x, async_op=True, timeout=0.5)
        told = {"was_open": not work.is_completed()}
        told |= failure(work.wait)
    tell("missed", **told, kept=bool((x == me).all()))
    hear()
    if me:
        told = failure(lambda: ah.all_reduce(x, timeout=0.5))
    y = np.full(3, me + 1)
    ah.all_reduce(y, async_op=True).wait()
    tell("done", **told, y=y.tolist())
    ah.destroy_process_group()


def begin_different_calls() -> None:
    me, _ = _join()
    x = np.ones(10 + me)
    work = ah.all_reduce(x, async_op=True)
    tell("done", **failure(work.wait), kept=bool((x == 1).all()))


def lose_a_rank_behind_begun_calls() -> None:
    """Kill the last rank between two calls, both of which the others have begun."""
    me, size = _join()
    x = np.ones(100)
    for number in range(1 << 30):
        if number == 300 and me == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        works = [ah.all_reduce(x, async_op=True), ah.barrier(async_op=True)]
        told = [failure(work.wait) for work in works]
        if told[0]["error"]:
            tell(
                "done", errors=[one["error"] for one in told], ranks=[one["ranks"] for one in told]
            )
            return


def cancel_a_begun_call() -> None:
    me, _ = _join()
    x = np.full(5, me + 2.0)
    if me == 0:
        work = ah.all_reduce(x, async_op=True)
        work.cancel()
        tell("cancelled", **failure(work.wait), kept=bool((x == 2).all()))
    else:
        hear()
        tell("cancelled", **failure(ah.all_reduce(x, async_op=True).wait), x=x.tolist())
    ah.all_reduce(y := np.ones(3))
    tell("done", y=y.tolist())
    ah.destroy_process_group()


Step: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any], Callable[[Any], object]]
"""A call of several steps, or with lists: its name and arguments, and whether a result is right."""


def _list_steps(me: int, size: int, number: int) -> list[Step]:
    objects = [{"rank": rank, "number": number} for rank in range(size)]
    gathered = [[float(number)] * (rank + 1) for rank in range(size)]
    outputs = [np.empty(2) for _ in range(size)]
    return [
        ("all_gather_object", (objects[me],), {}, lambda got: got == objects),
        (
            "broadcast_object_list",
            ([f"{me} {number}"], number % size),
            {},
            lambda got: got == [f"{number % size} {number}"],
        ),
        (
            "scan",
            (np.full(3, me + number),),
            {},
            lambda got: (got == sum(range(me + 1)) + (me + 1) * number).all(),
        ),
        (
            "all_gather_v",
            (np.full(me + 1, float(number)),),
            {},
            lambda got: [part.tolist() for part in got] == gathered,
        ),
        (
            "all_gather",
            (outputs, np.full(2, float(me))),
            {},
            lambda got: all((one == rank).all() for rank, one in enumerate(got)),
        ),
        (
            "all_reduce",
            (np.full(3, me),),
            {"label": CheckedLabel("checked")},
            lambda got: (got == size * (size - 1) // 2).all(),
        ),
    ]


def await_steps(rounds: int) -> None:
    """Await calls of several steps, and with lists, at which ranks are late by turns."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30, backend="socket") as world:
            me, size = world.rank, world.size
            queued, wrong = _count_queued(), []
            for number in range(rounds):
                if number % 10 == me:
                    await asyncio.sleep(0.002)
                for name, given, options, is_right in _list_steps(me, size, number):
                    if not is_right(await getattr(world, name)(*given, **options)):
                        wrong.append((number, name))
            tell("done", wrong=wrong, queued=len(queued), calls=6 * rounds)

    asyncio.run(main())


def begin_steps(rounds: int) -> None:
    """Begin such calls, alone or together, and wait for them."""
    me, size = _join()
    at_once, wrong = 0, []
    world = ah.default_group()
    for number in range(rounds):
        if number % 10 == me:
            time.sleep(0.002)
        steps, begun = _list_steps(me, size, number), []
        for name, given, options, _ in steps:
            begun.append(getattr(world, name)(*given, **options))
            at_once += begun[-1].has_ended and name not in {"all_gather", "all_reduce"}
            if number % 2:
                begun[-1].wait()
        for (name, _, _, is_right), work in zip(steps, begun, strict=True):
            if not is_right(work.result()):
                wrong.append((number, name))
    tell("done", wrong=wrong, at_once=at_once)
    ah.destroy_process_group()


def _count_queued() -> list[int]:
    """Return a list that gets an entry for each call that the loop has, from its start or later."""
    seen: list[int] = []
    run = CallRunner.run

    async def note(self: CallRunner, *arguments: Any) -> None:
        seen.append(1)
        await run(self, *arguments)

    CallRunner.run = note  # type: ignore[method-assign, assignment]
    return seen


def prepare_calls(calls: int) -> None:
    """Make prepared calls, to some of which ranks come late."""
    me, size = _join()
    at_once, handed = (
        count_calls(DirectCalls, "make_completed_work"),
        count_calls(DirectCalls, "hand_over"),
    )
    x, own, wrong = np.empty(100), random.Random(me), []
    call = ah.all_reduce_init(x)
    for number in range(calls):
        x[:] = me + number
        if own.random() < 0.1:
            time.sleep(0.002)
        call.start()
        call.wait()
        if not (x == size * (size - 1) // 2 + size * number).all():
            wrong.append(number)
    tell("done", wrong=wrong, at_once=len(at_once), handed=len(handed))
    ah.destroy_process_group()


def wait_for_a_late_rank() -> None:
    """Begin calls to which rank 1 comes late, and wait for them soon, or not so, or never.

    Each is begun until the core has taken it, as it does unless the loop has something to do.
    """
    me, _ = _join()
    if me == 1:
        while hear() == "come":
            ah.all_reduce(np.ones(4))
        tell("done")
        ah.destroy_process_group()
        return
    native: Any = ah.default_group().order.direct_calls
    handed, soon = count_calls(DirectCalls, "hand_over"), []

    def begin(seconds: float) -> Work:
        direct_calls._SOON_SECONDS = seconds
        handed.clear()
        work = ah.all_reduce(np.ones(4), async_op=True)
        tell("begun", handed=bool(handed), soon=native.soon_waiting)
        return work

    waits: tuple[tuple[float, Any], ...] = (
        (60.0, lambda work: work.wait()),
        (0.0, lambda work: work.wait()),
        (60.0, lambda work: work.wait()),
        (60.0, lambda work: work.get_future().result()),
    )
    for seconds, wait in waits:
        while True:
            work = begin(seconds)
            if handed:
                break
            wait(work)
            native.soon_waiting = 0  # who waits for a queued call is held as well
        _tell_that_it_waits(work)
        wait(work)
        soon.append(native.soon_waiting == threading.get_ident())
    tell("done", soon=soon, held=_find_when_held(native))
    ah.destroy_process_group()


def _tell_that_it_waits(work: Work) -> None:
    note: Any = work._progress

    def note_and_tell(seconds: float) -> bool:
        is_going_on: bool = note(seconds)
        if seconds > 0:
            tell("waits")
        return is_going_on

    work.helped(note_and_tell)


def _find_when_held(links: Any) -> list[bool]:
    """Return whether this thread is held: soon from its begin, from an end, and otherwise."""
    held, progress = [], ah.default_group().submitter.engine.progress
    later, me = time.monotonic() + 60, threading.get_ident()
    for waiting, begun, ended in (
        (me, later, 0.0),
        (me, 0.0, later),
        (me, 0.0, 0.0),
        (me + 1, later, later),
    ):
        links.soon_waiting, links.begun_at, progress.since = waiting, begun, ended
        held.append(links.is_held())
    return held


def wait_for_the_first_of_several() -> None:
    """Begin calls to which rank 1 comes late, and wait for them when all are begun."""
    me, _ = _join()
    native: Any = ah.default_group().order.direct_calls
    if me == 1:
        hear()
        for _ in range(5):
            ah.all_reduce(np.ones(4))
    else:
        works = [ah.all_reduce(np.ones(4), async_op=True) for _ in range(5)]
        direct_calls._SOON_SECONDS = 0.0
        native.begun_at = time.monotonic() + 60
        _tell_that_it_waits(works[0])
        for work in works:
            work.wait()
    tell("done", soon=native.soon_waiting == threading.get_ident())
    ah.destroy_process_group()


def record_begun_calls() -> None:
    """Look at the records of calls that end at once, and of one that is handed over."""
    me, _ = _join()
    before = ah.default_group().sequence
    if me == 1:
        time.sleep(0.1)
    works = [ah.barrier(async_op=True)]
    works[0].wait()
    for _ in range(3):
        works.append(ah.broadcast(np.zeros(7), 0, async_op=True))
        works[-1].wait()
    recorder = ah.default_group().submitter.engine.recorder
    rows = [one for one in recorder.list_records() if one.sequence > before]
    tell(
        "done",
        numbers=[one.sequence - before for one in rows],
        operations=[one.operation for one in rows],
        outcomes=[one.outcome for one in rows],
        functions=[one.function for one in rows],
        explained=["over links" in work.explain() for work in works],
        futures=[work.get_future().done() for work in works],
    )
    ah.destroy_process_group()


def await_messages(seed: int, rounds: int) -> None:
    """Await messages around a ring, of any length, to which ranks come late or that cross."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30, backend="socket") as world:
            me, size = world.rank, world.size
            after, before = (me + 1) % size, (me - 1) % size
            received = _count_received()
            alike, own, wrong = random.Random(seed), random.Random(seed + me), []
            for number in range(rounds):
                if own.random() < 0.1:
                    await asyncio.sleep(0.002)
                count, tag = alike.choice((1, 8, 1000, 16_384, 300_000)), alike.randrange(3)
                x, y = np.full(count, me + number), np.empty(count, np.int64)
                if alike.random() < 0.3:  # it begins in the same order on all ranks
                    _, source = await asyncio.gather(
                        world.send(x, after, tag), world.recv(y, before, tag)
                    )
                elif me == 0:
                    await world.send(x, after, tag)
                    source = await world.recv(y, before, tag)
                else:
                    source = await world.recv(y, before, tag)
                    await world.send(x, after, tag)
                if source != before or not (y == before + number).all():
                    wrong.append(number)
                if alike.random() < 0.1:
                    total = await world.all_reduce(np.full(3, me))
                    assert (total == size * (size - 1) // 2).all()
            await world.barrier()
            at_once = sum(sender >= 0 for sender in received)
            tell("done", wrong=wrong, at_once=at_once, later=len(received) - at_once)

    asyncio.run(main())


def begin_messages(seed: int, rounds: int, verify: bool) -> None:
    """Begin to send to all others, of any length, in runs that they receive in any way."""
    me, size = _join(verify=verify)
    at_once, begun = count_calls(CompletedSend, "__init__"), 0
    alike, own, wrong = random.Random(seed), random.Random(seed + me), []
    others = [rank for rank in range(size) if rank != me]
    for number in range(rounds):
        if own.random() < 0.1:
            time.sleep(0.002)
        counts = [alike.choice((1, 1000, 16_384, 300_000)) for _ in range(alike.choice((1, 3)))]
        works = [
            ah.isend(np.full(count, 100 * me + place + number), rank, tag=number % 2)
            for rank in others
            for place, count in enumerate(counts)
        ]
        begun += len(works)
        for rank in others:
            for place, count in enumerate(counts):
                y = np.empty(count, np.int64)
                if own.random() < 0.5:
                    ah.recv(y, rank, tag=number % 2)
                else:
                    ah.irecv(y, rank, tag=number % 2).wait()
                if not (y == 100 * rank + place + number).all():
                    wrong.append((number, rank, place))
        for work in works:
            work.wait()
            assert work.is_success()
    ah.barrier()
    tell("done", wrong=wrong, at_once=len(at_once), begun=begun)
    ah.destroy_process_group()


def wait_while_the_loop_is_left_alone(rounds: int) -> None:
    """Wait for what was begun, with the loop borrowed meanwhile, so that its thread leaves it."""
    loop_thread.PARK_SECONDS = loop_thread.MAX_PARK_SECONDS = 600.0
    me, _ = _join()
    other, wrong = 1 - me, []
    for number in range(rounds):
        for count in (1, 16_384, 60_000, 300_000):
            x, y = np.full(count, me + number), np.empty(count, np.int64)
            small, back = np.full(2, me), np.empty(2, np.int64)
            receiving = ah.irecv(y, other, tag=1)
            sending = ah.isend(x, other, tag=1)
            for act in (ah.send, ah.recv) if me else (ah.recv, ah.send):
                act(back if act is ah.recv else small, other, tag=2)
            receiving.wait()
            sending.wait()
            sending = ah.isend(x, other, tag=3)
            ah.recv(x if sending.is_completed() else x.copy(), other, tag=3)
            sending.wait()
            total = np.full(count, me)
            reducing = ah.all_reduce(total, async_op=True)
            for act in (ah.send, ah.recv) if me else (ah.recv, ah.send):
                act(back if act is ah.recv else small, other, tag=2)
            reducing.wait()
            if not ((y == other + number).all() and (total == 1).all() and (back == other).all()):
                wrong.append((number, count))
    tell("done", wrong=wrong)
    ah.destroy_process_group()


def _count_received() -> list[int]:
    """Return a list that gets what each attempt to receive at once gives."""
    seen: list[int] = []
    attempt = DirectMessages.try_recv

    def note(self: DirectMessages, *arguments: Any) -> int:
        seen.append(attempt(self, *arguments))
        return seen[-1]

    DirectMessages.try_recv = note  # type: ignore[method-assign]
    return seen


def await_calls(calls: int, count: int) -> None:
    """Await calls of so many int64 one after the other, at which ranks are late by turns."""

    async def main() -> None:
        async with ah.aio.connect(timeout=30, backend="socket") as world:
            me, size = world.rank, world.size
            at_once, handed = (
                count_calls(DirectCalls, "make_completed_work"),
                count_calls(DirectCalls, "hand_over"),
            )
            wrong = []
            for number in range(calls):
                if number % 20 == me:
                    await asyncio.sleep(0.002)
                x = await world.all_reduce(np.full(count, me + number))
                y = await world.broadcast(np.full(count, me), number % size)
                z = await world.reduce(np.full(count, me), number % size)
                right = (x == size * (size - 1) // 2 + size * number).all()
                if not right or not (y == number % size).all():
                    wrong.append(number)
                if (z is None) == (me == number % size):
                    wrong.append(number)
            tell("done", wrong=wrong, at_once=len(at_once), handed=len(handed))

    asyncio.run(main())
