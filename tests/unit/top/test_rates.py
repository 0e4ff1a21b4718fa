"""Calls a second, from the numbers in successive statuses."""

from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.top.rates import HISTORY, WINDOW_SECONDS, CallRates
from allhands_proto.statuses import GroupStatus, OperationStatus


def make_job(calls: int, incarnation: str = "first", group: str = "world") -> JobStatus:
    progress = OperationStatus(group, "", calls, calls, 0.0)
    member = MemberStatus(0, "m0", "a", 1, "a:1", "", "joined", "", 0.1, (progress,))
    groups = (GroupStatus(group, (0,)),)
    return JobStatus("job", "running", 1, 1, (member,), groups, 10.0, 0, incarnation)


def test_a_rate_needs_two_statuses_and_is_a_mean_over_the_window() -> None:
    rates = CallRates()
    rates.add(100.0, [make_job(1000)])
    assert rates.get_rate(make_job(1000), "world") is None
    rates.add(102.0, [make_job(1400)])
    assert rates.get_rate(make_job(1400), "world") == 200.0
    for second in range(1, 20):
        rates.add(102.0 + second, [make_job(1400)])
    assert rates.get_rate(make_job(1400), "world") == 0.0, f"none for {WINDOW_SECONDS} s and more"


def test_numbers_that_begin_anew_are_no_negative_rate() -> None:
    rates = CallRates()
    rates.add(1.0, [make_job(500)])
    rates.add(2.0, [make_job(3)])
    rates.add(3.0, [make_job(13)])
    assert rates.get_rate(make_job(13), "world") == 10.0


def test_a_new_incarnation_of_a_job_is_another_job() -> None:
    rates = CallRates()
    rates.add(1.0, [make_job(0)])
    rates.add(2.0, [make_job(10)])
    again = make_job(500, incarnation="second")
    rates.add(3.0, [again])
    assert rates.get_rate(again, "world") is None
    assert rates.get_history(make_job(10), "world") == (), "what is gone is forgotten"


def test_the_history_is_bounded() -> None:
    rates = CallRates()
    for second in range(3 * HISTORY):
        rates.add(float(second), [make_job(second)])
    assert rates.get_history(make_job(0), "world") == (1.0,) * HISTORY
