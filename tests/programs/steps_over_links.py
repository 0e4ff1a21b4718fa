"""Composite calls over links on their callers' threads: values, steps that go on on the loop."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import allhands as ah
from allhands.collectives.composite_call import CompositeState, Step
from allhands.collectives.request import CollectiveRequest
from allhands.engine.call_runner import CallRunner
from allhands.engine.group_engine import GroupEngine
from allhands.engine.hosts.composite_runner import CompositeRun
from allhands.engine.inline_limits import InlineLimits
from allhands.engine.link_calls import LinkCalls
from allhands.engine.operation import Operation
from allhands.engine.queue import CallQueue
from allhands.engine.watchdog import Watchdog
from programs.played_hosts import play_host
from programs.protocol import failure, hear, tell

_advance, _run = CompositeState.advance, CompositeRun.run
_run_step: Any = CompositeRun._run_step_here
_run_first: Any = LinkCalls.run_here
LONG = 200_001
"""Elements of an array of which a message goes in two pieces."""
_can_run, _finish = GroupEngine.can_run_step_inline, CompositeState.finish


def call_all_kinds(loops: int, handed: float, hosts: str = "") -> None:
    """Make calls of all kinds, of which each rank hands a part of the steps to its loop.

    On `hosts` as `play_host` has them, if there are any.
    """
    if hosts:
        play_host(hosts)
    ah.init_process_group(backend="auto" if hosts else "socket", timeout=30)
    n, me = ah.get_world_size(), ah.get_rank()
    counts = _count_steps(random.Random(me), handed)
    counts["not_begun"] = 0
    _watch_beginnings(counts)
    wrong: list[Any] = []
    for at in range(loops):
        size, root = LONG if at % 20 == 19 else (0, 3, 500, 3000)[at % 4], at % n
        x = np.arange(size) + me
        found: list[Any] = [None] * n
        ah.all_gather_object(found, {"rank": me, "x": x})
        fine = [one["rank"] == rank for rank, one in enumerate(found)]
        fine += [(one["x"] == np.arange(size) + rank).all() for rank, one in enumerate(found)]
        values = [at, x] if me == root else [None, None]
        ah.broadcast_object_list(values, root)
        fine += [values[0] == at, (values[1] == np.arange(size) + root).all()]
        gathered = [None] * n if me == root else None
        ah.gather_object(me, gathered, root)
        fine += [gathered == ([*range(n)] if me == root else None)]
        mine = [None]
        ah.scatter_object_list(mine, [f"for {rank}" for rank in range(n)], root)
        fine += [mine == [f"for {me}"]]
        parts = ah.all_gather_v(np.full(size % 100 + me, me))
        fine += [one.tolist() == [rank] * (size % 100 + rank) for rank, one in enumerate(parts)]
        given = [np.full((rank, size % 41 * at % 50), me * n + rank) for rank in range(n)]
        blocks = ah.all_to_all_v(given)
        fine += [
            one.shape == (me, size % 41 * at % 50) and (one == rank * n + me).all()
            for rank, one in enumerate(blocks)
        ]
        ah.scan(total := np.full(size, me + 1.0))
        fine += [(total == sum(range(me + 2))).all()]
        ah.all_reduce(y := np.full(size, me))
        fine += [(y == sum(range(n))).all()]
        wrong += [] if all(fine) else [(at, list(map(bool, fine)))]
    tell("done", wrong=wrong, **counts)
    ah.destroy_process_group()


def _count_steps(chance: random.Random, handed: float) -> Counter[str]:
    """Hand some steps over; count what runs here, and what goes on on the loop."""
    counts = Counter(here=0, first=0, later=0)

    def can_run(self: GroupEngine, request: CollectiveRequest, limits: InlineLimits) -> bool:
        return chance.random() >= handed and _can_run(self, request, limits)

    def run_step(self: CompositeRun, *arguments: Any) -> bool:
        seconds = 0.0 if chance.random() < handed else arguments[-1]
        return bool(_run_step(self, *arguments[:-1], seconds))

    def run_first(self: LinkCalls, *arguments: Any) -> Any:
        seconds = 0.0 if chance.random() < handed else arguments[-1]
        return _run_first(self, *arguments[:-1], seconds)

    async def run(self: CompositeRun) -> None:
        counts["first" if self._step is None else "later"] += 1
        await _run(self)

    def finish(self: CompositeState) -> Any:
        counts["ended"] += 1
        return _finish(self)

    GroupEngine.can_run_step_inline = can_run  # type: ignore[method-assign]
    CompositeRun._run_step_here = run_step  # type: ignore[method-assign, assignment]
    LinkCalls.run_here = run_first  # type: ignore[method-assign, assignment]
    CompositeRun.run = run  # type: ignore[method-assign]
    CompositeState.finish = finish  # type: ignore[method-assign]
    return counts


def _watch_beginnings(counts: Counter[str]) -> None:
    """Count calls that peers are heard in before this rank waits to hear them.

    Once a call is matched with theirs it has to begin before the loop has its turn.
    """
    begun: set[int] = set()

    def match(self: Watchdog, operation: Operation) -> bool:
        def check() -> None:
            counts["not_begun"] += operation.work.sequence not in begun

        asyncio.get_running_loop().call_soon(check)
        return _match(self, operation)

    def note(begin: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: LinkCalls, operation: Operation, *how: Any) -> Any:
            begun.add(operation.work.sequence)
            return begin(self, operation, *how)

        return noted

    _match = Watchdog.begin_matching
    Watchdog.begin_matching = match  # type: ignore[method-assign]
    for name in ("run_here", "go_on"):
        setattr(LinkCalls, name, note(getattr(LinkCalls, name)))
    later: Any = CallQueue.run_later_steps
    CallQueue.run_later_steps = note(later)  # type: ignore[method-assign]
    phases: Any = CallRunner._run_phases  # which hear all ranks first
    CallRunner._run_phases = note(phases)  # type: ignore[method-assign]


LARGE = 1000
"""Elements of an array that is not packed into the first step of a call."""


def be_held_up_between_steps(seconds: float, goes_on: bool = False) -> None:
    """Have rank 1 come to the second step of a call when the test says so."""
    ah.init_process_group(backend="socket", timeout=20)
    me = ah.get_rank()
    for _ in range(3):
        ah.all_gather_v(np.ones(LARGE + me))
    if me == 1:
        CompositeState.advance = _hold_second_step()  # type: ignore[method-assign]
    said = failure(lambda: ah.all_gather_v(np.ones(LARGE + me), timeout=seconds))
    CompositeState.advance = _advance  # type: ignore[method-assign]
    tell("ended", **said)
    if goes_on:
        found = ah.all_gather_v(np.ones(LARGE + me))
        tell("lengths", lengths=[len(one) - LARGE for one in found])
        ah.destroy_process_group()


def _hold_second_step() -> Any:
    calls = 0

    def advance(self: CompositeState) -> Step | None:
        nonlocal calls
        calls += 1
        if calls == 2:
            tell("between")
            hear()
        return _advance(self)

    return advance


@dataclass
class Known:
    """A kind of objects that not all ranks register."""

    x: int


def receive_unknown_objects(runs_here: bool) -> None:
    """Receive objects of which some ranks know the class."""
    ah.init_process_group(backend="socket", timeout=10)
    n, me = ah.get_world_size(), ah.get_rank()
    found: list[Any] = [None] * n
    for _ in range(5):
        ah.all_gather_object(found, me)
    if me == 0:
        ah.register_dataclass(Known)
    if not runs_here:
        GroupEngine.can_run_step_inline = lambda *_: False  # type: ignore[method-assign]
    said = failure(lambda: ah.all_gather_object(found, Known(7) if me == 0 else me))
    ah.all_reduce(x := np.ones(1))
    tell("done", sum=x[0], **said)
    ah.destroy_process_group()
