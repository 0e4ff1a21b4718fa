"""`allhands lock` and `allhands elect` against a daemon."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until

_PATIENCE = 60.0
Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(daemon: DaemonProcess) -> Iterator[Started]:
    """Return a function that starts a command, with its output in pipes."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> "subprocess.Popen[str]":
        started.append(daemon.start_command(*arguments))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_a_command_runs_with_the_lock_held(
    daemon: DaemonProcess, control: Control, job_name: str
) -> None:
    look = (
        "import os, sys; print(*(os.environ[f'ALLHANDS_LOCK_{n}'] for n in sys.argv[1:]));exit(7)"
    )
    done = daemon.run_command(
        *("lock", job_name, "l", "--ttl", "30", "--", sys.executable, "-c", look),
        *("KEY", "REVISION"),
        timeout=_PATIENCE,
    )
    assert done.returncode == 7, done.stderr
    key, revision = done.stdout.split()
    assert key.startswith("_allhands/locks/l/")
    assert int(revision) > 0
    assert control.list("_allhands/locks/") == ()
    script = "kill -KILL $$"
    killed = daemon.run_command("lock", job_name, "l", "--", "sh", "-c", script, timeout=_PATIENCE)
    assert killed.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_lock_is_held_until_a_signal(
    start: Started, control: Control, job_name: str, number: signal.Signals
) -> None:
    holder = start("lock", job_name, "l", "--ttl", "600", "-o", "json")
    told = json.loads(read_line(holder))
    assert told["key"].startswith("_allhands/locks/l/")
    (held,) = control.lock("l").status().holders
    assert (held.pid, held.revision) == (holder.pid, told["revision"])
    waiter = start("lock", job_name, "l", "--ttl", "600")
    poll_until(lambda: control.lock("l").status().waiting == 1, _PATIENCE)
    waiter.send_signal(number)
    assert waiter.wait(_PATIENCE) == 128 + number
    assert control.lock("l").status().waiting == 0
    holder.send_signal(number)
    assert holder.wait(_PATIENCE) == 0
    assert control.lock("l").status().holders == ()


def test_a_signal_ends_the_command_before_the_lock(
    start: Started, control: Control, job_name: str
) -> None:
    script = "trap 'kill $!; echo over; exit 3' TERM; sleep 600 & echo begun; wait; echo not so"
    holder = start("lock", job_name, "l", "--", "sh", "-c", script)
    assert read_line(holder) == "begun"
    holder.terminate()
    assert read_line(holder) == "over"
    assert holder.wait(_PATIENCE) == 3
    assert control.lock("l").status().holders == ()


def test_a_command_whose_lock_is_lost_is_ended(
    start: Started, control: Control, job_name: str
) -> None:
    script = "echo begun; exec sleep 600"
    holder = start("lock", job_name, "l", "--ttl", "9", "--", "sh", "-c", script)
    assert read_line(holder) == "begun"
    for number in control.leases():
        control.revoke_lease(number)
    assert holder.wait(_PATIENCE) == 1


def test_a_deadline_names_the_holder(
    daemon: DaemonProcess, control: Control, job_name: str
) -> None:
    with control.lock("l"):
        late = daemon.run_command("lock", job_name, "l", "--timeout", "3", timeout=_PATIENCE)
    assert late.returncode == 1
    assert f"pid {os.getpid()} since" in late.stderr


def test_an_election_is_led_and_listened_to(
    start: Started, daemon: DaemonProcess, control: Control, job_name: str
) -> None:
    first = start("elect", job_name, "e", "one")
    key = read_line(first)
    assert key.startswith("_allhands/elections/e/")
    assert read_line(first) == "one"
    listener = start("elect", job_name, "e", "--listen", "-o", "json")
    told = json.loads(read_line(listener))
    assert (told["key"], base64.b64decode(told["value"])) == (key, b"one")
    second = start("elect", job_name, "e", "two")
    poll_until(lambda: control.count("_allhands/elections/e/") == 2, _PATIENCE)
    first.terminate()
    assert first.wait(_PATIENCE) == 0
    assert read_line(second).startswith("_allhands/elections/e/")
    following = json.loads(read_line(listener))
    assert base64.b64decode(following["value"]) == b"two"
    assert following["revision"] > told["revision"]
    listener.send_signal(signal.SIGINT)
    assert listener.wait(_PATIENCE) == 0
    wrong = daemon.run_command("elect", job_name, "e", timeout=_PATIENCE)
    assert wrong.returncode == 2
    assert "--listen" in wrong.stderr
