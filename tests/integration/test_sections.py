"""Sections of real ranks: in errors, diagnoses, statuses and traces."""

import json
from pathlib import Path

import pytest

from programs import sections
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Job


def command(cluster: Cluster, *arguments: str) -> str:
    """Run a command of `allhands` beside the job; return the output."""
    child = cluster.fork_server.start(
        module="allhands.cli.main", arguments=list(arguments), environment=cluster.environment
    )
    with child.stdin, child.stdout, child.stderr:
        said, errors = child.stdout.read(), child.stderr.read()
        assert child.wait(PATIENCE) == 0, errors
    return said


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_the_section_of_a_rank_is_named_everywhere(
    cluster: Cluster, job: Job, tmp_path: Path
) -> None:
    ranks = job(2, sections.load_while_others_wait)
    error = ranks[1].expect("error")
    assert error["error"] == "CollectiveTimeout"
    assert "is busy in section 'epoch/load' for " in error["text"]
    assert ": alive, but in no call" in error["text"]
    assert error["verdict"]["absent"][0]["section"] == "epoch/load"
    for rank in ranks:
        rank.expect("in place")

    found = json.loads(command(cluster, "diagnose", "job", "-o", "json"))
    assert found["ranks"][0]["section"] == "epoch/load"
    assert found["ranks"][0]["section_elapsed_seconds"] > 0
    assert found["ranks"][1]["section"] == "epoch"
    assert " is outside any operation, in section epoch/load" in command(cluster, "diagnose")

    [status] = json.loads(command(cluster, "status", "job", "-o", "json"))["jobs"]
    assert status["members"][0]["section"] == "epoch/load"
    assert "section epoch/load" in command(cluster, "status")

    said = command(cluster, "trace", "job", "-o", str(tmp_path / "trace.json"))
    assert "and 3 sections of 2 ranks" in said
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [(one["pid"], one["name"]) for one in events if one.get("cat") == "sections"]
    assert slices == [(0, "epoch"), (0, "epoch/load"), (1, "epoch")]
    for rank in ranks:
        rank.say("go on")
        assert rank.ended() == 0, "".join(rank.errors)
