"""Commands on an ended job: the first failure, and the positions of all ranks."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allhands.testing.poll import poll_until
from programs import ended_jobs as programs
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Process, Program

LINKS_AND_MEMORY = ("auto", "socket")


def allhands(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def begin(cluster: Cluster, size: int, program: Program, *arguments: Any) -> list[Process]:
    """Start a job "j" at a daemon; return its ranks once each has made 20 calls."""
    ranks = cluster.world(size, program, *arguments, ALLHANDS_URL=f"{cluster.daemon()}/j")
    for rank in ranks:
        rank.expect("ready")
    return ranks


def status(cluster: Cluster) -> dict[str, Any]:
    [found] = json.loads(allhands(cluster, "status", "j", "-o", "json").stdout)["jobs"]
    assert isinstance(found, dict)
    return found


def diagnosed(cluster: Cluster, exit_status: int) -> dict[str, Any]:
    """Diagnose the job after the job's end."""
    poll_until(lambda: status(cluster)["state"] == "ended", PATIENCE)
    done = allhands(cluster, "diagnose", "j", "-o", "json")
    assert done.returncode == exit_status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["failed"] is (exit_status == 1)
    return found


def waiting(cluster: Cluster, ranks: set[int]) -> bool:
    """Say whether these ranks are in a call."""
    found = json.loads(allhands(cluster, "diagnose", "j", "-o", "json").stdout)
    return all(bool(one["waits"]) is (one["rank"] in ranks) for one in found["ranks"])


@pytest.mark.parametrize("backend", LINKS_AND_MEMORY)
def test_a_killed_rank_is_the_first_failure_and_the_others_are_where_they_were(
    cluster: Cluster, backend: str
) -> None:
    ranks = begin(cluster, 4, programs.lose_rank_two, backend)
    for rank in ranks:
        rank.say()
    poll_until(lambda: waiting(cluster, {0, 1, 3}), PATIENCE)
    ranks[2].child.send_signal(signal.SIGKILL)
    for rank in (0, 1, 3):
        assert ranks[rank].expect("told")["error"] == "PeerFailed"
    # A launcher gives them seconds: their answers come behind their last reports.
    poll_until(lambda: waiting(cluster, set()), PATIENCE)
    for rank in (0, 1, 3):
        ranks[rank].say()
        ranks[rank].ended()
    found = diagnosed(cluster, 1)
    first = found["failures"][0]
    assert (first["rank"], first["state"]) == (2, "dead"), found["failures"]
    [world] = [one for one in found["groups"] if one["group"] == "world"]
    assert world["positions"] == [{"sequence": 21, "operation": "all_reduce", "ranks": [0, 1, 3]}]
    assert (world["behind"], world["unknown"]) == ([], [2])
    for rank in (0, 1, 3):
        [wait] = found["ranks"][rank]["waits"]
        assert (wait["sequence"], wait["label"]) == (21, "grad")
        assert wait["source"].endswith(" in step")
    shown = allhands(cluster, "diagnose", "j").stdout
    assert shown.startswith("job j: failed; it ended ")
    assert "failed first: rank 2 (host " in shown
    assert "ranks 0-1,3 were in all_reduce #21, not known of rank 2" in shown
    assert "behind" not in shown
    assert "failed first: rank 2 (host " in allhands(cluster, "status", "j").stdout


def test_a_rank_that_raised_is_the_first_failure_with_its_error(cluster: Cluster) -> None:
    ranks = begin(cluster, 4, programs.raise_on_rank_two)
    for rank in (0, 1, 3):
        ranks[rank].say()
    poll_until(lambda: waiting(cluster, {0, 1, 3}), PATIENCE)
    ranks[2].say()
    for rank in ranks:
        assert rank.ended() != 0
    found = diagnosed(cluster, 1)
    first = found["failures"][0]
    assert (first["rank"], first["state"]) == (2, "left")
    assert "LookupError: no such row" in first["text"]
    assert "no such row" in first["traceback"]
    [world] = [one for one in found["groups"] if one["group"] == "world"]
    assert world["positions"] == [
        {"sequence": 21, "operation": "barrier", "ranks": [0, 1, 3]},
        {"sequence": 20, "operation": "", "ranks": [2]},
    ]
    assert found["ranks"][2]["last"].startswith("all_reduce #20 of group world at ")


