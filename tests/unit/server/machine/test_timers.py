"""Timers: in order, cancelled ones never."""

from collections.abc import Callable

from allhands_server.machine.effects import Effect, OperatorLog
from allhands_server.machine.timers import Action, TimerQueue


def reports(text: str) -> Action:
    def act(now: float) -> list[Effect]:
        return [OperatorLog(f"{text} at {now:g}")]

    return act


def test_what_is_due_runs_in_the_order_of_time_then_of_making() -> None:
    timers = TimerQueue()
    timers.schedule(2.0, reports("second"))
    timers.schedule(1.0, reports("first"))
    timers.schedule(2.0, reports("third"))
    timers.schedule(4.0, reports("later"))
    assert timers.run_due(3.0) == [
        OperatorLog(f"{text} at 3") for text in ("first", "second", "third")
    ]
    assert timers.next_due == 4.0


def test_what_was_cancelled_neither_runs_nor_is_due() -> None:
    timers = TimerQueue()
    timers.schedule(1.0, reports("never")).cancel()
    assert timers.next_due is None
    assert timers.run_due(9.0) == []


def test_an_action_may_make_and_cancel_appointments() -> None:
    timers = TimerQueue()
    doomed = timers.schedule(2.0, reports("never"))

    def act(now: float) -> list[Effect]:
        doomed.cancel()
        timers.schedule(now, reports("at once"))
        return []

    timers.schedule(1.0, act)
    assert timers.run_due(5.0) == [OperatorLog("at once at 5")]


def test_cancelling_is_idempotent_also_after_the_action_ran() -> None:
    timers = TimerQueue()
    done = timers.schedule(1.0, reports("done"))
    timers.run_due(1.0)
    done.cancel()
    cancel: list[Callable[[], None]] = [timers.schedule(2.0, reports("no")).cancel] * 2
    for call in cancel:
        call()
    timers.schedule(3.0, reports("yes"))
    assert timers.run_due(3.0) == [OperatorLog("yes at 3")]


def test_cancelled_appointments_do_not_pile_up() -> None:
    timers = TimerQueue()
    kept = timers.schedule(1e9, reports("kept"))
    for n in range(10_000):
        timers.schedule(30.0 + n, reports("no")).cancel()
    assert len(timers._heap) < 300
    assert timers.next_due == kept.due
