"""The flight recorder of whole jobs: every way of a call, diagnose, trace, stragglers, dumps."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Job, Process

EVERY_WAY = """
import asyncio, inspect
from allhands import aio
ah.init_process_group(timeout=30)
me = ah.get_rank()
x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
lines = {}

def line(way):
    '''Note the line of the caller under the name of a way of calling.'''
    lines[way] = inspect.currentframe().f_back.f_lineno

def fast():
    line("fast"); ah.all_reduce(x, label="fast")
def queued():
    line("queued"); ah.all_reduce(x, async_op=True, label="queued").wait()
def prepared():
    call = ah.all_reduce_init(x, label="prepared")
    line("prepared"); call.start()
    call.wait()
def method():
    line("method"); ah.default_group().barrier(label="method").wait()
def list_of_arrays():
    line("list"); ah.all_gather([y, y.copy()], x, label="list")
def message():
    if me == 0:
        line("message"); ah.send(x, 1, label="message")
    else:
        line("message"); ah.recv(y, 0, label="message")
def later():
    if me == 0:
        line("later"); ah.isend(x, 1, tag=3, label="later").wait()
    else:
        line("later"); ah.irecv(y, 0, tag=3, label="later").wait()
async def awaited():
    group = aio.AsyncGroup(ah.default_group())
    line("awaited"); await group.all_reduce(x, label="awaited")

def settled():
    '''Let messages find their way: before, they take another one.'''
    (ah.send if me == 0 else ah.recv)(y, 1 - me)
    if BACKEND == "auto":
        until(lambda: ah.default_group().order.p2p is not None)
def mailed():
    if me == 0:
        line("mailed"); ah.send(x, 1, label="mailed")
    else:
        line("mailed"); ah.recv(y, 0, label="mailed")

ah.barrier()
fast(); queued(); prepared(); method(); list_of_arrays(); message(); later()
settled(); mailed()
asyncio.run(awaited())
where = ah.default_group().submitter.engine._failures.find_call_site
tell("recorded", lines=lines, records=[
    {"label": one.label, "line": one.line, "function": one.function, "file": one.file,
     "outcome": one.outcome, "operation": one.operation, "sequence": one.sequence,
     "nbytes": one.nbytes, "how": one.how, "signature": one.signature,
     "ordered": one.created <= one.started <= one.finished, "source": one.source,
     "where": where(one.sequence) if one.sequence else ""}
    for one in ah.flight_recorder()
])
ah.destroy_process_group()
"""


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
    for rank, process in enumerate(job(2, EVERY_WAY.replace("BACKEND", repr(backend)))):
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
    script = """
    ah.init_process_group()
    x = np.zeros(1)
    for _ in range(200):
        ah.all_reduce(x)
    for _ in range(70):
        ah.all_reduce(x, async_op=True).wait()
    tell("recorded", numbers=[one.sequence for one in ah.flight_recorder()])
    ah.destroy_process_group()
    """
    for size, expected in (("64", list(range(207, 271))), ("0", [])):
        for process in job(2, script, ALLHANDS_RECORDER_SIZE=size):
            assert process.expect("recorded")["numbers"] == expected
            assert process.ended() == 0


# ---------------------------------------------------------------- looked at from outside


def command(cluster: Cluster, *arguments: str) -> str:
    """Run a command of `allhands` beside the job; return what it wrote."""
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
    """Run a command of `allhands` that must fail; return its line of error."""
    child = cluster.fork_server.start(
        module="allhands.cli.main", arguments=list(arguments), environment=cluster.environment
    )
    with child.stdin, child.stdout, child.stderr:
        errors = child.stderr.read()
        assert child.wait(PATIENCE) == 1, errors
    return errors


STUCK = """
ah.init_process_group(timeout=60)
me, x = ah.get_rank(), np.ones(4, np.float32)
ah.all_reduce(x)
if ASYNC:
    ah.all_reduce(x, async_op=True).wait()
else:
    ah.all_reduce(x)

def busy():
    tell("in place")
    hear()

def step():
    ah.all_reduce(x, label="grad")

if me == 0:
    busy()
elif me == 3:
    pair = ah.new_group([0, 3])
    tell("in place")
    ah.barrier(pair, label="odd")
else:
    tell("in place")
    step()
"""


def in_place(ranks: list[Process]) -> None:
    for rank in ranks:
        rank.expect("in place")


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_diagnose_names_who_is_where_and_who_is_behind(
    cluster: Cluster, job: Job, backend: str
) -> None:
    in_place(job(3, STUCK.replace("ASYNC", str(backend == "auto"))))
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
    assert idle["last"].endswith("in <module>")
    assert idle["idle"] > 0
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
    ranks = job(4, STUCK.replace("ASYNC", "False"))
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
    ranks = job(
        8,
        """
        ah.init_process_group(timeout=60)
        x = np.ones(4)
        for _ in range(20):
            if ah.get_rank() == 5:
                time.sleep(0.05)
            ah.all_reduce(x)
        tell("in place")
        hear()
        ah.destroy_process_group()
        """,
    )
    in_place(ranks)
    found = diagnosis(cluster)
    first, second, *_ = found["stragglers"]
    assert (first["rank"], first["group"], first["calls"]) == (5, "world", 20)
    assert first["median"] > second["median"]
    assert first["last"] > 10
    assert sorted(one["rank"] for one in found["stragglers"]) == list(range(8))
    [status] = json.loads(command(cluster, "status", "job", "-o", "json"))["jobs"]
    late = {one["rank"]: one["lateness"][0]["median"] for one in status["members"]}
    assert max(late, key=late.__getitem__) == 5
    shown = command(cluster, "status", "job").splitlines()
    assert shown[2].split()[-1] == "LATE"
    assert shown[8].split()[-1] == "ms", shown[8]
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0


def test_a_trace_shows_all_ranks_on_one_clock(cluster: Cluster, job: Job, tmp_path: Path) -> None:
    ranks = job(
        2,
        """
        ah.init_process_group(timeout=60)
        x = np.ones(4)
        ah.barrier()
        for number in range(10):
            ah.all_reduce(x, label=f"call {number}")
        tell("in place", begun={one.label: one.started for one in ah.flight_recorder()})
        hear()
        ah.destroy_process_group()
        """,
    )
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
    assert {one["args"]["source"].rpartition(" in ")[2] for one in shown} == {"<module>"}
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0


# ---------------------------------------------------------------- dumps


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_what_failed_is_dumped_when_that_was_asked_for(
    job: Job, backend: str, tmp_path: Path
) -> None:
    folder = tmp_path / "dumps"
    ranks = job(
        2,
        """
        ah.init_process_group(timeout=60)
        x = np.ones(4)
        ah.barrier()
        if ah.get_rank() == 0:
            tell("failed", **failure(lambda: ah.all_reduce(x, timeout=0.3, label="lonely")))
        else:
            hear()
        tell("over")
        hear()
        os._exit(0)
        """,
        ALLHANDS_DUMP_ON_FAILURE=str(folder),
    )
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
