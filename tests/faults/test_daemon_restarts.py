"""Jobs that go on while their coordinator is killed and started again."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.coordinator.status import JobStatus
from allhands.testing.poll import poll_until
from allhands_server.kept_token import load_token
from programs import restarted_daemon
from support.ranks.forking import PATIENCE
from support.ranks.processes import BACKENDS, Cluster, Process

Serve = Callable[[], Process]
DOWN_SECONDS = 3.0


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def serve(cluster: Cluster, port: int, tmp_path: Path) -> Serve:
    """Start a daemon, again and again with the same folder and the same address."""

    def start() -> Process:
        daemon = cluster.serve(
            "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")
        )
        cluster.find_url(daemon)
        return daemon

    return start


def kill(daemon: Process) -> None:
    os.kill(daemon.child.pid, signal.SIGKILL)
    daemon.ended()


def describe(port: int, data: Path) -> JobStatus:
    endpoint = Endpoint(Address("127.0.0.1", port), load_token(data))
    with Control(endpoint, job="job", timeout=PATIENCE) as control:
        return control.job()


@pytest.mark.parametrize("backend", [one for one in BACKENDS if one != "grpc"])
def test_no_call_fails_while_the_daemon_is_killed_and_restarted(
    cluster: Cluster, serve: Serve, port: int, tmp_path: Path, backend: str
) -> None:
    daemon = serve()
    ranks = cluster.world(
        4,
        restarted_daemon.call_meanwhile,
        1000,
        ALLHANDS_URL=f"ah://127.0.0.1:{port}/job",
        ALLHANDS_BACKEND=backend,
    )
    for rank in ranks:
        rank.expect("ready")
    incarnation = describe(port, tmp_path / "data").incarnation
    for place in range(20):
        ranks[0].expect("round")
        if place == 3:
            kill(daemon)
            ranks[0].say()
            time.sleep(DOWN_SECONDS)  # calls meet a coordinator that is away for a while
            daemon = serve()
        else:
            ranks[0].say()
    told = [rank.expect("sum") for rank in ranks]
    assert [one["sum"] for one in told] == [6.0 + 999 * 4] * 4
    # Each write was made once, though its answer may have been lost with the daemon.
    assert [(one["counts"], one["length"]) for one in told] == [([80, 80], 0)] * 4
    found = describe(port, tmp_path / "data")
    assert (found.incarnation, found.state, found.epoch) == (incarnation, "running", 1)
    for rank in ranks:
        rank.say()
    assert ranks[3].ended() == 9
    assert [rank.expect("shrunk")["size"] for rank in ranks[:3]] == [3, 3, 3]
    assert [rank.ended() for rank in ranks[:3]] == [0, 0, 0]
    assert describe(port, tmp_path / "data").state == "ended"


def test_members_resume_with_a_token_whose_joins_are_used_up(
    cluster: Cluster, serve: Serve, port: int, tmp_path: Path
) -> None:
    daemon = serve()
    endpoint = Endpoint(Address("127.0.0.1", port), load_token(tmp_path / "data"))
    with Control(endpoint, job="job", timeout=PATIENCE) as admin:
        token = admin.create_token(verbs=["join"], max_joins=2)
    ranks = cluster.world(
        2,
        restarted_daemon.make_group_later,
        ALLHANDS_URL=f"ah://127.0.0.1:{port}/job",
        ALLHANDS_TOKEN=token,
    )
    for rank in ranks:
        rank.expect("ready")
    incarnation = describe(port, tmp_path / "data").incarnation
    kill(daemon)
    serve()
    for rank in ranks:
        rank.say()
    assert [rank.expect("sum")["sum"] for rank in ranks] == [2.0, 2.0]
    # The coordinator hears of the new group by the sessions alone.
    poll_until(lambda: len(describe(port, tmp_path / "data").groups) == 2, PATIENCE)
    assert describe(port, tmp_path / "data").incarnation == incarnation
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0]
