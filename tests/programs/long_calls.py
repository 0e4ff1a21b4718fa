"""Calls of tens of MiB between two hosts of one rank each: values, and who has made them."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from allhands.collectives.algorithms.cost import LinkCost
from allhands.engine.direct_calls import DirectCalls
from allhands.engine.link_calls import LinkCalls
from allhands.runtime.loop_thread import LoopThread
from programs.counts import count_calls
from programs.played_hosts import play_host
from programs.protocol import tell

COUNT = 3 << 20
"""Elements of 4 bytes, with which the shortest of the calls is longer than `PACED_BYTES`."""
LONG, LONGEST = 16 << 20, 48 << 20
"""With which a call takes longer than its caller is held in any case, and much longer."""


def _join() -> int:
    """Join a world of two hosts, whose links count as fast however busy this machine is."""
    play_host("ab")
    ah.init_process_group(timeout=60)
    ah.default_group().submitter.engine.link_cost = LinkCost(0.0001, 1e9)
    x = np.zeros(4)
    for _ in range(200):
        ah.all_reduce(x)
    return ah.get_rank()


def _fill(rank: int, number: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    """Return values of which each place has its own, and each rank and call others."""
    x = np.arange(count, dtype=np.uint32)
    x *= np.uint32(rank + 1)
    x += np.uint32(number)
    return x


def _sum(number: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    x = _fill(0, number, count)
    x += _fill(1, number, count)
    return x


def _all_reduce(me: int, number: int, begins: bool) -> bool:
    x = _fill(me, number)
    _make(lambda: ah.all_reduce(x, async_op=begins))
    return bool((x == _sum(number)).all())


def _broadcast(me: int, number: int, begins: bool) -> bool:
    x, root = _fill(me, number), number % 2
    _make(lambda: ah.broadcast(x, root, async_op=begins))
    return bool((x == _fill(root, number)).all())


def _reduce(me: int, number: int, begins: bool) -> bool:
    x, root = _fill(me, number), number % 2
    _make(lambda: ah.reduce(x, root, async_op=begins))
    return bool((x == (_sum(number) if me == root else _fill(me, number))).all())


def _all_gather(me: int, number: int, begins: bool) -> bool:
    ys = [np.empty(COUNT, np.uint32) for _ in range(2)]
    x = _fill(me, number)
    _make(lambda: ah.all_gather(ys, x, async_op=begins))
    return all((y == _fill(rank, number)).all() for rank, y in enumerate(ys))


def _reduce_scatter(me: int, number: int, begins: bool) -> bool:
    x, y = _fill(me, number, 2 * COUNT), np.empty(COUNT, np.uint32)
    _make(lambda: ah.reduce_scatter_tensor(y, x, async_op=begins))
    return bool((y == _sum(number, 2 * COUNT)[me * COUNT :][:COUNT]).all())


def _gather(me: int, number: int, begins: bool) -> bool:
    root = number % 2
    x, ys = _fill(me, number), [np.empty(COUNT, np.uint32) for _ in range(2)]
    _make(lambda: ah.gather(x, ys if me == root else None, root, async_op=begins))
    return me != root or all((y == _fill(rank, number)).all() for rank, y in enumerate(ys))


def _scatter(me: int, number: int, begins: bool) -> bool:
    root, x = number % 2, np.empty(COUNT, np.uint32)
    xs = [_fill(rank, number) for rank in range(2)] if me == root else None
    _make(lambda: ah.scatter(x, xs, root, async_op=begins))
    return bool((x == _fill(me, number)).all())


_CALLS: tuple[Callable[[int, int, bool], bool], ...] = (
    _all_reduce,
    _broadcast,
    _reduce,
    _all_gather,
    _reduce_scatter,
    _gather,
    _scatter,
)


def _make(call: Callable[[], Any]) -> None:
    """Make a call to which both ranks come at once."""
    ah.barrier()
    work = call()
    if work is not None:
        work.wait()


def make_calls_of_all_kinds(rounds: int, most: int, begins: bool) -> None:
    """Make calls that their callers wait for at once, begun or not.

    After `rounds` it ends as soon as the core has made one on each rank, which a busy host delays.
    """
    me, by_core = _join(), 0
    wrong: list[tuple[str, int]] = []
    queued, ended = _note_queued(), _note_ends()
    for number in range(most):
        for call in _CALLS:
            if not call(me, number, begins):
                wrong.append((call.__name__, number))
            by_core += ended()
        by_core += queued.count(None)
        queued.clear()
        if number >= rounds and _is_everywhere(by_core > 0):
            break
    tell("done", wrong=wrong, by_core=by_core)
    ah.destroy_process_group()


def call_alone(calls: int, count: int, is_rung: bool) -> None:
    """Make calls that go on for longer than their callers are held in any case.

    They end as soon as the core has made one on each rank, which a busy host delays. With `is_rung`
    something is always given to the loop's thread meanwhile.
    """
    if is_rung:
        LoopThread.is_rung = property(lambda _: True, lambda _, value: None)  # type: ignore
    me, by_core = _join(), 0
    ended = _note_ends()
    for number in range(calls):
        x = _fill(me, number, count)
        _make(lambda x=x: ah.all_reduce(x))  # type: ignore[misc]
        by_core += ended()
        assert (x == _sum(number, count)).all()
        if _is_everywhere(by_core > 0):
            break
    tell("done", by_core=by_core)
    ah.destroy_process_group()


def _is_everywhere(one: bool) -> bool:
    """Return whether something is so on both ranks."""
    x = np.array([one], np.int32)
    ah.all_reduce(x, ah.ReduceOp.MIN)
    return bool(x[0])


def call_beside_others(calls: int, others: int) -> None:
    """Make long calls, while another thread makes short ones of another group."""
    me, short, most = _join(), 0, 0
    wrong: list[tuple[str, int]] = []
    group = ah.new_group([0, 1])

    def call_others() -> None:
        nonlocal short
        for number in range(others):
            x = np.full(4, me + number)
            ah.all_reduce(x, group=group)
            if not (x == 2 * number + 1).all():
                wrong.append(("short", number))
            short = number

    beside = threading.Thread(target=call_others)
    beside.start()
    for number in range(calls):
        x, before = _fill(me, number, LONG), short
        ah.all_reduce(x)
        most = max(most, short - before)
        if not (x == _sum(number, LONG)).all():
            wrong.append(("long", number))
    beside.join()
    tell("done", wrong=wrong, most=most)
    ah.destroy_process_group()


def _note_ends() -> Callable[[], bool]:
    """Return a function that says whether the latest call has ended in the core."""
    order, handed = ah.default_group().order, count_calls(DirectCalls, "hand_over")
    direct: Any = order.direct_calls

    def has_ended() -> bool:
        is_whole = direct.last_call()[0] == order.latest_sequence and not handed
        handed.clear()
        return is_whole

    return has_ended


def _note_queued() -> list[object]:
    """Return a list that gets what is left of each long call that the core had on the loop."""
    seen: list[object] = []
    run = LinkCalls._run_on_loop

    def note(self: LinkCalls, operation: Any) -> Any:
        left = run(self, operation)
        if operation.request.nbytes:
            seen.append(left)
        return left

    LinkCalls._run_on_loop = note  # type: ignore[method-assign]
    return seen
