"""Errors of all survivors of a fault: the right class and rank, the same on each.

Run as a script it prints a table of that, with seconds:
`PYTHONPATH=tests python tests/faults/test_verdicts.py`.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from programs import silent_ranks as programs
from support.ranks.forking import ForkServer
from support.ranks.processes import BACKENDS, GRPC, Cluster


@dataclass(frozen=True)
class Fault:
    """A fault of rank 2 of three, and the errors expected on the two survivors."""

    name: str
    error: str
    state: str
    words: str
    order: str = ""
    signal: int = 0
    kills_coordinator: bool = False
    window: float = 0.0
    at_deadline: bool = False

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault("SIGKILL", "PeerFailed", "dead", "its process is gone", signal=signal.SIGKILL),
    Fault(
        "SIGSTOP",
        "CollectiveTimeout",
        "paused",
        "its process is stopped",
        signal=signal.SIGSTOP,
        at_deadline=True,
    ),
    Fault(
        "SIGSTOP for longer than the window",
        "PeerFailed",
        "paused",
        "its process is stopped",
        signal=signal.SIGSTOP,
        window=0.8,
    ),
    Fault("exit without leaving", "PeerFailed", "dead", "its process is gone", order="exit"),
    Fault(
        "skipped call",
        "CollectiveTimeout",
        "elsewhere",
        "in barrier #1 of group 'world:1-2/1'",
        order="skip",
        at_deadline=True,
    ),
    Fault(
        "time.sleep",
        "CollectiveTimeout",
        "busy",
        "alive, but in no call",
        order="sleep",
        at_deadline=True,
    ),
    Fault("exception", "GroupAborted", "left", "LookupError: no such file as this", order="raise"),
    Fault("leaves early", "PeerFailed", "left", "left the job", order="leave"),
    Fault(
        "coordinator killed, then time.sleep",
        "CollectiveTimeout",
        "busy",
        "the coordinator could not be asked",
        order="sleep",
        kills_coordinator=True,
        at_deadline=True,
    ),
    Fault(
        "coordinator killed, then SIGSTOP",
        "CollectiveTimeout",
        "paused",
        "the coordinator could not be asked",
        signal=signal.SIGSTOP,
        kills_coordinator=True,
        at_deadline=True,
    ),
    Fault(
        "coordinator killed, then SIGKILL",
        "",
        "dead",
        "its process is gone",
        signal=signal.SIGKILL,
        kills_coordinator=True,
    ),
)
TIMEOUT = 1.5


def strike(cluster: Cluster, fault: Fault, backend: str, length: int) -> list[dict[str, Any]]:
    """Inflict a fault on a world of three; return the two survivors' reports."""
    url = cluster.daemon()
    daemon = cluster.started[-1]
    # Where a failure is known at once no deadline is what tells of it.
    timeout = TIMEOUT if fault.at_deadline or fault.kills_coordinator else 20
    where = {"ALLHANDS_URL": f"{url}/j", "ALLHANDS_BACKEND": backend}
    ranks = cluster.world(3, programs.suffer, fault.window, length, timeout, **where)
    pids = [rank.expect("ready")["pid"] for rank in ranks]
    if fault.kills_coordinator:
        daemon.child.send_signal(signal.SIGKILL)
        daemon.ended()
    if fault.signal:
        os.kill(pids[2], fault.signal)
    for rank in ranks if not fault.signal else ranks[:2]:
        rank.say(fault.order)
    told = [rank.expect("failed") for rank in ranks[:2]]
    for one in told:
        one["pid"] = pids[2]
    return told


@pytest.mark.parametrize(
    ("fault", "backend", "length"),
    [
        *((fault, backend, 10) for fault in FAULTS for backend in BACKENDS[:2]),
        *((FAULTS[0], backend, 1 << 20) for backend in BACKENDS),
        *((FAULTS[5], backend, 1 << 20) for backend in BACKENDS),
    ],
    ids=str,
)
def test_all_survivors_get_one_verdict_with_the_right_class(
    cluster: Cluster, fault: Fault, backend: str, length: int
) -> None:
    told = strike(cluster, fault, backend, length)
    for one in told:
        assert not fault.error or one["error"] == fault.error, one
        [absent] = one["verdict"]["absent"]
        assert (absent["rank"], absent["state"], absent["pid"]) == (2, fault.state, one["pid"]), one
        assert one["ranks"] in ([2], []), one
        assert fault.words in one["text"], one["text"]
        assert one["verdict"]["text"] in one["text"]
        assert f"rank 2 (host {os.uname().nodename}, pid {one['pid']})" in one["text"]
        if fault.state in ("busy", "elsewhere"):
            assert "rank 2 is at\n" in one["text"]
            assert "silent_ranks.py" in absent["stack"]
            source_line = absent["stack"].rstrip().splitlines()[-1]
            assert source_line in one["text"].splitlines()  # alone, and read as source
    if not fault.kills_coordinator:
        assert told[0]["verdict"] == told[1]["verdict"]


@pytest.mark.parametrize("backend", ["socket", GRPC])
@pytest.mark.parametrize("length", [10, pytest.param(1 << 19, marks=pytest.mark.nightly)])
def test_who_comes_to_a_call_that_the_others_have_given_up_is_told_that_it_came_too_late(
    cluster: Cluster, backend: str, length: int
) -> None:
    where = {"ALLHANDS_URL": f"{cluster.daemon()}/j", "ALLHANDS_BACKEND": backend}
    ranks = cluster.world(3, programs.come_too_late, length, **where)
    for rank in ranks:
        rank.expect("ready")
    for rank in ranks[:2]:
        rank.say()
    given = [rank.expect("failed") for rank in ranks[:2]]
    ranks[2].say()
    told = ranks[2].expect("failed")
    for one in (*given, told):
        assert (one["error"], one["ranks"], one["seq"]) == ("CollectiveTimeout", [2], 2), one
        assert one["verdict"]["absent"] == given[0]["verdict"]["absent"]
        assert one["verdict"]["absent"][0]["state"] == "busy"
    assert (
        "who came later came too late: the others had waited until their deadline" in told["text"]
    )
    assert "rank 2 is this one" in told["text"]


def table() -> Iterator[str]:
    """Measure the faults by backend: the survivors' errors, and their seconds."""
    import tempfile

    fork_server = ForkServer()
    yield f"{'fault':36} {'backend':7} {'survivors saw':42} {'seconds':11} alike"
    for fault in FAULTS:
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory() as runtime:
                cluster = Cluster(Path(runtime), fork_server)
                begun = time.monotonic()
                told = strike(cluster, fault, backend, 10)
                assert time.monotonic() - begun < 60
                cluster.close()
            states = {one["verdict"]["absent"][0]["state"] for one in told}
            saw = f"{told[0]['error']}: rank 2 {', '.join(sorted(states))}"
            seconds = " ".join(f"{one['seconds']:.2f}" for one in told)
            alike = "yes" if told[0]["verdict"] == told[1]["verdict"] else "class and rank"
            yield f"{fault.name:36} {backend:7} {saw:42} {seconds:11} {alike}"
    fork_server.close()


if __name__ == "__main__":
    for line in table():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
