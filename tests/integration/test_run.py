"""`allhands run`: real launchers with real ranks, which need no collective for what they show."""

import os
import queue
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from allhands.config import derive_port
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.errors import CoordinatorUnavailable
from allhands.launcher.embedded import probe
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until
from support.ranks.addresses import free_port

PATIENCE = 30.0

HANGING = """
    import os, signal, subprocess, sys
    # A rank that does not want to end, with a child in its group and one that has left it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children = [
        subprocess.Popen(["sleep", "600"], start_new_session=detached) for detached in (False, True)
    ]
    print("pids", os.getpid(), *(child.pid for child in children))
    while True:
        signal.pause()
"""


def environment(tmp_path: Path) -> dict[str, str]:
    """Return this process's, with a runtime directory of the test's own."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if "ALLHANDS" not in name}
    return {**kept, "XDG_RUNTIME_DIR": str(runtime)}


@dataclass
class Running:
    """A launcher that was started, and what it has said so far."""

    process: subprocess.Popen[bytes]
    lines: "queue.Queue[str]" = field(default_factory=queue.Queue)
    errors: list[str] = field(default_factory=list)
    said: threading.Event = field(default_factory=threading.Event)
    """Something stands in `errors`."""

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode(errors="backslashreplace").removesuffix("\n"))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="backslashreplace").removesuffix("\n"))
            self.said.set()

    def line(self) -> str:
        return self.lines.get(timeout=PATIENCE)

    def status(self) -> int:
        """Wait for the end of the launcher; return its exit status."""
        status = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return status

    def output(self) -> list[str]:
        """Return what it has printed and nobody has looked at yet."""
        return [self.lines.get_nowait() for _ in range(self.lines.qsize())]


Start = Callable[..., Running]


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts a launcher; whatever is left of it is killed afterwards."""
    started: list[Running] = []

    def start(*arguments: str, **variables: str) -> Running:
        process = subprocess.Popen(
            [sys.executable, "-m", "allhands.cli.main", "run", *arguments],
            env={**environment(tmp_path), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(Running(process))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.status()
        for pipe in (running.process.stdout, running.process.stderr):
            if pipe is not None:
                pipe.close()


def ends(pid: int) -> bool:
    """Wait until the process is gone; say whether that came within patience."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def pids_of_hanging(running: Running, ranks: int) -> list[int]:
    return [int(pid) for _ in range(ranks) for pid in running.line().split()[2:]]


# ---------------------------------------------------------------- what ranks find


def test_ranks_get_their_environment_and_arguments(
    run: Start, script: Callable[[str], str]
) -> None:
    path = script("""
        import os, sys
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"
        print(*(os.environ[name] for name in names), *sys.argv[1:])
    """)
    running = run("-n", "2", path, "--lr", "0.1", "-n", "7", OMP_NUM_THREADS="3")
    assert running.status() == 0
    assert sorted(running.output()) == [
        "[0] 0 2 0 2 3 --lr 0.1 -n 7",
        "[1] 1 2 1 2 3 --lr 0.1 -n 7",
    ]
    assert running.errors == []


def test_a_module_runs_as_with_python_m(run: Start, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    running = run("-n", "1", "-m", "some_module", "-v")
    assert running.status() == 0
    assert running.output() == ["[0] __main__ -v"]


def test_other_shells_find_the_embedded_coordinator(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script("""
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: exit())
        print(os.environ["ALLHANDS_URL"], os.environ["ALLHANDS_TOKEN"])
        signal.pause()
    """)
    running = run("-n", "1", path)
    _, url, token = running.line().split()
    done = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "status", "-o", "json"],
        env=environment(tmp_path),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert url.startswith("ah://127.0.0.1:")
    assert token.encode() not in done.stdout
    running.process.terminate()
    assert running.status() == 143
    assert list((tmp_path / "runtime").rglob("coordinator-*.json")) == []


def test_two_launchers_make_up_one_world(
    run: Start, script: Callable[[str], str], daemon: DaemonProcess
) -> None:
    path = script("""
        import os
        names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT", "ALLHANDS_URL"
        print(*(os.environ[name] for name in names))
    """)
    url, token = daemon.endpoint.address.url, daemon.endpoint.token
    assert token is not None
    options = "-n", "2", "--coordinator", url, "--job", "both", "--nnodes", "2", "--node-rank"
    nodes = [run(*options, str(node), path, ALLHANDS_TOKEN=token) for node in range(2)]
    assert [node.status() for node in nodes] == [0, 0]
    assert sorted(line for node in nodes for line in node.output()) == [
        f"[{rank}] {rank} 4 {rank % 2} {rank // 2} {derive_port('both')} {url}/both"
        for rank in range(4)
    ]


# ---------------------------------------------------------------- output


def test_output_comes_in_whole_lines_on_the_stream_it_was_written_to(
    run: Start, script: Callable[[str], str]
) -> None:
    path = script("""
        import os
        for _ in range(200):
            for piece in (b"half ", b"\\xff", b"\\rline", b"\\n"):
                os.write(1, piece)
        os.write(2, b"to stderr\\n")
        os.write(1, b"no line end")
    """)
    running = run("-n", "3", path)
    assert running.status() == 0
    assert sorted(running.output()) == sorted(
        f"[{rank}] {line}"
        for rank in range(3)
        for line in [*["half \\xff\rline"] * 200, "no line end"]
    )
    assert sorted(running.errors) == [f"[{rank}] to stderr" for rank in range(3)]


def test_tee_keeps_both_streams_of_each_rank_and_overwrites_nothing(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script("""
        import os, sys
        print("out", os.environ["RANK"])
        print("err", file=sys.stderr)
    """)
    directory = tmp_path / "new" / "logs"
    assert run("-n", "2", "--tee", str(directory), path).status() == 0
    kept = {file.name: sorted(file.read_text().splitlines()) for file in directory.iterdir()}
    assert kept == {"rank-0.log": ["err", "out 0"], "rank-1.log": ["err", "out 1"]}

    again = run("-n", "2", "--tee", str(directory), path)
    assert again.status() == 2
    assert "rank-0.log" in " ".join(again.errors)
    assert again.output() == []


def test_a_reader_that_begins_after_the_rank_has_ended_gets_everything(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = script(f"""
        import fcntl, os, pathlib
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # more than waits elsewhere on the way
        pathlib.Path({str(fifo)!r}).write_text(str(os.getpid()))
        for number in range(600):
            os.write(1, b"%d %s\\n" % (number, bytes(1000)))
    """)
    with subprocess.Popen(
        [sys.executable, "-m", "allhands.cli.main", "run", "-n", "1", path],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert ends(int(fifo.read_text()))
        assert process.stdout.read() == b"".join(
            b"[0] %d %s\n" % (number, bytes(1000)) for number in range(600)
        )
        assert process.wait(PATIENCE) == 0


def test_a_launch_whose_output_nobody_takes_ends_its_ranks(
    script: Callable[[str], str], tmp_path: Path
) -> None:
    path = script("""
        import os
        print(os.getpid())
        while True:
            print("more")
    """)
    with subprocess.Popen(
        [sys.executable, "-m", "allhands.cli.main", "run", "-n", "1", path],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pid = int(process.stdout.readline().split()[1])
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert b"the output of rank 0 could not be written: Broken pipe" in process.stderr.read()
    assert ends(pid)


# ---------------------------------------------------------------- failure


def test_the_first_failing_rank_is_named_and_its_traceback_comes_first(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    path = script(f"""
        import os, signal, sys
        def complain(*_):
            print("the other complains", file=sys.stderr)
            sys.exit(4)
        signal.signal(signal.SIGTERM, complain)
        if os.environ["RANK"] == "1":
            open({str(tmp_path / "fifo")!r}, "w").close()  # waits until the other is ready
            raise ValueError("the reason")
        open({str(tmp_path / "fifo")!r}).close()
        signal.pause()
    """)
    running = run("-n", "2", path)
    assert running.status() == 1
    assert running.errors[0] == "[1] Traceback (most recent call last):"
    assert running.errors.index("[1] ValueError: the reason") < running.errors.index(
        "[0] the other complains"
    )
    assert running.errors[-1].startswith("allhands: rank 1 failed first: exit status 1 (host ")


def test_a_rank_that_is_killed_is_named_with_its_signal(
    run: Start, script: Callable[[str], str]
) -> None:
    path = script("""
        import os, signal
        if os.environ["RANK"] == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    """)
    running = run("-n", "3", path)
    assert running.status() == 128 + 9
    assert "rank 2 failed first: killed by SIGKILL" in running.errors[-1]


def test_ranks_that_do_not_want_to_end_are_gone_soon_after_a_failure(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    path = script(f"""
        import os
        if os.environ["RANK"] == "0":
            open({str(tmp_path / "fifo")!r}).close()
            raise SystemExit(5)
        {textwrap.indent(textwrap.dedent(HANGING), " " * 8).strip()}
    """)
    running = run("-n", "2", "--grace", "0.2", path)
    pids = pids_of_hanging(running, 1)
    (tmp_path / "fifo").open("w").close()
    assert running.status() == 5
    assert all(ends(pid) for pid in pids)


def test_a_rank_may_end_well_before_the_others(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    path = script(f"""
        import os
        if os.environ["RANK"] == "1":
            open({str(tmp_path / "fifo")!r}).close()
        print("done", os.getpid())
    """)
    running = run("-n", "2", path)
    first = running.line()
    assert first.startswith("[0] done")
    assert ends(int(first.split()[2]))
    (tmp_path / "fifo").open("w").close()
    assert running.line().startswith("[1] done")
    assert running.status() == 0


def test_the_rank_that_announced_its_failure_is_blamed_though_its_victim_is_gone_first(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    ready, failing = tmp_path / "ready", tmp_path / "failing"
    os.mkfifo(ready)
    os.mkfifo(failing)
    path = script(f"""
        import os, pathlib, select, signal, sys
        from allhands.runtime.exit_notice import send_end_notice
        ready, failing = pathlib.Path({str(ready)!r}), pathlib.Path({str(failing)!r})
        if os.environ["RANK"] == "0":
            victim = os.pidfd_open(int(ready.read_text()))
            print("the reason", file=sys.stderr)
            send_end_notice(os.environ, is_failing=True)
            failing.write_text("")
            select.select([victim], [], [])
            print("more of the reason", file=sys.stderr)
            os._exit(3)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        ready.write_text(str(os.getpid()))
        failing.read_text()
        print("a victim", file=sys.stderr)
        send_end_notice(os.environ, is_failing=True)
        os._exit(1)
    """)
    running = run("-n", "2", path)
    assert running.status() == 3
    assert running.errors[:3] == ["[0] the reason", "[0] more of the reason", "[1] a victim"]
    assert "rank 0 failed first: exit status 3" in running.errors[-1]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("raise ValueError('the reason')", 1),
        ("sys.exit(print('the reason', file=sys.stderr) or 3)", 3),
        ("leave_and_raise()", 1),
    ],
)
def test_of_ranks_in_a_collective_the_one_that_left_is_blamed_and_heard_first(
    run: Start, script: Callable[[str], str], ending: str, status: int
) -> None:
    path = script(f"""
        import sys
        import numpy as np
        import allhands as ah

        def leave_and_raise():
            try:
                raise ValueError("the reason")
            finally:
                ah.destroy_process_group()

        ah.init_process_group()
        ah.barrier()
        if ah.get_rank() == 1:
            {ending}
        ah.all_reduce(np.ones(4))
    """)
    running = run("-n", "4", path)
    assert running.status() == status
    assert f"rank 1 failed first: exit status {status}" in running.errors[-1]
    reason = next(line for line in running.errors if "the reason" in line)
    victims = [line for line in running.errors if line.startswith(("[0]", "[2]", "[3]"))]
    assert all(running.errors.index(reason) < running.errors.index(line) for line in victims)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
@pytest.mark.parametrize("length", [2, 1 << 20])
def test_survivors_say_who_failed_first_and_so_does_the_last_line(
    run: Start, script: Callable[[str], str], end: str, length: int
) -> None:
    path = script(f"""
        import os, signal, sys
        import numpy as np
        import allhands as ah
        ah.init_process_group()
        x = np.ones({length})
        ah.all_reduce(x)
        if ah.get_rank() == 2:
            {end}
        while True:
            ah.all_reduce(x)
    """)
    running = run("-n", "4", path)
    assert running.status() == (1 if end.startswith("sys") else 137)
    named = "] allhands.errors.PeerFailed: all_reduce #2 of group 'world' cannot end: rank 2 (host "
    said = [line for line in running.errors if named in line]
    assert sorted(line[:3] for line in said) == ["[0]", "[1]", "[3]"], running.errors
    how = "killed by SIGKILL (host "
    if end.startswith("sys"):
        how = "it left the job before the others were done, with exit status 0 (host "
    assert running.errors[-1].startswith(f"allhands: rank 2 failed first: {how}")


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_rank_that_is_blocked_elsewhere_is_told_by_an_exception_unless_it_handles_the_signal(
    run: Start, script: Callable[[str], str], backend: str
) -> None:
    path = script(f"""
        import os, signal, sys, threading
        import allhands as ah
        ah.init_process_group(timeout=100, backend={backend!r})
        pair = ah.new_group([0, 1])
        threads = ah.new_group([0, 1])
        with ah.connect() as control:  # for all at once, also if one of them ends then
            control.barrier("ready", str(ah.get_rank()), ["0", "1", "2"])
        if ah.get_rank() == 2:
            os._exit(3)
        if ah.get_rank() == 1:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit("its own handler"))
            signal.pause()
        def blocked():
            try:
                ah.barrier(group=threads)
            except ah.GroupAborted as error:
                print(error.reason)
        thread = threading.Thread(target=blocked)
        thread.start()
        try:
            ah.barrier(group=pair)
        except SystemExit as error:
            thread.join()
            print("blocked", error.code)
            raise
    """)
    running = run("-n", "3", path)
    assert running.status() == 3
    assert running.output() == ["[0] SIGTERM", "[0] blocked 143"]
    assert "[1] its own handler" in running.errors
    assert "rank 2 failed first: exit status 3" in running.errors[-1]


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ranks_are_told_and_the_launcher_ends_as_its_signal_says(
    run: Start, script: Callable[[str], str], signum: signal.Signals
) -> None:
    told = signal.SIGINT if signum is signal.SIGINT else signal.SIGTERM
    path = script(f"""
        import signal, sys
        def tidy(*_):
            print("tidied up")
            sys.exit(0)
        signal.signal({int(told)}, tidy)
        print("ready")
        signal.pause()
    """)
    running = run("-n", "2", path)
    assert sorted(running.line() for _ in range(2)) == ["[0] ready", "[1] ready"]
    running.process.send_signal(signum)
    assert running.status() == 128 + signum
    assert sorted(running.output()) == ["[0] tidied up", "[1] tidied up"]


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
)
def test_no_process_is_left_whatever_signal_ends_the_launcher(
    run: Start, script: Callable[[str], str], signum: signal.Signals
) -> None:
    running = run("-n", "2", "--grace", "0.2", script(HANGING))
    pids = pids_of_hanging(running, 2)
    assert len(pids) == 6
    launch = Path(psutil.Process(pids[0]).environ()["ALLHANDS_LAUNCH"])
    assert launch.is_dir()
    running.process.send_signal(signum)
    assert all(ends(pid) for pid in pids)
    assert running.status() in (-signum, 128 + signum)
    poll_until(lambda: not launch.exists())


def test_ranks_end_with_the_launcher_also_where_the_guardian_was_killed(
    run: Start, script: Callable[[str], str]
) -> None:
    running = run("-n", "2", script(HANGING))
    pids = [pids_of_hanging(running, 1) for _ in range(2)]
    ranks = [rank for rank, *_ in pids]
    for child in psutil.Process(running.process.pid).children():
        if child.pid not in ranks:
            child.kill()
            assert ends(child.pid)
    running.process.kill()
    try:
        assert all(ends(pid) for pid in ranks)
    finally:
        for child_of_rank in (pid for _, *children in pids for pid in children):
            os.kill(child_of_rank, signal.SIGKILL)  # what only the guardian would have ended


def test_a_second_signal_kills_at_once(run: Start, script: Callable[[str], str]) -> None:
    path = script("""
        import signal
        signal.signal(signal.SIGINT, lambda *_: print("interrupted"))
        signal.signal(signal.SIGTERM, lambda *_: print("asked to end"))
        print("ready")
        while True:
            signal.pause()
    """)
    running = run("-n", "1", path)
    assert running.line() == "[0] ready"
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "[0] interrupted"
    running.process.send_signal(signal.SIGINT)
    assert running.status() == 130
    assert "[0] asked to end" not in running.output()  # as a launcher does that got one signal


def test_children_that_ranks_leave_behind_end_with_the_launch(
    run: Start, script: Callable[[str], str]
) -> None:
    path = script("""
        import subprocess
        for detached in (False, True):
            child = subprocess.Popen(["sleep", "600"], start_new_session=detached)
            print(child.pid)
            child.returncode = 0  # or Python warns that it still runs
    """)
    running = run("-n", "1", path)
    assert running.status() == 0
    assert all(ends(int(line.split()[1])) for line in running.output())


def test_a_launcher_that_nobody_reads_from_still_obeys_a_signal(
    tmp_path: Path, script: Callable[[str], str]
) -> None:
    path = script("""
        while True:
            print("x" * 1000)
    """)
    process = subprocess.Popen(
        [sys.executable, "-m", "allhands.cli.main", "run", "-n", "1", path],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with process:
        assert process.stdout is not None
        process.stdout.read(1)  # it is up; from now on the pipe fills
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


# ---------------------------------------------------------------- an interpreter as the program


@pytest.mark.parametrize("name", [sys.executable, Path(sys.executable).name])
def test_an_interpreter_may_stand_before_the_script(
    run: Start, script: Callable[[str], str], name: str
) -> None:
    path = script("""
        import os, sys
        print(os.environ["RANK"], sys.executable, *sys.argv[1:])
    """)
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    running = run("-n", "2", "--", name, "-W", "error", path, "--flag", PATH=found)
    assert running.status() == 0, running.errors
    assert sorted(running.output()) == [
        f"[{rank}] {rank} {os.path.abspath(sys.executable)} --flag" for rank in range(2)
    ]


# ---------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ((), "allhands run -n 4 script.py"),
        (("-n", "2"), "allhands run -n 4 script.py"),
        (("script.py",), "say how many ranks"),
        (("-n", "0", "script.py"), "at least one rank"),
        (("-n", "2", "missing.py"), "there is no 'missing.py'"),
        (("-n", "2", sys.executable), "script.py"),
        (("-n", "2", "--grace", "-1", "script.py"), "--grace"),
        (("-n", "2", "--nnodes", "2", "script.py"), "the same --coordinator and --job"),
        (("-n", "2", "--coordinator", "http://x:1", "script.py"), "begins with ah://"),
        (("-n", "2", "--job", "a b", "script.py"), "no slash and no space"),
        (
            ("-n", "2", "--coordinator", "ah://127.0.0.1:1/a", "--job", "b", "script.py"),
            "name it once",
        ),
        (("-n", "2", "--port-range", "30000", "script.py"), "--port-range must be LOW-HIGH"),
        (
            ("-n", "2", "--port-range", "30000-30002", "script.py"),
            "3 ports are too few for 2 ranks",
        ),
        (("-n", "2", "--interface", "eth77", "script.py"), "no network interface 'eth77'"),
        (("-n", "2", "--advertise", "h:1", "script.py"), "--advertise must be the name"),
    ],
)
def test_wrong_usage_is_refused_with_advice(
    run: Start, script: Callable[[str], str], arguments: tuple[str, ...], advice: str
) -> None:
    script("print('ran')")
    running = run(*arguments, COLUMNS="1000")
    assert running.status() == 2
    assert advice in " ".join(running.errors)
    assert running.output() == []


def test_ranks_listen_where_the_launcher_is_told(run: Start, script: Callable[[str], str]) -> None:
    path = script("""
        import allhands as ah
        ah.init_process_group(timeout=30)
        ah.barrier()
        with ah.connect() as control:
            told = {one.address.rpartition(":")[0] for one in control.job().members}
        if ah.get_rank() == 0:
            print(*told)
        ah.destroy_process_group()
    """)
    running = run("-n", "2", "--interface", "lo", "--advertise", "127.0.0.2", path)
    assert running.status() == 0
    assert running.output() == ["[0] 127.0.0.2"]


def test_a_coordinator_that_is_not_there_yet_is_waited_for_before_any_rank_starts(
    run: Start, script: Callable[[str], str], tmp_path: Path
) -> None:
    port = free_port()
    url = f"ah://127.0.0.1:{port}"
    running = run("-n", "2", "--coordinator", url, script("print('ran')"), ALLHANDS_TOKEN="t")
    assert running.said.wait(PATIENCE)
    [line] = running.errors
    assert f"127.0.0.1:{port} cannot be reached: nothing listens there" in line
    assert "trying again" in line
    serve = [sys.executable, "-m", "allhands.cli.main", "serve", "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "ALLHANDS_TOKEN": "t", "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(serve, env=environment, stderr=subprocess.DEVNULL) as daemon:
        assert running.status() == 0
        daemon.terminate()
    assert sorted(running.output()) == ["[0] ran", "[1] ran"]


def test_a_coordinator_that_never_comes_is_told_of_with_what_is_wrong() -> None:
    nobody = Endpoint(Address("127.0.0.1", free_port()), "t")
    with pytest.raises(CoordinatorUnavailable, match="nothing listens there") as caught:
        probe(nobody, max_wait=0.3)
    assert nobody.address.target in str(caught.value)


def test_a_wrong_token_is_one_line_and_no_rank_starts(
    run: Start, script: Callable[[str], str], daemon: DaemonProcess
) -> None:
    url = daemon.endpoint.address.url
    running = run("-n", "2", script("print('ran')"), ALLHANDS_URL=url, ALLHANDS_TOKEN="wrong")
    assert running.status() == 1
    assert running.output() == []
    [line] = running.errors
    assert "ALLHANDS_TOKEN" in line


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os._exit(3)", 3, "it ended with exit status 3"),
        ("os._exit(0)", 0, "it ended with exit status 0, without having left the job"),
    ],
)
def test_survivors_are_told_how_a_rank_ended(
    run: Start, script: Callable[[str], str], end: str, status: int, words: str
) -> None:
    text = f"""
        import os, signal, sys
        import allhands as ah
        ah.init_process_group(timeout=30)
        ah.barrier()
        if ah.get_rank() == 1:
            {end}
        try:
            ah.barrier()
        except ah.PeerFailed as error:
            [absent] = error.verdict.absent
            print(absent.rank, absent.state, absent.exit_status, absent.signal, absent.text)
        sys.stdout.flush()
        os._exit(0)
    """
    running = run("-n", "3", script(text))
    code = "None 9" if status == 137 else f"{status} None"
    lines = sorted(running.line() for _ in range(2))
    assert [line[1 : line.index("(host")] for line in lines] == [
        f"0] 1 dead {code} rank 1 ",
        f"2] 1 dead {code} rank 1 ",
    ]
    assert all(line.endswith(f"is dead: {words}") for line in lines)
    assert running.status() == status