def test_a_rank_that_left_before_a_call_of_the_others_is_the_first_failure(
    cluster: Cluster,
) -> None:
    ranks = begin(cluster, 3, programs.leave_on_rank_two)
    for rank in (0, 1):
        ranks[rank].say()
    poll_until(lambda: waiting(cluster, {0, 1}), PATIENCE)
    ranks[2].say()
    assert ranks[2].ended() == 0
    for rank in (0, 1):
        assert ranks[rank].ended() != 0
    first, second, *_ = diagnosed(cluster, 1)["failures"]
    assert (first["rank"], first["state"]) == (2, "left")
    assert "left the job after #20 of group 'world'" in first["text"]
    assert second["rank"] in (0, 1)


def test_an_abort_from_outside_is_the_first_failure(cluster: Cluster) -> None:
    ranks = begin(cluster, 2, programs.block_on_rank_one)
    ranks[1].say()
    poll_until(lambda: waiting(cluster, {1}), PATIENCE)
    assert allhands(cluster, "abort", "j", "--reason", "tired").returncode == 0
    ranks[1].ended()
    ranks[0].child.send_signal(signal.SIGKILL)
    first = diagnosed(cluster, 1)["failures"][0]
    assert (first["rank"], first["state"]) == (None, "aborted")
    assert first["text"].endswith(": tired")


def test_of_a_job_that_ended_well_diagnose_says_so_and_trace_writes_its_calls(
    cluster: Cluster, tmp_path: Path
) -> None:
    ranks = begin(cluster, 2, programs.end_well)
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0
    found = diagnosed(cluster, 0)
    assert found["failures"] == []
    assert [one["gone"] for one in found["ranks"]] == ["left", "left"]
    assert allhands(cluster, "diagnose").stdout.startswith("job j: ended well; it ended ")
    path = tmp_path / "trace.json"
    done = allhands(cluster, "trace", "j", "-o", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    events = json.loads(path.read_text())["traceEvents"]
    steps = [one["pid"] for one in events if one["ph"] == "X" and one["args"]["label"] == "step"]
    assert sorted(steps) == [0] * 20 + [1] * 20
    done = allhands(cluster, "trace", "j", "-o", str(path), "--last", "3")
    assert "6 operations of 2 ranks" in done.stdout


def test_a_trace_of_nothing_is_refused_and_leaves_the_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    ranks = cluster.world(2, programs.exit_without_a_call, ALLHANDS_URL=f"{cluster.daemon()}/j")
    for rank in ranks:
        rank.ended()
    path = tmp_path / "trace.json"
    path.write_text("an earlier one")
    poll_until(lambda: status(cluster)["state"] == "ended", PATIENCE)
    for job in ("j", "k"):
        done = allhands(cluster, "trace", job, "-o", str(path))
        assert done.returncode == 1
        assert f"job '{job}'" in done.stderr
        assert path.read_text() == "an earlier one"
    assert list(tmp_path.glob(".trace*")) == []


def test_of_a_job_that_nobody_knows_it_is_said_who_was_asked(cluster: Cluster) -> None:
    url = cluster.daemon()
    for command in ("diagnose", "trace"):
        done = allhands(cluster, command, "gone")
        assert done.returncode == 1
        assert f"the coordinator at {url.removeprefix('ah://')} was asked" in done.stderr
        assert "ALLHANDS_DUMP_ON_FAILURE" in done.stderr


def test_what_members_went_on_from_is_no_failure_of_the_job(cluster: Cluster) -> None:
    url = f"{cluster.daemon()}/j"
    ranks = cluster.world(3, programs.go_on_without_rank_one, ALLHANDS_URL=url)
    for rank in ranks:
        rank.expect("ready")
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, -signal.SIGKILL, 0]
    assert diagnosed(cluster, 0)["failures"] == []
