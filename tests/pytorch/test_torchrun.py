"""`torchrun --rdzv-backend=allhands`: rendezvous of agents at a coordinator."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from allhands.testing.daemon import DaemonProcess, run_daemon
from programs import torch_launched
from support.ranks.addresses import address_beyond_loopback, free_port
from support.ranks.launchers import as_script
from support.ranks.output import OutputReader
from support.torch.ranks import run_ranks

_ROOT = Path(__file__).parents[2]
_EXAMPLE = _ROOT / "examples" / "torch" / "restarts.py"
_PATIENCE = 90.0
_QUICK = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6,join_timeout=60"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """torchrun's environment: this tree, with the entry point even if not installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ALLHANDS_")}
    paths = [*sys.path]
    if "allhands" not in entry_points(group="torchrun.handlers").names:
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
        [(name, target)] = project["entry-points"]["torchrun.handlers"].items()
        info = tmp_path / "path" / "allhands_entry-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: allhands-entry\nVersion: 0\n")
        (info / "entry_points.txt").write_text(f"[torchrun.handlers]\n{name} = {target}\n")
        paths.append(str(info.parent))
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "XDG_RUNTIME_DIR": str(runtime),
        "OMP_NUM_THREADS": "1",
    }


class _Agent:
    """A torchrun process with the output so far."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=allhands", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self.workers: set[int] = set()
        self._spoke = threading.Condition()
        self._reader = OutputReader()
        self._reader.read(self.process.stdout, self._take, at_end=lambda: self._take(""))

    def until(self, what: str) -> str:
        """Wait for a line that matches a pattern; return the line."""
        seen = 0

        def found() -> str | None:
            nonlocal seen
            new, seen = self.said[seen:], len(self.said)
            hit = next((line for line in new if re.search(what, line)), None)
            if hit is None and not self._reader.is_reading:
                raise AssertionError(f"torchrun ended without {what!r}:\n{''.join(self.said)}")
            return hit

        with self._spoke:
            line = self._spoke.wait_for(found, _PATIENCE)
        assert line is not None, f"{what!r} did not come:\n{''.join(self.said)}"
        return line

    def ended(self) -> str:
        """Wait for the end; return the whole output."""
        status = self.process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        assert status == 0, "".join(self.said)
        return "".join(self.said)

    def kill(self) -> None:
        """Kill torchrun and the workers named by `worker PID`, in place of a host's loss."""
        for pid in (self.process.pid, *self.workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(_PATIENCE)
        self._reader.join(_PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _take(self, line: str) -> None:
        with self._spoke:
            self.said.append(line)
            if told := re.search(r"worker (\d+)", line):
                self.workers.add(int(told[1]))
            self._spoke.notify_all()


@pytest.fixture
def torchrun(environment: dict[str, str]) -> Iterator[Callable[..., _Agent]]:
    agents: list[_Agent] = []

    def start(*arguments: str, **more: str) -> _Agent:
        agents.append(_Agent({**environment, **more}, *arguments))
        return agents[-1]

    yield start
    for agent in agents:
        agent.kill()


@pytest.fixture
def daemon(environment: dict[str, str]) -> Iterator[DaemonProcess]:
    with run_daemon(Path(environment["XDG_RUNTIME_DIR"])) as running:
        yield running


def test_a_worker_that_is_killed_is_named_and_the_job_goes_on(
    torchrun: Callable[..., _Agent], tmp_path: Path
) -> None:
    agent = torchrun(
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--rdzv-id=killed once",
        str(_EXAMPLE),
        "--steps=6",
        "--kill-rank=1",
        f"--folder={tmp_path}",
    )
    said = agent.ended()
    lost = re.search(r"job (\S+): rank 1 \(host \S+, pid (\d+)\) is lost", said)
    assert lost is not None, said
    assert lost[1].startswith("torchrun-killed-once-world-")
    assert f"pid: {lost[2]}" in said  # as torchrun's own line has it
    assert "2 ranks begin at step 0" in said
    assert "2 ranks begin at step 3" in said
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)", said, re.MULTILINE)]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)


@pytest.mark.timeout(240)  # six times somebody imports PyTorch, after one another
def test_a_world_grows_with_a_node_and_goes_on_when_that_is_lost(
    torchrun: Callable[..., _Agent], daemon: DaemonProcess, tmp_path: Path
) -> None:
    arguments = (
        "--nnodes=1:2",
        "--nproc-per-node=1",
        "--max-restarts=3",
        "--rdzv-id=growing",
        f"--rdzv-endpoint=127.0.0.1:{daemon.notice.port}",
        f"--rdzv-conf=is_host=false,{_QUICK}",
        "--local-addr=127.0.0.1",
        *as_script(torch_launched.grow_and_shrink, tmp_path / "seen"),
    )
    first = torchrun(*arguments)
    first.until("size 1")
    second = torchrun(*arguments)
    second.until("worker")
    _until_exists(tmp_path / "seen")
    second.kill()
    assert "alone again" in first.ended()


def _until_exists(path: Path) -> None:
    """Poll for a file: there is no portable event."""
    look = threading.Event()
    for _ in range(int(_PATIENCE / 0.05)):
        if path.exists():
            return
        look.wait(0.05)
    raise AssertionError(f"{path} did not appear")


# ---------------------------------------------------------------- the agents' side alone


def _parameters(endpoint: str, max_nodes: int = 1, **more: Any) -> Any:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    return RendezvousParameters("allhands", endpoint, "run", 1, max_nodes, "127.0.0.1", **more)


def _in_a_process(body: Callable[[], Any], **environment: str) -> Any:
    """Call `body` in a process fit to host a coordinator: the test runner goes on to fork."""
    return run_ranks(1, lambda _: body(), init=False, environment=environment)[0]


def test_the_state_is_set_only_by_who_knows_the_one_before() -> None:
    def body() -> list[Any]:
        from allhands.coordinator.client import Control
        from allhands.stores import TCPStore
        from allhands.torch.rendezvous.elastic import RendezvousState

        with TCPStore("127.0.0.1", 0, is_master=True) as host:
            state = RendezvousState(Control(host.endpoint, job="run"))
            told: list[Any] = [state.get_state(), state.set_state(b"early", b"some token")]
            told.append(state.set_state(b"first"))
            found = state.get_state()
            assert found is not None
            value, token = found
            told += [value, state.set_state(b"again")]
            told += [state.set_state(b"second", token), state.set_state(b"late", token)]
            told += [state.set_state(b"x", token="no token of ours"), state.name]
            return told

    none, early, first, found, again, second, late, strange, name = _in_a_process(body)
    assert none is None
    assert early is None
    assert (first[0], first[2]) == (b"first", True)
    assert found == b"first"
    assert (again[0], again[2]) == (b"first", False)
    assert (second[0], second[2]) == (b"second", True)
    assert (late[0], late[2]) == (b"second", False)
    assert (strange[0], strange[2]) == (b"second", False)
    assert name == "allhands"


def test_the_first_agent_hosts_and_the_last_one_leaves_nothing(daemon: DaemonProcess) -> None:
    def alone() -> tuple[str, str, int, int]:
        from allhands.torch.rendezvous.elastic import make_handler

        handler = make_handler(_parameters(""))
        told = handler.next_rendezvous()
        url = os.environ["ALLHANDS_URL"]
        assert handler.shutdown()
        return handler.get_backend(), url, told.rank, told.world_size

    backend, url, rank, size = _in_a_process(alone)
    assert (backend, rank, size) == ("allhands", 0, 1)
    assert re.fullmatch(r"ah://127\.0\.0\.1:\d+/torchrun-run", url)

    def beside() -> list[Any]:
        from allhands.coordinator.client import connect
        from allhands.torch.rendezvous.elastic import make_handler

        at = f"127.0.0.1:{daemon.notice.port}"
        agents = [make_handler(_parameters(at, 2, is_host=False)) for _ in range(2)]
        with connect(f"ah://{at}/torchrun-run.rendezvous") as control:
            counts = [control.count()]
            for agent in agents:
                agent.set_closed()
                agent.shutdown()
                counts.append(control.count())
        return counts

    runtime = daemon.environ["XDG_RUNTIME_DIR"]
    before, between, after = _in_a_process(beside, XDG_RUNTIME_DIR=runtime)
    assert before > 0
    assert between > 0
    assert after == 0


def test_two_agents_of_one_host_find_that_one_of_them_hosts() -> None:
    port = free_port()

    def body() -> tuple[bool, bool]:
        from allhands.torch.rendezvous.elastic import make_handler

        first = make_handler(_parameters(f"localhost:{port}", 2))
        second = make_handler(_parameters(f"localhost:{port}", 2))
        told = first._host is not None, second._host is not None
        second.shutdown()
        first.shutdown()
        return told

    assert _in_a_process(body) == (True, False)


def _refusal(parameters: Any) -> str:
    def body() -> str:
        from allhands.torch.rendezvous.elastic import make_handler

        try:
            make_handler(parameters)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing was refused"

    return str(_in_a_process(body))


def test_several_nodes_need_an_endpoint() -> None:
    said = _refusal(_parameters("", 2))
    assert said.startswith("ValueError")
    assert "--rdzv-endpoint=host:port" in said


def test_an_agent_that_finds_no_coordinator_says_where_it_looked() -> None:
    port = free_port()
    said = _refusal(_parameters(f"127.0.0.1:{port}", 2, is_host="false", connect_timeout="1"))
    assert said.startswith("RendezvousConnectionError")
    assert str(port) in said


def test_an_agent_does_not_listen_to_strangers_unasked() -> None:
    address = address_beyond_loopback()
    said = _refusal(_parameters(f"{address}:{free_port()}", 2, is_host="true"))
    assert said.startswith("ValueError")
    assert "ALLHANDS_INSECURE=1" in said
    assert "allhands serve" in said


def test_a_port_that_is_taken_is_said_to_be_where_this_agent_must_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = _refusal(_parameters(f"127.0.0.1:{port}", 2, is_host="true"))
    assert said.startswith("RendezvousConnectionError")
    assert str(port) in said
