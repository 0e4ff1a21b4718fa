"""Sessions of commands, as pages show them: run in order, in one folder and one environment.

Commands of allhands are forked from a process that has imported it; `curl` is run as it is. What
ends with `&` goes on beside the others until the session is over. Where a page shows what a
command prints, `...` stands for anything; where it shows nothing, anything may be printed.
"""

import doctest
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import document_blocks
from support.documents.commands import Command, read_session, split_commands
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Process
from support.served_daemon import find_free_port

ADDRESSES = ("127.0.0.1:7070", "127.0.0.1:7071")
"""Of a daemon in pages, and of its metrics; where these are run, the ports are other ones."""
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Session:
    """A shell, as far as pages need one."""

    cluster: Cluster
    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)
    """The environment of its commands, beside that of the cluster's processes."""

    def __post_init__(self) -> None:
        self._places = {place: f"127.0.0.1:{find_free_port()}" for place in ADDRESSES}

    def run(self, text: str, name: str) -> None:
        """Run the commands of a block.

        Raises:
            AssertionError: a command failed, or printed something else than the block shows.
        """
        for line, shown in read_session(text):
            [command] = split_commands(self._replace(line))
            printed = self._run_command(command, is_beside=line.rstrip().endswith("&"))
            want, got = _sort_ranks(self._replace(shown)), _sort_ranks(printed)
            is_same = not want or doctest.OutputChecker().check_output(want, got, _FLAGS)
            assert is_same, f"{name}: $ {line}prints\n{got}and not\n{want}"

    def _replace(self, text: str) -> str:
        for place, here in self._places.items():
            text = text.replace(place, here)
        return text

    def _run_command(self, command: Command, *, is_beside: bool) -> str:
        """Run a command; return what it writes to standard output."""
        match command.words:
            case ("export",):
                self.variables |= dict(one.split("=", 1) for one in command.variables)
            case ("curl", *_):
                return self._run_shell(command)
            case ("allhands", *arguments):
                return self._run_allhands(command, arguments, is_beside=is_beside)
            case _:
                raise AssertionError(f"sessions do not run this: {command.text}")
        return ""

    def _run_shell(self, command: Command) -> str:
        if shutil.which(command.words[0]) is None:
            return ""
        environment = {**self.cluster.environment, **self.variables}
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"$ {command.text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run_allhands(self, command: Command, arguments: list[str], *, is_beside: bool) -> str:
        output = self.folder / "output"
        own = dict(one.split("=", 1) for one in command.variables)
        process = self.cluster.start(
            document_blocks.run_command,
            str(self.folder),
            command.stdin or "/dev/null",
            "/dev/null" if is_beside else str(output),
            arguments,
            **{**self.variables, **own},
        )
        if is_beside:
            for place in self._places.values():
                if place in command.text:
                    _wait_until_listening(place, process)
            return ""
        status = process.ended()
        assert status == 0, f"$ {command.text}: status {status}\n{''.join(process.errors)}"
        return output.read_text(encoding="utf-8")


def _wait_until_listening(place: str, process: Process) -> None:
    host, _, port = place.partition(":")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        assert process.child.poll() is None, "".join(process.errors)
        time.sleep(0.05)  # a port that opens: there is no event for that
    raise AssertionError(f"nothing listens at {place}: {''.join(process.errors)}")


def _sort_ranks(text: str) -> str:
    """Put lines of ranks, `[2] ...`, in the order of ranks: they come in any."""
    lines = text.splitlines(keepends=True)
    return "".join(sorted(lines) if lines and lines[0].startswith("[") else lines)
