"""The flight recorder of whole jobs: every way of a call, diagnose, trace, stragglers, dumps."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from programs import recorded as programs
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Job, Process


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_every_way_of_a_call_is_recorded_with_its_line(job: Job, backend: str) -> None:
    ways = {
        "fast": "all_reduce",
        "queued": "all_reduce",
        "prepared": "all_reduce",
        "method": "barrier",
        "list": "all_gather",
        "message": "",
        "later": "",
        "mailed": "",
        "awaited": "all_reduce",
    }
    functions = {**dict(zip(ways, ways, strict=True)), "list": "list_of_arrays"}
    for rank, process in enumerate(job(2, programs.call_every_way, backend)):
        told = process.expect("recorded")
        found = {one["label"]: one for one in told["records"] if one["label"]}
        assert list(found) == list(ways), "each once, in their order"
        for way, one in found.items():
            operation = ways[way] or ("i" if way == "later" else "") + ("send", "recv")[rank]
            assert one["operation"].removeprefix("i") == operation.removeprefix("i"), one
            assert (one["line"], one["function"]) == (told["lines"][way], functions[way]), one
            assert one["outcome"] == "ok"
            assert one["ordered"], one
            assert ("shared memory" in one["how"]) == (backend == "auto") or not one["how"], one
            if one["sequence"]:
                assert one["where"] == one["source"], one
        numbers = [one["sequence"] for one in told["records"] if one["sequence"]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert found["fast"]["nbytes"] == 16
        assert found["mailed"]["nbytes"] == 16
        peer = f"{('to', 'from')[rank]} rank {1 - rank}"
        assert f"float32[4], {peer}, tag 0" in found["mailed"]["signature"]
        assert found["fast"]["signature"] == "all_reduce(float32[4], SUM)"
        assert process.ended() == 0


def test_the_recorder_can_be_sized_and_turned_off(job: Job) -> None:
    for size, expected in (("64", list(range(207, 271))), ("0", [])):
        for process in job(2, programs.call_often, ALLHANDS_RECORDER_SIZE=size):
            assert process.expect("recorded")["numbers"] == expected
            assert process.ended() == 0


# ---------------------------------------------------------------- looked at from outside


def command(cluster: Cluster, *arguments: str) -> str:
    """Run a command of `allhands` beside the job; return the output."""
    child = cluster.fork_server.start(
        module="allhands.cli.main", arguments=list(arguments), environment=cluster.environment
    )
    said = child.stdout.read()
    errors = child.stderr.read()
    assert child.wait(PATIENCE) == 0, errors
    for pipe in (child.stdin, child.stdout, child.stderr):
        pipe.close()
    return said


def diagnosis(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(cluster, "diagnose", "job", "-o", "json"))
    return found


def refused(cluster: Cluster, *arguments: str) -> str:
    """Run a failing command of `allhands`; return the error line."""
    child = cluster.fork_server.start(
        module="allhands.cli.main", arguments=list(arguments), environment=cluster.environment
    )
    with child.stdin, child.stdout, child.stderr:
        errors = child.stderr.read()
        assert child.wait(PATIENCE) == 1, errors
    return errors


def in_place(ranks: list[Process]) -> None:
    for rank in ranks:
        rank.expect("in place")


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_diagnose_names_who_is_where_and_who_is_behind(
    cluster: Cluster, job: Job, backend: str
) -> None:
    in_place(job(3, programs.get_stuck, backend == "auto"))
    while True:  # nothing tells when a call that never ends has begun
        found = diagnosis(cluster)
        if all(rank["waits"] and rank["waits"][0]["waits_for"] for rank in found["ranks"][1:]):
            break
    [world] = [one for one in found["groups"] if one["group"] == "world"]
    assert world["positions"] == [
        {"sequence": 3, "operation": "all_reduce", "ranks": [1, 2]},
        {"sequence": 2, "operation": "", "ranks": [0]},
    ]
    assert world["behind"] == [0]
    idle, *waiting = found["ranks"]
    assert idle["waits"] == []
    assert idle["last"].startswith("all_reduce #2 of group world at ")
    assert idle["last"].endswith("in get_stuck")
    assert idle["idle_seconds"] > 0
    assert "in busy" in idle["stack"]
    for rank in waiting:
        [wait] = rank["waits"]
        assert (wait["sequence"], wait["label"]) == (3, "grad")
        assert wait["source"].endswith(" in step")
        assert wait["signature"] == "all_reduce(float32[4], SUM)"
        assert 0 in wait["waits_for"]
    shown = command(cluster, "diagnose")
    assert (
        "group world: ranks 1-2 are in all_reduce #3, rank 0 is in none, after #2; behind: rank 0"
        in shown
    )
    assert "in busy" in shown


def test_diagnose_names_who_is_silent_and_who_is_in_another_operation(
    cluster: Cluster, job: Job
) -> None:
    ranks = job(4, programs.get_stuck, False)
    in_place(ranks)
    while not diagnosis(cluster)["ranks"][3]["waits"]:
        pass  # nothing tells when a call that never ends has begun
    ranks[1].child.send_signal(signal.SIGSTOP)
    found = diagnosis(cluster)
    assert found["ranks"][1]["absence"] == "it did not answer within 2 s"
    assert [one["absence"] for one in (found["ranks"][0], *found["ranks"][2:])] == ["", "", ""]
    [wait] = found["ranks"][3]["waits"]
    assert (wait["operation"], wait["label"]) == ("barrier", "odd")
    ranks[1].child.send_signal(signal.SIGCONT)


def test_a_straggler_of_50_ms_among_8_is_ranked_first_within_20_operations(
    cluster: Cluster, job: Job
) -> None:
    ranks = job(8, programs.straggle)
    in_place(ranks)
    found = diagnosis(cluster)
    first, second, *_ = found["stragglers"]
    assert (first["rank"], first["group"], first["calls"]) == (5, "world", 20)
    assert first["median_seconds"] > second["median_seconds"]
    assert first["last"] > 10
    assert sorted(one["rank"] for one in found["stragglers"]) == list(range(8))
    [status] = json.loads(command(cluster, "status", "job", "-o", "json"))["jobs"]
    late = {one["rank"]: one["lateness"][0]["median_seconds"] for one in status["members"]}
    assert max(late, key=late.__getitem__) == 5
    shown = command(cluster, "status", "job").splitlines()
    assert shown[2].split()[-1] == "LATE"
    assert shown[8].split()[-1] == "ms", shown[8]
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0


def test_a_trace_shows_all_ranks_on_one_clock(cluster: Cluster, job: Job, tmp_path: Path) -> None:
    ranks = job(2, programs.call_ten_times)
    begun = [rank.expect("in place")["begun"] for rank in ranks]
    path = tmp_path / "trace.json"
    said = command(cluster, "trace", "job", "-o", str(path))
    assert "22 operations of 2 ranks" in said
    events = json.loads(path.read_text())["traceEvents"]
    shown = [one for one in events if one["ph"] == "X" and one["args"]["label"]]
    assert len(shown) == 20
    at = {(one["pid"], one["args"]["label"]): one["ts"] / 1e6 for one in shown}
    for label in (f"call {number}" for number in range(10)):
        # One host, one clock: what lies between the ranks is what they themselves saw.
        between = (begun[1][label] - begun[0][label]) / 1e9
        assert at[1, label] - at[0, label] == pytest.approx(between, abs=1e-6)
    assert {one["args"]["source"].rpartition(" in ")[2] for one in shown} == {"call_ten_times"}
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0


# ---------------------------------------------------------------- dumps


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_what_failed_is_dumped_when_that_was_asked_for(
    job: Job, backend: str, tmp_path: Path
) -> None:
    folder = tmp_path / "dumps"
    ranks = job(2, programs.call_alone, ALLHANDS_DUMP_ON_FAILURE=str(folder))
    assert ranks[0].expect("failed")["error"] == "CollectiveTimeout"
    ranks[0].expect("over")
    [path] = folder.iterdir()
    assert path.name == "allhands-job-rank0.json"
    said = json.loads(path.read_text())
    assert (said["error"], said["job"], said["rank"]) == ("CollectiveTimeout", "job", 0)
    last = said["records"][-1]
    assert (last["label"], last["outcome"]) == ("lonely", "timeout")
    assert last["source"].endswith("in <lambda>")
    ranks[1].say()
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0
