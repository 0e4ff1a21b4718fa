"""`allhands events`: what has happened to a job, as text and JSON, and as it comes."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allhands import errors
from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess
from allhands.testing.raw_member import RawMember

Join = Callable[[int, int], RawMember]


def test_it_shows_arrivals_and_an_abort_with_absolute_times(
    daemon: DaemonProcess, join_job: Join, control: Control, job_name: str
) -> None:
    join_job(0, 2)
    join_job(1, 2)
    control.abort("no need", by="alice")
    done = daemon.run_command("events", job_name, "-o", "json")
    assert done.returncode == 0, done.stderr
    events: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["event"] for one in events] == ["joined", "joined", "formed", "aborted"]
    assert [one["rank"] for one in events] == [0, 1, None, None]
    assert (events[3]["by"], events[2]["epoch"], events[0]["version"]) == ("alice", 1, 1)
    at = datetime.fromisoformat(events[3]["time"])
    assert events[3]["time"].endswith("Z")
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    shown = daemon.run_command("events", job_name, "--after", "3")
    assert shown.stdout.count("\n") == 1
    assert "aborted" in shown.stdout
    assert "no need, by alice" in shown.stdout


def test_followers_see_what_comes(
    join_job: Join, control: Control, daemon: DaemonProcess, job_name: str
) -> None:
    join_job(0, 2)
    following = daemon.start_command("events", job_name, "--watch", "-o", "json")
    try:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["event"] == "joined"
        join_job(1, 2)
        assert json.loads(following.stdout.readline())["rank"] == 1
        assert json.loads(following.stdout.readline())["event"] == "formed"
    finally:
        following.kill()
        following.wait()
        assert following.stdout is not None
        following.stdout.close()
    assert [one.number for one in control.events(after=1)] == [2, 3]


def test_of_a_job_that_is_not_known_it_says_so(daemon: DaemonProcess, control: Control) -> None:
    with pytest.raises(errors.NotFound):
        control.events()
    done = daemon.run_command("events", "nothing")
    assert done.returncode == 1
    assert "there is no job 'nothing'" in done.stderr
