"""`allhands run`: real launchers and ranks, mostly without collectives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allhands.config import derive_port
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.errors import CoordinatorUnavailable
from allhands.launcher.embedded import probe
from allhands.testing.daemon import DaemonProcess
from programs import launched, launched_ranks
from support.ranks.addresses import free_port
from support.ranks.launchers import (
    COMMAND,
    PATIENCE,
    Start,
    as_script,
    ends,
    environment,
)

# ---------------------------------------------------------------- what ranks find


def test_ranks_get_their_environment_and_arguments(run: Start) -> None:
    names = "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,OMP_NUM_THREADS"
    program = as_script(launched.show_environment, names)
    running = run("-n", "2", *program, "--lr", "0.1", "-n", "7", OMP_NUM_THREADS="3")
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


def test_other_shells_find_the_embedded_coordinator(run: Start, tmp_path: Path) -> None:
    program = as_script(launched.wait_to_end)
    running = run("-n", "1", *program)
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


def test_two_launchers_make_up_one_world(run: Start, daemon: DaemonProcess) -> None:
    program = as_script(
        launched.show_environment,
        "RANK,WORLD_SIZE,LOCAL_RANK,GROUP_RANK,MASTER_PORT,ALLHANDS_URL",
    )
    url, token = daemon.endpoint.address.url, daemon.endpoint.token
    assert token is not None
    options = "-n", "2", "--coordinator", url, "--job", "both", "--nnodes", "2", "--node-rank"
    nodes = [run(*options, str(node), *program, ALLHANDS_TOKEN=token) for node in range(2)]
    assert [node.status() for node in nodes] == [0, 0]
    assert sorted(line for node in nodes for line in node.output()) == [
        f"[{rank}] {rank} 4 {rank % 2} {rank // 2} {derive_port('both')} {url}/both"
        for rank in range(4)
    ]


# ---------------------------------------------------------------- output


def test_output_comes_in_whole_lines_on_the_stream_it_was_written_to(run: Start) -> None:
    program = as_script(launched.write_pieces_of_lines)
    running = run("-n", "3", *program)
    assert running.status() == 0
    assert sorted(running.output()) == sorted(
        f"[{rank}] {line}"
        for rank in range(3)
        for line in [*["half \\xff\rline"] * 200, "no line end"]
    )
    assert sorted(running.errors) == [f"[{rank}] to stderr" for rank in range(3)]


def test_tee_keeps_both_streams_of_each_rank_and_overwrites_nothing(
    run: Start, tmp_path: Path
) -> None:
    program = as_script(launched.write_both_streams)
    directory = tmp_path / "new" / "logs"
    assert run("-n", "2", "--tee", str(directory), *program).status() == 0
    kept = {file.name: sorted(file.read_text().splitlines()) for file in directory.iterdir()}
    assert kept == {"rank-0.log": ["err", "out 0"], "rank-1.log": ["err", "out 1"]}

    again = run("-n", "2", "--tee", str(directory), *program)
    assert again.status() == 2
    assert "rank-0.log" in " ".join(again.errors)
    assert again.output() == []


def test_a_reader_that_begins_after_the_rank_has_ended_gets_everything(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = as_script(launched.write_much_and_end, fifo)
    with subprocess.Popen(
        [*COMMAND, "-n", "1", *program],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert ends(int(fifo.read_text()))
        assert process.stdout.read() == b"".join(
            b"[0] %d %s\n" % (number, bytes(1000)) for number in range(600)
        )
        assert process.wait(PATIENCE) == 0


def test_a_launch_whose_output_nobody_takes_ends_its_ranks(tmp_path: Path) -> None:
    program = as_script(launched.write_for_ever)
    with subprocess.Popen(
        [*COMMAND, "-n", "1", *program],
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


# ---------------------------------------------------------------- an interpreter as the program


@pytest.mark.parametrize("name", [sys.executable, Path(sys.executable).name])
def test_an_interpreter_may_stand_before_the_script(run: Start, name: str) -> None:
    program = as_script(launched.show_interpreter)
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    running = run("-n", "2", "--", name, "-W", "error", *program, "--flag", PATH=found)
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
    run: Start, tmp_path: Path, arguments: tuple[str, ...], advice: str
) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    running = run(*arguments, COLUMNS="1000")
    assert running.status() == 2
    assert advice in " ".join(running.errors)
    assert running.output() == []


def test_ranks_listen_where_the_launcher_is_told(run: Start) -> None:
    program = as_script(launched_ranks.show_addresses)
    running = run("-n", "2", "--interface", "lo", "--advertise", "127.0.0.2", *program)
    assert running.status() == 0
    assert running.output() == ["[0] 127.0.0.2"]


@pytest.mark.parametrize("token", ["t", ""])
def test_a_coordinator_that_is_not_there_yet_is_waited_for_before_any_rank_starts(
    run: Start, tmp_path: Path, token: str
) -> None:
    port = free_port()
    url = f"ah://127.0.0.1:{port}"
    # Without a token it is the one in the notice that the daemon leaves.
    running = run(
        "-n", "2", "--coordinator", url, *as_script(launched.show_a_word), ALLHANDS_TOKEN=token
    )
    assert running.said.wait(PATIENCE)
    [line] = running.errors
    assert f"127.0.0.1:{port} cannot be reached: nothing listens there" in line
    assert "trying again" in line
    serve = [sys.executable, "-m", "allhands.cli.main", "serve", "--listen", f"127.0.0.1:{port}"]
    given = {**environment(tmp_path), "ALLHANDS_TOKEN": token}
    with subprocess.Popen(serve, env=given, stderr=subprocess.DEVNULL) as daemon:
        try:
            assert running.status() == 0, running.errors
        finally:
            daemon.terminate()
    assert sorted(running.output()) == ["[0] ran", "[1] ran"]


def test_a_coordinator_that_never_comes_is_told_of_with_what_is_wrong() -> None:
    nobody = Endpoint(Address("127.0.0.1", free_port()), "t")
    with pytest.raises(CoordinatorUnavailable, match="nothing listens there") as caught:
        probe(nobody, max_wait=0.3)
    assert nobody.address.target in str(caught.value)


def test_a_wrong_token_is_one_line_and_no_rank_starts(run: Start, daemon: DaemonProcess) -> None:
    url = daemon.endpoint.address.url
    running = run(
        "-n", "2", *as_script(launched.show_a_word), ALLHANDS_URL=url, ALLHANDS_TOKEN="wrong"
    )
    assert running.status() == 1
    assert running.output() == []
    [line] = running.errors
    assert "ALLHANDS_TOKEN" in line


def test_ranks_of_one_host_keep_no_thread_for_looking_up_names(run: Start) -> None:
    running = run("-n", "2", *as_script(launched_ranks.show_threads))
    assert running.status() == 0, running.errors
    for line in running.output():
        names = json.loads(line.split(" ", 1)[1])
        # The caller's, that of the job, and that of the world's calls where ranks began too far
        # apart to settle their way before the first.
        assert len(names) in (2, 3), names
        assert not [one for one in names if one.startswith(("uvloop", "asyncio"))]
