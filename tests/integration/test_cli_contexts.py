"""Credentials and contexts of commands, and completion, as shells ask for it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.testing.daemon import DaemonProcess, run_daemon
from support.documents.output_fields import check_fields


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon whose notice its commands do not find, as if it were on another host."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    with run_daemon(folder) as running:
        token = running.notice.token
        assert token is not None
        (tmp_path / "token").write_text(f"{token}\n")
        empty = tmp_path / "empty"
        empty.mkdir()
        running.environ["XDG_RUNTIME_DIR"] = str(empty)
        yield running


def test_a_token_file_lets_a_command_in(elsewhere: DaemonProcess, tmp_path: Path) -> None:
    named = ("kv", "put", "j", "k", "v", "--coordinator", elsewhere.notice.url)
    refused = elsewhere.run_command(*named)
    assert refused.returncode == 1
    assert "token" in refused.stderr
    let_in = elsewhere.run_command(*named, "--token-file", str(tmp_path / "token"))
    assert let_in.returncode == 0, let_in.stderr


def test_a_context_names_the_coordinator_and_its_token(
    elsewhere: DaemonProcess, tmp_path: Path
) -> None:
    run = elsewhere.run_command
    told = run("context", "list").stdout
    assert "`allhands context set NAME --coordinator ah://HOST:PORT`" in told
    where = ("--coordinator", f"{elsewhere.notice.url}/j", "--token-file", str(tmp_path / "token"))
    assert run("context", "set", "prod", *where).returncode == 0
    assert run("kv", "put", "j", "k", "v", "--context", "prod").returncode == 0
    assert run("status").returncode == 1
    assert run("context", "use", "prod").returncode == 0
    assert run("status", "-o", "name").stdout == "j\n"
    listed = run("context", "list", "-o", "json").stdout
    check_fields(json.loads(listed), is_full=True)
    assert json.loads(listed)["contexts"][0]["is_current"] is True
    shown = run("context", "show", "-o", "json").stdout
    check_fields(json.loads(shown), is_full=True)
    assert run("context", "list", "-o", "name").stdout == "prod\n"
    assert elsewhere.notice.token is not None
    everything = listed + shown + run("context", "show").stdout + run("context", "list").stdout
    assert elsewhere.notice.token not in everything
    assert run("context", "use", "--none").returncode == 0
    assert run("status").returncode == 1
    assert run("context", "delete", "prod").returncode == 0
    gone = run("status", "--context", "prod")
    assert gone.returncode == 2
    assert "no context 'prod'; there are: none" in gone.stderr


def test_a_context_of_a_folder_of_tls_files_has_the_paths_of_those_there_are(
    elsewhere: DaemonProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    named = ("context", "set", "prod", "--coordinator", "ah://h:1", "--tls-dir", str(folder))
    refused = elsewhere.run_command(*named)
    assert refused.returncode == 2
    assert "--tls-dir" in refused.stderr
    assert "ca.crt" in refused.stderr
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (folder / name).write_text("")

    def read_paths() -> tuple[str, ...]:
        shown = json.loads(elsewhere.run_command("context", "show", "prod", "-o", "json").stdout)
        return tuple(shown[name] for name in ("token_file", "tls_ca", "tls_cert", "tls_key"))

    assert elsewhere.run_command(*named).returncode == 0
    files = [str(folder / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    assert read_paths() == (None, *files)
    (folder / "token").write_text("secret\n")
    assert elsewhere.run_command(*named, "--tls-ca", "/other.crt").returncode == 0
    assert read_paths() == (str(folder / "token"), "/other.crt", *files[1:])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["set", "a b", "--coordinator", "ah://h:1"], "holds no space"),
        (["set", "a", "--coordinator", "http://h:1"], "begins with ah://"),
        (["set", "a", "--coordinator", "ah://secret@h:1"], "holds no token"),
        (["set", "a", "--coordinator", "ah://h:1", "--tls-key", "k"], "--tls-cert, --tls-key"),
        (["use"], "NAME of a context, or --none"),
        (["use", "nix"], "no context 'nix'"),
        (["show"], "no context is current"),
        (["delete", "nix"], "no context 'nix'"),
    ],
)
def test_wrong_contexts_are_refused(
    daemon: DaemonProcess, arguments: list[str], complaint: str
) -> None:
    done = daemon.run_command("context", *arguments)
    assert done.returncode == 2
    assert complaint in " ".join(done.stderr.split())


def test_run_takes_a_context_only_if_it_is_named(elsewhere: DaemonProcess) -> None:
    made = elsewhere.run_command(
        "context", "set", "far", "--coordinator", "ah://192.0.2.1:1", "--use"
    )
    assert made.returncode == 0, made.stderr
    program = ("-n", "1", "--no-python", "true")
    done = elsewhere.run_command("run", *program)
    assert done.returncode == 0, done.stderr
    named = elsewhere.run_command("run", "--context", "far", *program)
    assert named.returncode == 2
    assert "192.0.2.1:1 is on another host" in " ".join(named.stderr.split())
    assert "--tls-ca" in named.stderr


# ---------------------------------------------------------------- completion


@pytest.fixture
def bash(daemon: DaemonProcess, tmp_path: Path) -> "Bash":
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "allhands"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m allhands.cli.main "$@"\n')
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{daemon.environ['PATH']}"
    return Bash({**daemon.environ, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path)})


class Bash:
    """A bash with the script of --show-completion, which completes as at a terminal."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ

    def complete(self, *words: str) -> list[str]:
        """Return what bash offers for the last of the words."""
        script = (
            'eval "$(allhands --show-completion)"; COMP_WORDS=(allhands "$@"); COMP_CWORD=$#; '
            '"$(complete -p allhands | sed -n "s/.* -F \\([^ ]*\\) .*/\\1/p")" allhands; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "--norc", "-c", script, "bash", *words]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_jobs(
    bash: Bash, daemon: DaemonProcess, job_name: str
) -> None:
    assert daemon.run_command("kv", "put", job_name, "k", "v").returncode == 0
    assert bash.complete("sta") == ["status"]
    assert bash.complete("kv", "l") == ["list"]
    assert bash.complete("status", "--wa") == ["--watch"]
    assert bash.complete("status", "-o", "y") == ["yaml"]
    assert job_name in bash.complete("status", "")
    assert bash.complete("kv", "get", job_name) == [job_name] or job_name == "job-1"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_of_jobs_does_not_wait_for_a_silent_coordinator(
    bash: Bash, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    with run_daemon(folder) as own:
        bash.environ["XDG_RUNTIME_DIR"] = own.environ["XDG_RUNTIME_DIR"]
        own.process.send_signal(signal.SIGSTOP)
        try:
            assert bash.complete("status", "") == []
        finally:
            own.process.send_signal(signal.SIGCONT)


def ask(environ: dict[str, str], **variables: str) -> str:
    """Return what the command says to the script of a shell."""
    done = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main"],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_zsh_and_fish_have_scripts_and_answers(daemon: DaemonProcess) -> None:
    zsh = ask(daemon.environ, _ALLHANDS_COMPLETE="source_zsh")
    assert "compdef _allhands_completion allhands" in zsh
    words = {"_TYPER_COMPLETE_ARGS": "allhands kv ge", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    said = ask(daemon.environ, _ALLHANDS_COMPLETE="complete_zsh", **words)
    assert said.startswith('_arguments \'*: :(("get":')
    fish = ask(daemon.environ, _ALLHANDS_COMPLETE="source_fish")
    assert fish.startswith("complete --command allhands ")
    said = ask(daemon.environ, _ALLHANDS_COMPLETE="complete_fish", **words)
    assert said.startswith("get\t")
