"""Tracebacks of failed calls: the caller's frames and at most one of the package."""

from collections.abc import Callable
from typing import Any

import pytest

from programs import tracebacks
from support.ranks.processes import BACKENDS, Job

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def collect(job: Job, program: Callable[[], None], **environment: str) -> dict[str, Any]:
    """Return what rank 0 says about its calls, by their names."""
    ranks = job(2, program, **environment)
    told: dict[str, Any] = ranks[0].expect("done")["calls"]
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0], ranks[0].errors
    return told


@each_backend
def test_failed_calls_show_one_frame_of_the_package_at_most(job: Job, backend: str) -> None:
    told = collect(job, tracebacks.fail_alone)
    assert len(told) == 18
    for name, one in told.items():
        assert len(one["frames"]) <= 1, name
        assert all(frame.startswith("allhands.") for frame in one["frames"]), name
        assert one["behind"] == [], name


@each_backend
def test_failed_awaited_calls_show_one_frame_of_the_package_at_most(job: Job, backend: str) -> None:
    told = collect(job, tracebacks.fail_awaited)
    assert len(told) == 4
    for name, one in told.items():
        assert len(one["frames"]) == 1, name
        assert one["frames"][0].startswith("allhands.aio."), name
        assert one["behind"] == [], name


def test_all_frames_are_kept_where_that_is_asked_for(job: Job) -> None:
    told = collect(job, tracebacks.fail_alone, ALLHANDS_TRACEBACKS="full")
    for name in ("all_reduce", "irecv", "all_gather_v", "control", "not an array"):
        assert len(told[name]["frames"]) > 1, name
    assert any(frame.startswith("allhands.engine.") for frame in told["all_reduce"]["frames"])
    assert told["store"]["behind"]


def test_frames_of_functions_of_the_user_and_errors_around_the_call_are_kept(job: Job) -> None:
    told = [rank.expect("done") for rank in job(2, tracebacks.fail_in_function_of_user)]
    # Which of the two combines first is open: the other one may hear of that before it combines.
    assert {one["error"] for one in told} <= {"LookupError", "GroupAborted"}
    failed = [one for one in told if one["error"] == "LookupError"]
    assert failed
    for one in failed:
        assert one["frames"][0].startswith("allhands.api.")
        assert one["frames"][-1] == "programs.tracebacks"
        assert not any(frame.startswith("allhands.") for frame in one["frames"][1:])
        assert "programs.tracebacks" in one["behind"]  # the KeyError that was handled
