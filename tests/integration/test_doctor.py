"""`allhands doctor` as a process: beside a daemon, without one, in a network namespace, denied."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allhands.testing.daemon import DaemonProcess
from support import denied_attach
from support.documents.output_fields import check_fields
from support.ranks.launchers import environment

COMMAND = (sys.executable, "-m", "allhands.cli.main", "doctor")
_SECONDS = 60.0


def examine(
    environ: dict[str, str], *arguments: str, around: tuple[str, ...] = ()
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the command; return its status and its findings by name."""
    done = subprocess.run(
        [*around, *COMMAND, "-o", "json", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    check_fields(told)
    return done.returncode, {one["what"]: one for one in told["findings"]}


def test_beside_a_daemon_nothing_fails(daemon: DaemonProcess) -> None:
    status, found = examine(daemon.environ)
    assert status == 0
    assert {found[one]["status"] for one in ("coordinator", "TLS", "token", "clock")} == {"ok"}
    assert found["clock"]["detail"] == "the coordinator's, within the time of a call"
    assert found["advertised"]["detail"].startswith("127.0.0.1: the coordinator serves this host")
    assert found["shared memory"]["status"] == "ok"


def test_the_table_has_a_row_a_finding_and_a_count(daemon: DaemonProcess) -> None:
    done = daemon.run_command("doctor", timeout=_SECONDS)
    first, *_, last = done.stdout.splitlines()
    assert first.split() == ["STATUS", "CHECK", "DETAIL"]
    assert "0 fail" in last
    assert done.returncode == 0


def test_a_wrong_token_fails(daemon: DaemonProcess) -> None:
    environ = {**daemon.environ, "ALLHANDS_TOKEN": "wrong"}
    status, found = examine(environ, "--coordinator", daemon.notice.url)
    assert (status, found["coordinator"]["status"]) == (1, "fail")
    assert "wants its token" in found["coordinator"]["detail"]


def test_a_port_without_a_coordinator_fails(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"ah://127.0.0.1:{taken.getsockname()[1]}"
        status, found = examine(environment(tmp_path), "--coordinator", url)
    assert status == 1
    assert found["coordinator"]["detail"].endswith("cannot be reached: nothing listens there")
    assert found["coordinator"]["fix"].startswith("start one with `allhands serve`")


def test_without_a_coordinator_the_host_alone_is_examined(tmp_path: Path) -> None:
    status, found = examine(environment(tmp_path))
    assert (status, found["coordinator"]["status"]) == (0, "skip")


def test_a_malformed_url_is_wrong_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--coordinator", "http://h:1"], env=environment(tmp_path), capture_output=True
    )
    assert done.returncode == 2


def test_an_unknown_job_fails(daemon: DaemonProcess) -> None:
    status, found = examine(daemon.environ, "no-such-job")
    assert (status, found["ranks"]["status"]) == (1, "fail")


def test_a_runtime_directory_that_is_missing_is_warned_of(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    environ = {**environment(tmp_path), "XDG_RUNTIME_DIR": missing}
    status, found = examine(environ)
    assert (status, found["runtime dir"]["status"]) == (0, "warn")
    assert missing in found["runtime dir"]["detail"]


needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)


@needs_namespaces
def test_a_namespace_without_a_route_is_found_out(tmp_path: Path) -> None:
    environ = {**environment(tmp_path), "ALLHANDS_TOKEN": "t", "ALLHANDS_INSECURE": "1"}
    url = "ah://10.99.0.1:7070"
    status, found = examine(environ, "--coordinator", url, around=("unshare", "--net"))
    assert status == 1
    assert "Network is unreachable" in found["coordinator"]["detail"]
    assert found["interfaces"]["status"] == "warn"


@pytest.mark.skipif(platform.machine() not in denied_attach.CALLS, reason="another machine")
def test_a_filter_of_system_calls_is_warned_of(tmp_path: Path) -> None:
    status, found = examine(environment(tmp_path), around=(sys.executable, denied_attach.__file__))
    attach = found["memory attach"]
    assert (status, attach["status"]) == (0, "warn")
    assert "process_vm_readv: Operation not permitted; a seccomp filter is on" in attach["detail"]
    assert found["shared memory"]["status"] == "ok"
