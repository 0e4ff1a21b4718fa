"""Later steps of a composite call: what ends on the caller's thread is not made again elsewhere."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from allhands.collectives.buffer import Buffer
from allhands.collectives.composite_call import CompositeState, Step
from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.schedule import Schedule
from allhands.engine.hosts.composite_runner import CompositeRun

STEPS = 3
_NOTHING = Buffer([], np.dtype(np.uint8))
NO_MESSAGES = Part(Schedule(()), _NOTHING, _NOTHING)


class State:
    """A call of steps that are made by their numbers."""

    def __init__(self) -> None:
        self.at = 0

    def advance(self) -> Step | None:
        self.at += 1
        request = CollectiveRequest("barrier")
        return None if self.at > STEPS else Step(request, lambda rank, size: [NO_MESSAGES])

    def finish(self) -> str:
        return "result"


class Steps:
    """Steps as the core and the loop make them, written down in their order."""

    sequence, signature, has_memory = 7, 1, False

    def __init__(self, ends_here: Callable[[int], bool]) -> None:
        self.means = SimpleNamespace(ranks=(0, 1), rank=0)
        self.made: list[tuple[str, int]] = []
        self._ends_here = ends_here

    async def negotiate(self) -> None:
        pass

    def make_execution(
        self, ranks: object, rank: int, op: object, number: int, eager_bytes: int
    ) -> Any:
        def begin(parts: list[Part], remainder: object = None) -> None:
            self.made.append(("goes on" if remainder else "loop", number))
            execution.completion.set_result(None)

        execution = SimpleNamespace(first_part=number, begin=begin, stop=lambda: None)
        execution.completion = asyncio.get_running_loop().create_future()
        return execution

    def begin(self, part: Part, op: object, sequence: int, signature: int, number: int) -> Any:
        def run(is_interrupted: object, seconds: float) -> bool:
            self.made.append(("here", number))
            return self._ends_here(number)

        return SimpleNamespace(run=run, withdraw=lambda: "what is left", give_back=lambda: None)


class JobThread:
    """Runs jobs at once."""

    async def run(self, act: Callable[[], Any]) -> Any:
        return act()


async def run_all(
    steps: Steps, is_interrupted: Callable[[], bool], may_run: Callable[[], bool] = lambda: True
) -> bool:
    """Run the steps here, and what is left of them on the loop; say whether nothing was."""
    state = cast(CompositeState, State())
    run = CompositeRun(cast(Any, steps), state, cast(Any, JobThread()), deterministic=False)
    if run.run_here(cast(Any, steps), lambda _: may_run(), is_interrupted, 0.002):
        return True
    await run.run()
    assert run.result == "result"
    return False


def test_steps_that_end_here_leave_nothing_to_the_loop() -> None:
    steps = Steps(lambda _: True)
    assert asyncio.run(run_all(steps, lambda: False))
    assert steps.made == [("here", 1), ("here", 2), ("here", 3)]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_step_goes_on_from_where_it_is_and_the_next_ones_on_the_loop(at: int) -> None:
    steps = Steps(lambda number: number != at)
    ended = asyncio.run(run_all(steps, lambda: False))
    here = [("here", number) for number in range(1, at + 1)]
    later = [number for kind, number in steps.made if kind == "loop"]
    assert steps.made[: at + 1] == [*here, ("goes on", at)]
    # What goes on ends at once in this test, so that the next steps are made here again.
    assert (ended, later) == (True, [])


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_step_that_has_ended_as_the_call_is_interrupted_is_not_made_again(at: int) -> None:
    steps = Steps(lambda _: True)
    assert not asyncio.run(run_all(steps, lambda: len(steps.made) == at))
    later = [("loop", number) for number in range(at + 1, STEPS + 1)]
    assert steps.made == [*(("here", number) for number in range(1, at + 1)), *later]


def test_a_step_that_may_not_run_here_is_begun_on_the_loop() -> None:
    steps = Steps(lambda _: True)
    assert not asyncio.run(run_all(steps, lambda: False, lambda: len(steps.made) < 1))
    assert steps.made == [("here", 1), ("loop", 2), ("loop", 3)]
