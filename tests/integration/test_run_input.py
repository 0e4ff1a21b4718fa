"""Standard input of `allhands run`, which rank 0 reads."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from programs import launched
from support.ranks.launchers import COMMAND, PATIENCE, as_script, environment

_PROGRAM = as_script(launched.show_input)


def _run(tmp_path: Path, *options: str, **streams: object) -> "subprocess.CompletedProcess[bytes]":
    done = subprocess.run(  # type: ignore[call-overload]
        [*COMMAND, *options, *_PROGRAM],
        env=environment(tmp_path),
        capture_output=True,
        timeout=PATIENCE,
        **streams,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_rank_0_reads_the_input_and_the_others_nothing(tmp_path: Path, start: str) -> None:
    done = _run(tmp_path, "--start", start, "-n", "3", input=b"one\ntwo\n")
    assert sorted(done.stdout.splitlines()) == [b"[0] 'one\\ntwo\\n'", b"[1] ''", b"[2] ''"]


def test_ranks_of_hosts_that_are_listed_read_nothing(tmp_path: Path) -> None:
    done = _run(tmp_path, "--hosts", "localhost:2", input=b"one")
    assert sorted(done.stdout.splitlines()) == [b"[0] ''", b"[1] ''"]


def test_a_terminal_is_not_read(tmp_path: Path) -> None:
    terminal, ours = pty.openpty()
    try:
        os.write(terminal, b"typed\n")
        done = _run(tmp_path, "-n", "2", stdin=ours)
    finally:
        os.close(terminal)
        os.close(ours)
    assert sorted(done.stdout.splitlines()) == [b"[0] ''", b"[1] ''"]


def test_without_an_input_there_is_none(tmp_path: Path) -> None:
    done = _run(tmp_path, "-n", "2", preexec_fn=lambda: os.close(0))
    assert sorted(done.stdout.splitlines()) == [b"[0] ''", b"[1] ''"]
