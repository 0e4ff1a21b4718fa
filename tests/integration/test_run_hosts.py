"""`allhands run --hosts`: several hosts, by a stand-in for ssh and by ssh itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.bench import netns
from allhands.testing.poll import poll_until
from programs import launched, launched_ranks
from support import ssh_double
from support.ranks.addresses import free_port
from support.ranks.launchers import Launcher, Start, as_script, ends, pids_of_hanging

SSH = f"{sys.executable} {ssh_double.__file__}"
HERE = {"SSH_DOUBLE_HOSTS": json.dumps({"a": 0, "b": 0})}
"""Hosts that are this one, reached as if they were others."""


def start(run: Start, *arguments: str, **variables: str) -> Launcher:
    return run("--ssh", SSH, "--launcher-address", "127.0.0.1", *arguments, **HERE, **variables)


def test_ranks_of_all_hosts_are_one_world(run: Start) -> None:
    names = "RANK,WORLD_SIZE,LOCAL_RANK,LOCAL_WORLD_SIZE,GROUP_RANK,GROUP_WORLD_SIZE"
    running = start(
        run, "--hosts", "a,b:2", "-n", "1", *as_script(launched.show_environment, names)
    )
    assert running.status() == 0
    assert sorted(running.output()) == ["[0] 0 3 0 1 0 2", "[1] 1 3 0 2 1 2", "[2] 2 3 1 2 1 2"]


def test_they_meet_at_the_launchers_coordinator(run: Start) -> None:
    running = start(run, "--hosts", "a:1,b:2", *as_script(launched_ranks.show_sum))
    assert running.status() == 0, running.errors
    assert sorted(running.output()) == [f"[{rank}] sum 3.0" for rank in range(3)]


def test_a_host_file_names_the_hosts(run: Start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    running = start(run, "--hostfile", "hosts", *as_script(launched.show_a_word))
    assert running.status() == 0
    assert sorted(running.output()) == ["[0] ran", "[1] ran"]


def test_the_first_failing_rank_is_named_and_its_status_is_the_launchers(
    run: Start, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = as_script(launched.fail_beside_one_that_hangs, tmp_path / "fifo")
    running = start(run, "--hosts", "a:1,b:1", "--grace", "0.2", *program)
    pids = pids_of_hanging(running, 1)
    (tmp_path / "fifo").open("w").close()
    assert running.status() == 5
    assert "failed first: exit status 5 (host " in running.errors[-1]
    assert all(ends(pid) for pid in pids)


def test_the_victim_is_not_blamed(run: Start) -> None:
    program = as_script(launched_ranks.lose_rank_one_in_a_collective, "raise")
    running = start(run, "--hosts", "a:1,b:1", *program)
    assert running.status() == 1
    assert "rank 1 failed first: exit status 1" in running.errors[-1]


def test_failures_are_tolerated_down_to_a_number_of_ranks(run: Start) -> None:
    program = as_script(launched.end_with, 0, 7)
    running = start(run, "--hosts", "a:1,b:1", "--min-size", "1", *program)
    assert running.status() == 0
    assert any("rank 1 failed: exit status 7" in line for line in running.errors)


def test_a_failure_restarts_the_ranks_of_all_hosts(run: Start) -> None:
    program = as_script(launched_ranks.stall_at_first, 1)
    options = "--on-stall", "restart", "--stall-after", "0.5", "--max-restarts", "1"
    running = start(run, "--hosts", "a:1,b:1", *options, "--grace", "1", *program)
    assert running.status() == 0, running.errors
    assert sorted(running.output()[-2:]) == [f"[{rank}] attempt 1 True" for rank in range(2)]


def test_a_stall_is_aborted(run: Start) -> None:
    program = as_script(launched_ranks.stall_at_first, 1)
    options = "--on-stall", "abort", "--stall-after", "0.5", "--grace", "1"
    running = start(run, "--hosts", "a:1,b:1", *options, *program)
    assert running.status() == 124
    assert any("allhands: stalled: all_reduce" in line for line in running.errors)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_ranks_of_all_hosts(run: Start, signum: int) -> None:
    program = as_script(launched.hang)
    running = start(run, "--hosts", "a:1,b:1", "--grace", "0.2", *program)
    pids = pids_of_hanging(running, 2)
    running.process.send_signal(signum)
    assert running.status() == 128 + signum
    assert all(ends(pid) for pid in pids)


def test_ranks_end_when_the_launcher_is_killed(run: Start) -> None:
    running = start(run, "--hosts", "a:1,b:1", *as_script(launched.hang))
    pids = pids_of_hanging(running, 2)
    running.process.kill()
    assert all(ends(pid) for pid in pids)


def test_a_host_that_is_lost_ends_the_launch(run: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    running = start(run, "--hosts", "a:1,b:1", *as_script(launched.hang), SSH_DOUBLE_LOG=str(log))
    pids = pids_of_hanging(running, 2)
    poll_until(lambda: len(log.read_text().splitlines()) == 2)
    [agent, _] = sorted(_find_children(running.process.pid, "allhands.launcher.agent"))
    os.kill(agent, signal.SIGKILL)
    assert running.status() == 1
    assert "the ranks of a host were lost: host " in running.errors[-1]
    assert "its agent ended with status -9" in running.errors[-1]
    assert all(ends(pid) for pid in pids)


def _find_children(parent: int, word: str) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [one for one in map(int, children) if word in Path(f"/proc/{one}/cmdline").read_text()]


def test_nothing_secret_is_in_an_argument(run: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = as_script(launched.show_environment, "ALLHANDS_TOKEN,OF_THE_USER")
    running = start(
        run,
        *("--hosts", "a:1", "--env", "OF_THE_USER=open-sesame", *program),
        SSH_DOUBLE_LOG=str(log),
    )
    assert running.status() == 0
    [line] = running.output()
    _, token, given = line.split()
    assert given == "open-sesame"
    [arguments] = map(json.loads, log.read_text().splitlines())
    assert "BatchMode=yes" in arguments
    assert not any(token in one or given in one for one in arguments)


def test_settings_of_allhands_reach_the_other_hosts(run: Start) -> None:
    program = as_script(launched.show_environment, "ALLHANDS_BACKEND,ALLHANDS_PORT_RANGE")
    running = start(
        run, "--hosts", "a:1", "--port-range", "30000-30999", *program, ALLHANDS_BACKEND="socket"
    )
    assert running.status() == 0
    assert running.output() == ["[0] socket 30000-30999"]


def test_output_is_copied_here(run: Start, tmp_path: Path) -> None:
    running = start(run, "--hosts", "a:1,b:1", "--tee", "logs", *as_script(launched.show_a_word))
    assert running.status() == 0
    assert [(tmp_path / f"logs/rank-{rank}.log").read_text() for rank in range(2)] == ["ran\n"] * 2


def test_another_folder_is_gone_to(run: Start, tmp_path: Path) -> None:
    folder = tmp_path / "else where"
    folder.mkdir()
    (folder / "say.py").write_text("import os; print(os.getcwd())")
    (tmp_path / "say.py").write_text("")  # the launcher looks at its own
    running = start(run, "--hosts", "a:1", "--remote-dir", str(folder), "say.py")
    assert running.status() == 0
    assert running.output() == [f"[0] {folder}"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hosts", "a:1,nowhere:1"), "host nowhere: its agent ended with status 255 (ssh: Could"),
        (("--hosts", "a:1", "--remote-python", "/no/python"), "host a: there is no such Python"),
        (("--hosts", "a:1", "--remote-dir", "/no/folder"), "/no/folder"),
    ],
)
def test_a_host_that_cannot_start_ranks_is_named_and_none_is_started(
    run: Start, options: tuple[str, ...], said: str
) -> None:
    running = start(run, *options, *as_script(launched.show_a_word))
    assert running.status() == 1
    assert said in running.errors[-1]
    assert running.output() == []


def fake_python(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit('python: No module named allhands')", "its Python has no allhands"),
        ("print('Welcome to this host')", "does its shell print something"),
        (
            "import json, os, struct; m = json.dumps({'version': '0.0.1'}).encode();"
            "os.write(1, struct.pack('!II', 0, len(m)) + m)",
            "host a has allhands 0.0.1, and this one",
        ),
    ],
)
def test_an_unfit_agent_is_told_of_by_name(
    run: Start, tmp_path: Path, text: str, said: str
) -> None:
    python = fake_python(tmp_path, text)
    running = start(
        run, "--hosts", "a:1", "--remote-python", python, *as_script(launched.show_a_word)
    )
    assert running.status() == 1
    assert said in running.errors[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hosts", "a"), "say how many ranks a gets"),
        (("--hosts", "a:1", "--hostfile", "hosts"), "one of the two"),
        (("--hostfile", "no-such-file", "-n", "1"), "no-such-file"),
        (("--hosts", "a:1", "--nnodes", "2"), "--nnodes"),
        (("--hosts", "a:1", "--advertise", "10.0.0.1"), "--interface"),
        (("--hosts", "a:1", "--min-size", "2"), "2 of 1 ranks cannot be left"),
        (("--hosts", "a:1", "--coordinator", "ah://127.0.0.1:7"), "other hosts do not reach"),
        (("--hosts", "a:1", "--ssh", ""), "--ssh"),
    ],
)
def test_contradictory_options_are_wrong_usage(
    run: Start, options: tuple[str, ...], said: str
) -> None:
    running = start(run, *options, *as_script(launched.show_a_word))
    assert running.status() == 2
    assert said in " ".join(running.errors)


def test_hosts_with_networks_of_their_own_are_one_world(run: Start) -> None:
    try:
        with netns.open_two_hosts(None) as (here, there):
            holder = int(there.command_prefix[there.command_prefix.index("--target") + 1])
            hosts = json.dumps({there.name: holder})
            program = as_script(launched_ranks.show_sums_and_plaintext)
            options = ("--ssh", SSH, "--hosts", f"{here.name}:1,{there.name}:1")
            running = run(
                *(*options, "--launcher-address", here.address, *program),
                prefix=tuple(here.command_prefix),
                SSH_DOUBLE_HOSTS=hosts,
            )
            assert running.status() == 0, running.errors
            said = "sums, plaintext 0 sockets 1"
            assert sorted(running.output()) == [f"[{rank}] {said}" for rank in range(2)]
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[str]:
    """A server of ssh on loopback with keys of its own; gives the command that logs in."""
    server = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if server is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh (apt install openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # which sshd wants of root
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.2",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    with subprocess.Popen(
        [server, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        else:
            pytest.skip("sshd does not start here")
        try:
            yield (
                f"ssh -F none -p {port} -i {folder}/user -o StrictHostKeyChecking=no "
                f"-o UserKnownHostsFile={folder}/known -o LogLevel=ERROR"
            )
        finally:
            process.terminate()


def test_ranks_start_over_ssh_itself(run: Start, sshd: str) -> None:
    program = as_script(launched_ranks.show_sums_and_plaintext)
    running = run("--ssh", sshd, "--hosts", "127.0.0.2:2", *program)
    assert running.status() == 0, running.errors


def test_ranks_end_when_ssh_itself_is_killed(run: Start, sshd: str) -> None:
    running = run("--ssh", sshd, "--hosts", "127.0.0.2:1", *as_script(launched.hang))
    pids = pids_of_hanging(running, 1)
    [client] = _find_children(running.process.pid, "ssh")
    os.kill(client, signal.SIGKILL)
    assert running.status() == 1
    assert all(ends(pid) for pid in pids)


def test_a_signal_reaches_ranks_over_ssh_itself(run: Start, sshd: str) -> None:
    running = run("--ssh", sshd, "--hosts", "127.0.0.2:1", *as_script(launched.wait_to_end))
    running.line()
    running.process.send_signal(signal.SIGTERM)
    assert running.status() == 128 + signal.SIGTERM
