"""Rates of calls of jobs and clients."""

import pytest

from allhands_server.machine.call_rates import CallRates
from allhands_server.machine.refusals import Refused, Status
from allhands_server.resource_limits import ResourceLimits

_LONG = 1e9


def refuse(rates: CallRates, job: str, client: str, patience: float, now: float) -> Refused:
    with pytest.raises(Refused) as caught:
        rates.admit(job, client, patience, now)
    assert caught.value.refusal.status is Status.RESOURCE_EXHAUSTED
    return caught.value


def test_without_limits_nothing_is_limited() -> None:
    rates = CallRates(ResourceLimits())
    assert not rates.is_limited
    assert {rates.admit("j", "c", _LONG, 0.0) for _ in range(10_000)} == {0.0}


def test_calls_of_a_second_are_carried_out_at_once_and_the_next_are_slowed() -> None:
    rates = CallRates(ResourceLimits(client_rate=10))
    assert rates.is_limited
    assert [rates.admit("j", "c", _LONG, 5.0) for _ in range(10)] == [0.0] * 10
    assert rates.admit("j", "c", _LONG, 5.0) == pytest.approx(0.1)
    assert rates.admit("j", "c", _LONG, 5.0) == pytest.approx(0.2)
    assert rates.admit("j", "c", _LONG, 5.2) == pytest.approx(0.1)


def test_a_client_that_pauses_has_its_calls_again_and_no_more() -> None:
    rates = CallRates(ResourceLimits(client_rate=10))
    for _ in range(10):
        rates.admit("j", "c", _LONG, 0.0)
    assert [rates.admit("j", "c", _LONG, 100.0) for _ in range(10)] == [0.0] * 10
    assert rates.admit("j", "c", _LONG, 100.0) > 0


def test_clients_and_jobs_have_rates_of_their_own() -> None:
    rates = CallRates(ResourceLimits(client_rate=1, job_rate=2))
    assert rates.admit("j", "a", _LONG, 0.0) == 0.0
    assert rates.admit("j", "b", _LONG, 0.0) == 0.0
    assert rates.admit("j", "c", _LONG, 0.0) == pytest.approx(0.5)  # of the job
    assert rates.admit("k", "d", _LONG, 0.0) == 0.0
    assert rates.admit("k", "d", _LONG, 0.0) == pytest.approx(1.0)  # of the client


def test_what_would_be_slowed_for_long_is_refused_with_the_time_to_come_again() -> None:
    rates = CallRates(ResourceLimits(job_rate=2))
    for _ in range(4):
        rates.admit("j", "c", _LONG, 0.0)
    refused = refuse(rates, "j", "c", _LONG, 0.0)
    assert refused.refusal.retry_after == pytest.approx(1.5)
    assert "job j makes more than 2 calls a second" in str(refused)
    assert "--limit job-rate=NUMBER" in str(refused)
    refuse(rates, "j", "other", _LONG, 0.0)  # refused calls take nothing of the rate
    assert rates.admit("j", "c", _LONG, 1.5) == pytest.approx(0.0)


def test_a_call_is_refused_that_could_not_wait_as_long() -> None:
    rates = CallRates(ResourceLimits(client_rate=2))
    for _ in range(2):
        rates.admit("j", "ipv4:1", _LONG, 0.0)
    refused = refuse(rates, "j", "ipv4:1", 0.4, 0.0)
    assert "ipv4:1 makes more than 2" in str(refused)
    assert rates.admit("j", "ipv4:1", 0.6, 0.0) == pytest.approx(0.5)


def test_names_are_forgotten_whose_calls_are_long_past() -> None:
    rates = CallRates(ResourceLimits(client_rate=1))
    for number in range(10_000):
        rates.admit("j", f"c{number}", _LONG, number * 0.01)
    assert rates._clients is not None
    assert len(rates._clients) <= 1_000
