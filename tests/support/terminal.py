"""Commands whose standard error is a terminal."""

import contextlib
import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence


def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> "tuple[subprocess.CompletedProcess[str], str]":
    """Run a command; return how it ended, with its standard output, and what the terminal got."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (24, 80))
    process = subprocess.Popen(
        command,
        env=None if environment is None else {**environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=child,
        text=True,
        start_new_session=True,
    )
    os.close(child)
    shown = b""
    with os.fdopen(parent, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while more := terminal.read(4096):
            shown += more
    output, _ = process.communicate(timeout=30)
    done = subprocess.CompletedProcess(command, process.returncode, output)
    return done, shown.decode()
