"""Turns of connections with calls: fair among jobs, and the rest of the loop in between."""

import asyncio
from collections.abc import Callable

import pytest

from allhands_server.kv.turns import Turns


class Taker:
    """A connection with so many calls, which notes each in a list that all share."""

    def __init__(self, job: str, calls: int, done: list[str]) -> None:
        self.job = job
        self.calls = calls
        self.done = done
        self.ends = 0

    def run_calls(self, most: int, until: float) -> bool:
        for _ in range(min(most, self.calls)):
            self.calls -= 1
            self.done.append(self.job)
        return self.calls > 0

    def end_turn(self) -> None:
        self.ends += 1


class BrokenTaker(Taker):
    """A connection with a call that cannot be carried out."""

    def run_calls(self, most: int, until: float) -> bool:
        super().run_calls(most, until)
        if self.calls == 0:
            raise ValueError("a call failed")
        return True


async def pass_turns(is_over: Callable[[], bool]) -> None:
    """Let the loop go on until a condition holds."""
    for _ in range(1_000_000):
        if is_over():
            return
        await asyncio.sleep(0)
    raise AssertionError("the turns do not end")


async def test_few_calls_are_carried_out_at_once_where_nobody_waits() -> None:
    done: list[str] = []
    taker = Taker("quiet", 3, done)
    Turns().run(taker)
    assert done == ["quiet"] * 3
    assert taker.ends == 1


async def test_many_calls_leave_the_loop_its_turns() -> None:
    done: list[str] = []
    turns, loud = Turns(), Taker("loud", 100_000, done)
    turns.run(loud)
    left = []
    for _ in range(3):
        await asyncio.sleep(0)
        left.append(loud.calls)
    assert left[0] > left[1] > left[2] > 0
    await pass_turns(lambda: loud.calls == 0)


async def test_a_flood_of_one_job_delays_another_by_some_calls_only() -> None:
    done: list[str] = []
    turns = Turns()
    flood = [Taker("loud", 10_000, done) for _ in range(8)]
    for taker in flood:
        turns.run(taker)
    quiet = Taker("quiet", 1, done)
    before = len(done)
    turns.run(quiet)
    await pass_turns(lambda: quiet.calls == 0)
    assert done.index("quiet") - before <= 8  # a slice of one connection
    await pass_turns(lambda: not any(taker.calls for taker in flood))


async def test_a_connection_that_is_over_has_no_turn() -> None:
    done: list[str] = []
    turns, gone = Turns(), Taker("gone", 10_000, done)
    turns.run(gone)
    other = Taker("other", 10_000, done)
    turns.run(other)
    turns.discard(gone)
    before = done.count("gone")
    await pass_turns(lambda: other.calls == 0)
    assert done.count("gone") == before


async def test_the_others_go_on_where_a_call_fails() -> None:
    done: list[str] = []
    turns = Turns()
    broken, other = BrokenTaker("broken", 64, done), Taker("other", 10_000, done)
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    turns.run(other)
    turns.run(broken)
    await pass_turns(lambda: other.calls == 0)
    assert broken.calls == 0
    assert [str(one) for one in errors] == ["a call failed"]


@pytest.mark.parametrize("calls", [1, 31, 32, 33, 1000])
async def test_every_call_is_carried_out_once(calls: int) -> None:
    done: list[str] = []
    turns, taker = Turns(), Taker("job", calls, done)
    turns.run(taker)
    await pass_turns(lambda: taker.calls == 0)
    assert len(done) == calls
