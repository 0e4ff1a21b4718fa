"""`allhands lock`: a lock of a job, for a command or until interrupted."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.holding import (
    FOR_LONG,
    SHELL_SIGNALS,
    TimeoutOption,
    handling_signals,
    interruptible,
    wait_for_signal,
    write_error,
)
from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import write_line
from allhands.cli.render import Output, make_output_option, print_document
from allhands.escapes import escape_line

if TYPE_CHECKING:
    from allhands.coordinator.lock import Lock

_END_SECONDS = 10.0
"""For which a command has time to end after SIGTERM, when its lock was lost."""


@takes_client
def lock_command(
    job: JobArgument,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="Run with the lock held; else it is held until Ctrl-C."
        ),
    ] = None,
    ttl: Annotated[
        float,
        typer.Option(
            "--ttl", metavar="SECONDS", help="Seconds after which a lock that nobody keeps is free."
        ),
    ] = 10.0,
    timeout: TimeoutOption = FOR_LONG,
    output: Annotated[
        Output,
        make_output_option(Output.TABLE, Output.JSON, Output.YAML, note=" without a COMMAND"),
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Hold a lock: in the order of asking, one at a time.

    COMMAND finds ALLHANDS_LOCK_KEY and ALLHANDS_LOCK_REVISION, the fencing token, in its
    environment, and its exit status is that of this command. Without one the key is written when
    the lock is held. SIGINT and SIGTERM are passed on to COMMAND, and release the lock.
    """
    with client.open(job) as control, interruptible():
        lock = control.lock(name, ttl=ttl)
        lock.acquire(timeout=timeout)
        try:
            if command:
                status = _run(command, lock)
            else:
                _hold(lock, output)
                status = 0
        finally:
            if not lock.is_lost:
                lock.release()
    raise typer.Exit(status)


def _hold(lock: "Lock", output: Output) -> None:
    if output.is_document:
        fields = {"key": lock.key, "revision": lock.revision}
        print_document("Lock", fields, output, in_stream=True)
    else:
        write_line(escape_line(lock.key))
    wait_for_signal(lock.lost, f"lock {lock.key!r}")


def _run(command: Sequence[str], lock: "Lock") -> int:
    """Run a command to its end, and return its exit status; 1: the lock was lost meanwhile."""
    held = {"ALLHANDS_LOCK_KEY": lock.key, "ALLHANDS_LOCK_REVISION": str(lock.revision)}
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int) -> None:
        if child is None:
            early.append(number)
        elif number != signal.SIGINT or not sys.stdin.isatty():
            child.send_signal(number)  # a terminal sends Ctrl-C to the command as well

    with handling_signals(pass_on):
        child = subprocess.Popen(command, env={**os.environ, **held})
        for number in early:
            pass_on(number)
        threading.Thread(target=_end_when_lost, args=(child, lock), daemon=True).start()
        status = child.wait()
    if lock.is_lost:
        return 1
    return status if status >= 0 else SHELL_SIGNALS - status


def _end_when_lost(child: "subprocess.Popen[bytes]", lock: "Lock") -> None:
    """End a command that does not hold its lock any more."""
    lock.lost.wait()
    if child.poll() is not None:
        return
    write_error(f"lock {lock.key!r} was lost: the lease could not be kept alive; ending COMMAND")
    child.terminate()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
