"""The commands for a coordinator's status, as processes beside a real daemon."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire


@pytest.fixture
def busy_job(control: Control, join_job: Callable[[int, int], RawMember]) -> str:
    """A job of two, whose rank 0 is in an all_reduce of the groups `world` and `pair-of-JOB`."""
    assert control.job_name is not None
    groups = "world", f"pair-of-{control.job_name}"
    first, second = join_job(0, 2), join_job(1, 2)
    for group in groups:
        opened = wire.OpenGroup(group=group, ranks=[0, 1])
        first.send(open_group=opened)
        second.send(open_group=opened)
    doing = [
        wire.Progress(group=group, sequence=7, completed=6, operation="all_reduce", elapsed=1.5)
        for group in groups
    ]
    first.send(heartbeat=wire.Heartbeat(progress=doing))
    poll_until(lambda: len(control.job().members[0].operations) == 2)
    poll_until(lambda: len(control.job().groups) == 2)
    return control.job_name


def _find_table(lines: list[str]) -> list[str]:
    """Return the lines from the headings on."""
    return lines[next(at for at, line in enumerate(lines) if line.lstrip().startswith("RANK ")) :]


def test_status_finds_the_daemon_by_itself_and_shows_the_job(
    daemon: DaemonProcess, busy_job: str
) -> None:
    done = daemon.run_command("status", busy_job)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    headline, columns, first = lines[0], *_find_table(lines)[:2]
    assert headline.startswith(f"job {busy_job}: running, epoch 1, world size 2, 2 joined")
    assert columns.split()[:4] == ["RANK", "LABEL", "HOST", "STATE"]
    assert "all_reduce" in first
    assert "node-a" in first
    wide = _find_table(daemon.run_command("status", busy_job, "-o", "wide").stdout.splitlines())
    assert wide[0].split()[:5] == ["RANK", "LABEL", "HOST", "PID", "ADDRESS"]
    assert wide[1].split()[:4] == ["0", "label-0", "node-a", "4000"]


def test_status_without_a_name_shows_every_job(daemon: DaemonProcess, busy_job: str) -> None:
    done = daemon.run_command("status")
    assert f"job {busy_job}: " in done.stdout


def test_json_tells_each_members_operation(daemon: DaemonProcess, busy_job: str) -> None:
    done = daemon.run_command("status", busy_job, "-o", "json")
    [job] = json.loads(done.stdout)["jobs"]
    first, second = job["members"]
    assert (job["job"], job["world_size"], job["state"]) == (busy_job, 2, "running")
    assert (first["rank"], first["host"], first["pid"]) == (0, "node-a", 4000)
    assert {one["group"]: one["sequence"] for one in first["operations"]} == {
        "world": 7,
        f"pair-of-{busy_job}": 7,
    }
    assert second["operations"] == [] or not second["operations"][0]["operation"]


def test_an_unknown_job_fails_with_the_names_that_exist(
    daemon: DaemonProcess, busy_job: str
) -> None:
    done = daemon.run_command("status", "no-such-job")
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("allhands: no job 'no-such-job'")
    assert busy_job in line


def test_the_job_in_the_url_is_the_one_shown(daemon: DaemonProcess, busy_job: str) -> None:
    done = daemon.run_command("status", "--coordinator", f"{daemon.notice.url}/{busy_job}")
    assert done.stdout.startswith(f"job {busy_job}: ")
    assert done.stdout.count("job ") == 1


def test_watch_repeats_until_interrupted_and_then_succeeds(
    daemon: DaemonProcess, busy_job: str
) -> None:
    with daemon.start_command("status", busy_job, "--watch", "-o", "json") as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
    assert [one["jobs"][0]["job"] for one in seen] == [busy_job, busy_job]


@pytest.mark.parametrize(("color", "is_coloured"), [("always", True), ("auto", False)])
def test_colours_go_into_a_pipe_where_they_are_asked_for(
    color: str, is_coloured: bool, daemon: DaemonProcess, busy_job: str
) -> None:
    aborted = daemon.run_command("abort", busy_job)
    assert aborted.returncode == 0, aborted.stderr
    shown = {
        name: daemon.run_command(name, busy_job, "--color", color).stdout
        for name in ("status", "diagnose")
    }
    with daemon.start_command("status", busy_job, "--color", color, "--watch") as watching:
        assert watching.stdout is not None
        shown["watch"] = watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
    is_red = {name: "\x1b[31m" in text for name, text in shown.items()}
    assert is_red == dict.fromkeys(shown, is_coloured), shown


def test_group_shows_each_rank_with_its_progress(daemon: DaemonProcess, busy_job: str) -> None:
    done = daemon.run_command("group", f"pair-of-{busy_job}")
    assert done.returncode == 0, done.stderr
    # Below: that the two are silent, if that is so by now.
    headline, _columns, first, second, *_ = done.stdout.splitlines()
    assert headline == f"group pair-of-{busy_job} of job {busy_job}: 2 ranks, epoch 1"
    assert first.split()[:4] == ["0", "0", "node-a", "joined"]
    assert "all_reduce" in first
    assert second.split()[:4] == ["1", "1", "node-a", "joined"]


def test_group_looks_only_in_the_named_job(daemon: DaemonProcess, busy_job: str) -> None:
    for named in (
        [busy_job, "world"],
        ["world", "--job", busy_job],
        [busy_job, "world", "-o", "wide"],
    ):
        done = daemon.run_command("group", *named)
        headlines = [line for line in done.stdout.splitlines() if line.startswith("group ")]
        assert [one.partition(":")[0] for one in headlines] == [f"group world of job {busy_job}"]
    twice = daemon.run_command("group", busy_job, "world", "--job", "other")
    assert twice.returncode == 2
    assert f"two jobs are named: '{busy_job}', and 'other' by --job" in twice.stderr


def test_an_unknown_group_fails_with_the_names_that_exist(
    daemon: DaemonProcess, busy_job: str
) -> None:
    done = daemon.run_command("group", "no-such-group")
    assert done.returncode == 1
    assert f"pair-of-{busy_job} ({busy_job})" in done.stderr


def test_keys_are_put_read_listed_and_deleted(daemon: DaemonProcess, job_name: str) -> None:
    assert daemon.run_command("kv", "put", job_name, "a/1", "text").returncode == 0
    assert (
        daemon.run_command("kv", "put", job_name, "a/2", "-", stdin="from a pipe\n").returncode == 0
    )
    assert daemon.run_command("kv", "get", job_name, "a/1").stdout == "text"
    assert daemon.run_command("kv", "get", job_name, "a/2").stdout == "from a pipe\n"
    assert daemon.run_command("kv", "list", job_name, "a/").stdout == "a/1\na/2\n"
    assert daemon.run_command("kv", "del", job_name, "a/1", "a/2").returncode == 0
    assert daemon.run_command("kv", "list", job_name).stdout == ""


@pytest.mark.parametrize(
    ("command", "listed"),
    [(["list"], ""), (["count"], "0\n"), (["get", "", "--prefix"], "")],
    ids=["list", "count", "prefix"],
)
def test_a_listing_of_no_keys_says_whether_the_job_is_missing(
    daemon: DaemonProcess, busy_job: str, command: list[str], listed: str
) -> None:
    verb, *rest = command
    done = daemon.run_command("kv", verb, busy_job, *rest)
    assert (done.returncode, done.stdout, done.stderr) == (0, listed, "")
    done = daemon.run_command("kv", verb, "never-made", *rest)
    assert (done.returncode, done.stdout) == (0, listed)  # so is a job after its last key
    assert done.stderr.startswith("allhands: no job 'never-made' at this coordinator; there are: ")
    assert busy_job in done.stderr


def test_a_key_that_does_not_exist_fails_in_one_line(daemon: DaemonProcess, job_name: str) -> None:
    assert daemon.run_command("kv", "put", job_name, "other", "v").returncode == 0
    for command in ("get", "del"):
        done = daemon.run_command("kv", command, job_name, "missing")
        assert done.returncode == 1
        assert done.stderr.startswith("allhands: ")
        assert "'missing'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["get", "del"])
def test_a_key_of_an_unknown_job_fails_with_the_names_that_exist(
    command: str, daemon: DaemonProcess, busy_job: str
) -> None:
    done = daemon.run_command("kv", command, "no-such-job", "k")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("allhands: no job 'no-such-job' at this coordinator")
    assert busy_job in line


def test_a_mistyped_job_is_gone_with_its_keys(daemon: DaemonProcess, job_name: str) -> None:
    assert daemon.run_command("kv", "put", job_name, "k", "v").returncode == 0
    assert f"job {job_name}: empty" in daemon.run_command("status").stdout
    assert daemon.run_command("kv", "del", job_name, "k").returncode == 0
    assert job_name not in daemon.run_command("status").stdout


def test_jobs_are_deleted_unless_somebody_is_in_them(
    daemon: DaemonProcess, job_name: str, busy_job: str
) -> None:
    other = f"{job_name}-other"
    assert daemon.run_command("kv", "put", other, "k", "v").returncode == 0
    done = daemon.run_command("delete", other, busy_job)
    assert done.returncode == 1
    assert done.stdout == f"deleted job {other}\n"
    assert f"2 members are in job {busy_job}" in done.stderr
    assert f"allhands abort {busy_job}" in done.stderr
    done = daemon.run_command("delete", busy_job, "--force")
    assert (done.returncode, done.stdout) == (0, f"deleted job {busy_job}, and expelled 2 ranks\n")
    assert busy_job not in daemon.run_command("status").stdout
    missing = daemon.run_command("delete", busy_job)
    assert missing.returncode == 1
    assert missing.stderr.startswith(f"allhands: delete job '{busy_job}': there is no job")


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--coordinator", "http://127.0.0.1:1"),
        ("status", "-o", "xml"),
        ("status", "--no-such-option"),
        ("kv", "put", "job"),
        ("kv", "put", "not a job's name", "key", "value"),
        ("no-such-command",),
        ("serve", "--listen", "nonsense"),
    ],
)
def test_wrong_usage_has_status_2_and_no_traceback(
    daemon: DaemonProcess, arguments: tuple[str, ...]
) -> None:
    done = daemon.run_command(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_lists_every_command(daemon: DaemonProcess) -> None:
    done = daemon.run_command("--help")
    assert done.returncode == 0
    for command in ("serve", "run", "status", "group", "kv"):
        assert f"\n  {command} " in done.stdout


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "allhands", "status", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: allhands status ")


# ---------------------------------------------------------------- a daemon of its own


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with run_daemon(tmp_path) as running:
        yield running


def test_every_command_has_help(daemon: DaemonProcess) -> None:
    for command in daemon.run_command("--help").stdout.partition("Commands:")[2].splitlines()[1:]:
        name = command.split()[0]
        done = daemon.run_command(name, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: allhands {name}")


def test_no_jobs_is_said_in_words(own_daemon: DaemonProcess) -> None:
    done = own_daemon.run_command("status")
    assert (done.returncode, done.stdout) == (0, "no jobs\n")
    assert json.loads(own_daemon.run_command("status", "-o", "json").stdout)["jobs"] == []


def test_without_a_coordinator_the_error_says_how_to_start_one(
    own_daemon: DaemonProcess, tmp_path: Path
) -> None:
    empty = tmp_path / "another"
    empty.mkdir()
    own_daemon.environ["XDG_RUNTIME_DIR"] = str(empty)
    done = own_daemon.run_command("status")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("allhands: ")
    assert "`allhands serve`" in line


def test_a_daemon_that_is_told_to_end_takes_its_notice_with_it(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as running:
        pass
    assert running.process.returncode == 0
    assert list((tmp_path / "allhands").glob("coordinator-*.json")) == []
