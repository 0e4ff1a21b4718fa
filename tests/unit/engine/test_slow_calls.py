"""Warnings about blocked calls: the thresholds, and the warnings over links."""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from allhands.engine import watchdog
from allhands.engine.failures import slow_calls
from allhands.engine.failures.slow_calls import (
    MAX_PATIENCE,
    MIN_PATIENCE,
    compute_patience,
    describe_deadline,
)
from allhands.testing.inproc_world import inproc_world, wait_outcomes, wait_results


def test_without_a_history_the_longest_patience_counts() -> None:
    assert compute_patience([]) == MAX_PATIENCE
    assert compute_patience([0.001] * 15) == MAX_PATIENCE


@pytest.mark.parametrize(
    ("waits", "wanted"),
    [
        ([0.001] * 16, MIN_PATIENCE),
        ([2.0] * 16, 2.0),  # regular, however long
        ([1.9, 2.1] * 20, 2.0 + 14.826 * 0.1),
        ([0.5] * 10 + [1.2] * 22 + [1.3] * 10, 1.2),  # most are alike
        ([0.001] * 60 + [600.0] * 4, MIN_PATIENCE),  # some checkpoints
        ([9.0] * 64, MAX_PATIENCE),
        ([1.0, 2.0, 3.0, 4.0] * 16, MAX_PATIENCE),  # so irregular that nothing can be told
    ],
)
def test_patience_is_the_median_and_a_multiple_of_its_deviations(
    waits: list[float], wanted: float
) -> None:
    assert compute_patience(waits) == pytest.approx(wanted)


def test_a_deadline_that_has_passed_is_not_in_negative_seconds() -> None:
    assert describe_deadline(1.26) == "its deadline is in 1.3 s"
    assert describe_deadline(-0.01) == "its deadline is in 0.0 s"
    assert describe_deadline(-0.1) == "its deadline passed 0.1 s ago"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "allhands")
    monkeypatch.setattr(watchdog, "PING_AFTER", 0.0025)
    monkeypatch.setattr(watchdog, "ASK_AFTER", 0.005)
    monkeypatch.setattr(slow_calls, "MAX_PATIENCE", 0.01)


async def told(caplog: pytest.LogCaptureFixture, event: str, count: int) -> list[dict[str, Any]]:
    """Poll until `count` log records of an event exist."""
    while True:
        facts = [getattr(record, "allhands", {}) for record in caplog.records]
        found = [one for one in facts if one.get("event") == event]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.001)


@pytest.mark.usefixtures("hasty")
async def test_a_blocked_call_is_told_of_again_and_again_until_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with inproc_world(3) as world:
        early = world.groups[0].barrier(label="step 7")
        first = await told(caplog, "stall", 4)
        assert {one["group"] for one in first} == {"world"}
        assert {one["operation"] for one in first} == {"barrier"}
        assert {(one["sequence"], one["label"]) for one in first} == {(1, "step 7")}
        assert [one["waiting_for"] for one in first] == [[2]] * 4
        assert all(2 * one["seconds"] <= later["seconds"] for one, later in pairwise(first))
        text = caplog.text
        assert "barrier #1 (step 7) of group 'world' at test_slow_calls.py:" in text
        assert "has been blocked for 0.0 s" in text
        assert "waiting for rank 2 (in process); its deadline is in" in text
        await wait_results([early, *(group.barrier(label="step 7") for group in world.groups[1:])])
        await told(caplog, "stall over", 1)
        assert "went on after" in caplog.text
        count, stalls = len(caplog.records), len(await told(caplog, "stall", 4))
        await world.call_on_all(lambda group: group.all_reduce(np.ones(2)))
        # Once the next call is told of, so would be calls that are over.
        early = world.groups[0].barrier(label="step 8")
        await told(caplog, "stall", stalls + 3)
        later = [getattr(record, "allhands", {}) for record in caplog.records[count:]]
        assert {one.get("label") for one in later} == {"step 8"}
        await wait_results([early, *(group.barrier(label="step 8") for group in world.groups[1:])])


@pytest.mark.usefixtures("hasty")
async def test_a_call_that_fails_is_told_of_by_its_error(caplog: pytest.LogCaptureFixture) -> None:
    async with inproc_world(2) as world:
        work = world.groups[0].barrier(timeout=0.2)
        await told(caplog, "stall", 1)
        await wait_outcomes([work])
        assert "went on" not in caplog.text
