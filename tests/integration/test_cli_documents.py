"""Documents and formats of commands, as docs/output.md describes them, at a real daemon."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from allhands.coordinator.client import Control
from allhands.errors import BarrierCancelled
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire
from support.documents.output_fields import check_fields, read_documented

TXN = 'version("k") = "0"\n\nput k first\nget k\ndel other\n'


@pytest.fixture
def running_job(control: Control, join_job: Callable[[int, int], RawMember]) -> str:
    """A job of two, whose rank 0 is in an all_reduce of the group `world`."""
    first, second = join_job(0, 2), join_job(1, 2)
    for member in (first, second):
        member.send(open_group=wire.OpenGroup(group="world", ranks=[0, 1]))
    doing = wire.Progress(
        group="world", sequence=7, completed=6, operation="all_reduce", elapsed=1.5
    )
    first.send(heartbeat=wire.Heartbeat(progress=[doing]))
    poll_until(lambda: len(control.job().members[0].operations) == 1)
    poll_until(lambda: len(control.job().groups) == 1)
    assert control.job_name is not None
    return control.job_name


def read(daemon: DaemonProcess, *arguments: str, stdin: str = "") -> dict[str, Any]:
    done = daemon.run_command(*arguments, "-o", "json", stdin=stdin, timeout=60)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    check_fields(document)
    return document


def test_what_is_said_of_a_job_has_the_documented_fields(
    daemon: DaemonProcess, running_job: str
) -> None:
    status = read(daemon, "status", running_job)
    assert status["kind"] == "JobList"
    [operation] = status["jobs"][0]["members"][0]["operations"]
    assert (operation["operation"], operation["sequence"]) == ("all_reduce", 7)
    group = read(daemon, "group", running_job, "world")
    assert [one["begun"] for one in group["groups"][0]["members"]] == [7, 0]
    events = daemon.run_command("events", running_job, "-o", "json").stdout.splitlines()
    for line in events:
        check_fields(json.loads(line), is_full=True)
    told = daemon.run_command("events", running_job, "-o", "yaml").stdout
    # More may have happened by then.
    assert [*yaml.safe_load_all(told)][: len(events)] == [json.loads(line) for line in events]
    diagnosis = read(daemon, "diagnose", running_job)
    assert [one["rank"] for one in diagnosis["ranks"]] == [0, 1]
    assert read(daemon, "abort", running_job)["told_ranks"] == 2
    assert read(daemon, "status", "--limits")["resident_bytes"] > 1 << 20


def test_what_is_said_of_keys_and_leases_has_the_documented_fields(
    daemon: DaemonProcess, job_name: str
) -> None:
    lease = read(daemon, "lease", "grant", job_name, "300")["lease"]
    put = read(daemon, "kv", "put", job_name, "a/1", "one", "--lease", str(lease))
    assert read(daemon, "kv", "get", job_name, "a/1")["revision"] == put["revision"]
    assert read(daemon, "kv", "list", job_name)["keys"] == ["a/1"]
    assert read(daemon, "kv", "count", job_name, "a/")["count"] == 1
    assert read(daemon, "lease", "timetolive", job_name, str(lease), "--keys")["keys"] == ["a/1"]
    assert read(daemon, "lease", "list", job_name)["leases"] == [lease]
    watched = ("kv", "watch", job_name, "a/1", "--rev", str(put["revision"]), "--count", "1")
    assert read(daemon, *watched)["record"]["key"] == "a/1"
    assert len(read(daemon, "kv", "txn", job_name, stdin=TXN)["results"]) == 3
    assert read(daemon, "kv", "del", job_name, "a/", "--prefix")["deleted"] == 1
    assert (
        read(daemon, "kv", "compact", job_name, str(put["revision"]))["revision"]
        == (put["revision"])
    )
    kept = read(daemon, "lease", "keep-alive", job_name, str(lease), "--once")
    assert (kept["lease"], kept["granted_seconds"]) == (lease, 300)
    assert read(daemon, "kv", "put", job_name, "b", "two", "--lease", str(lease))
    assert read(daemon, "lease", "revoke", job_name, str(lease))["deleted_keys"] == 1
    assert read(daemon, "delete", job_name)["expelled_ranks"] == 0


def test_what_is_said_of_barriers_locks_and_leaders_has_the_documented_fields(
    daemon: DaemonProcess, control: Control, job_name: str
) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(control.barrier, "start", "a", ["a", "b"])
        poll_until(lambda: job_name in [one.job for one in control.jobs()])
        poll_until(lambda: len(control.barriers()) == 1)
        assert read(daemon, "barrier", "list", job_name)["barriers"][0]["missing"] == ["b"]
        names = daemon.run_command("barrier", "list", job_name, "-o", "name")
        assert names.stdout == "start\n"
        cancelled = read(daemon, "barrier", "cancel", job_name, "start")
        assert cancelled["released_participants"] == 1
        with pytest.raises(BarrierCancelled, match="asked for at the command line"):
            waiting.result(30)
    for arguments in (("lock", job_name, "l"), ("elect", job_name, "e", "me")):
        with daemon.start_command(*arguments, "-o", "json") as holder:
            assert holder.stdout is not None
            check_fields(json.loads(holder.stdout.readline()), is_full=True)
            holder.terminate()


def test_what_is_said_of_tokens_and_snapshots_has_the_documented_fields(tmp_path: Path) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    with run_daemon(folder, "--data-dir", str(tmp_path / "data")) as daemon:
        for named in (["j"], ["--job", "j"]):
            made = daemon.run_command("token", "create", *named, "--verbs", "read")
            assert made.returncode == 0, made.stderr
        unnamed = daemon.run_command("token", "create")
        assert (unnamed.returncode, "name the job" in unnamed.stderr) == (2, True)
        tokens = read(daemon, "token", "list")["tokens"]
        assert [one["job"] for one in tokens] == ["j", "j"]
        assert made.stdout.strip().split("_", 2)[2] not in json.dumps(tokens)
        another = read(daemon, "token", "create", "k", "--expires", "90s", "--single-use")
        assert (another["lifetime_seconds"], another["max_joins"]) == (90, 1)
        assert read(daemon, "token", "revoke", tokens[0]["id"])["id"] == tokens[0]["id"]
        left = [one["id"] for one in read(daemon, "token", "list")["tokens"]]
        assert [one in another["token"] for one in left] == [False, True]
        assert daemon.run_command("kv", "put", "j", "k", "v").returncode == 0
        saved = daemon.run_command("snapshot", "save", str(tmp_path / "state"))
        assert saved.returncode == 0, saved.stderr
        check_fields(read(daemon, "snapshot", "inspect", str(tmp_path / "state")), is_full=True)


def test_every_kind_that_is_documented_is_of_a_command() -> None:
    shown = {
        *("JobList", "LimitList", "GroupList", "Diagnosis", "JobEvent", "Abort", "KeyRange"),
        *("KeyList", "KeyPut", "KeyDeletion", "KeyCount", "TxnResult", "KeyEvent", "LeaseGrant"),
        *("Lease", "LeaseList", "Lock", "Leader", "BarrierList", "TokenList"),
        *("SnapshotContents", "ContextList", "Context", "PageLink", "Examination", "JobDeletion"),
        *("Compaction", "LeaseKeptAlive", "LeaseRevocation", "BarrierCancellation", "Token"),
        "TokenRevocation",
    }
    assert read_documented().keys() == shown


def test_names_are_what_other_commands_take(daemon: DaemonProcess, job_name: str) -> None:
    for key in ("a\x1b", "b"):
        assert daemon.run_command("kv", "put", job_name, key, "v").returncode == 0
    assert daemon.run_command("kv", "get", job_name, "", "--from-key", "-o", "name").stdout == (
        "a\\x1b\nb\n"
    )
    assert job_name in daemon.run_command("status", "-o", "name").stdout.splitlines()
    assert daemon.run_command("status", job_name, "-o", "name").stdout == f"{job_name}\n"


@pytest.mark.parametrize(
    ("arguments", "formats"),
    [
        (["group", "world"], "table, wide, json or yaml"),
        (["diagnose"], "table, wide, json or yaml"),
        (["events", "j"], "table, json or yaml"),
        (["abort", "j"], "table, json or yaml"),
        (["lock", "j", "l"], "table, json or yaml"),
        (["kv", "list", "j"], "table, json, yaml or name"),
        (["status"], "table, wide, json, yaml or name"),
    ],
)
def test_a_format_that_a_command_has_not_is_refused_with_those_that_it_has(
    daemon: DaemonProcess, arguments: list[str], formats: str
) -> None:
    wrong = "lines" if arguments[0] in ("status", "kv") else "name"
    done = daemon.run_command(*arguments, "-o", wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the output of this command is {formats}, not '{wrong}'" in done.stderr


def test_views_are_shown_again(daemon: DaemonProcess, running_job: str) -> None:
    for arguments in (["group", running_job, "world"], ["diagnose", running_job]):
        with daemon.start_command(*arguments, "--watch", "-o", "json") as watching:
            assert watching.stdout is not None
            for _ in range(2):
                check_fields(json.loads(watching.stdout.readline()))
            watching.terminate()


def test_a_report_goes_to_a_file(daemon: DaemonProcess, running_job: str) -> None:
    done = daemon.run_command("report", running_job, "-o", "json")
    assert done.returncode == 2
    assert "--file FILE, not -o json" in done.stderr


def test_a_trace_goes_to_a_file(daemon: DaemonProcess, running_job: str) -> None:
    done = daemon.run_command("trace", running_job, "-o", "json")
    assert done.returncode == 2
    assert "--file FILE, not -o json" in done.stderr
    for option in ("--file", "-f", "--output", "-o"):
        done = daemon.run_command("trace", running_job, option, "/nowhere/trace.json")
        assert done.returncode == 1
        assert "/nowhere/trace.json was not written" in done.stderr
