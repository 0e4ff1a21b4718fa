"""Appointments: in order, cancelled ones never."""

from collections.abc import Callable

from allhands_server.machine.effects import Effect, Report
from allhands_server.machine.timers import Action, Agenda


def reports(text: str) -> Action:
    def act(now: float) -> list[Effect]:
        return [Report(f"{text} at {now:g}")]

    return act


def test_what_is_due_runs_in_the_order_of_time_then_of_making() -> None:
    agenda = Agenda()
    agenda.at(2.0, reports("second"))
    agenda.at(1.0, reports("first"))
    agenda.at(2.0, reports("third"))
    agenda.at(4.0, reports("later"))
    assert agenda.run(3.0) == [Report(f"{text} at 3") for text in ("first", "second", "third")]
    assert agenda.next_due == 4.0


def test_what_was_cancelled_neither_runs_nor_is_due() -> None:
    agenda = Agenda()
    agenda.at(1.0, reports("never")).cancel()
    assert agenda.next_due is None
    assert agenda.run(9.0) == []


def test_an_action_may_make_and_cancel_appointments() -> None:
    agenda = Agenda()
    doomed = agenda.at(2.0, reports("never"))

    def act(now: float) -> list[Effect]:
        doomed.cancel()
        agenda.at(now, reports("at once"))
        return []

    agenda.at(1.0, act)
    assert agenda.run(5.0) == [Report("at once at 5")]


def test_cancelling_is_idempotent_also_after_the_action_ran() -> None:
    agenda = Agenda()
    done = agenda.at(1.0, reports("done"))
    agenda.run(1.0)
    done.cancel()
    cancel: list[Callable[[], None]] = [agenda.at(2.0, reports("no")).cancel] * 2
    for call in cancel:
        call()
    agenda.at(3.0, reports("yes"))
    assert agenda.run(3.0) == [Report("yes at 3")]


def test_cancelled_appointments_do_not_pile_up() -> None:
    agenda = Agenda()
    kept = agenda.at(1e9, reports("kept"))
    for n in range(10_000):
        agenda.at(30.0 + n, reports("no")).cancel()
    assert len(agenda._heap) < 300
    assert agenda.next_due == kept.due
