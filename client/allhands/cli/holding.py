"""Locks and leaderships held by commands, until a signal or a loss."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Annotated, TypeAlias

import typer

FOR_LONG = 1e6
"""Seconds to wait where no deadline was asked for: until interrupted."""
TimeoutOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        show_default=False,
        help="How long to wait; else until interrupted.",
    ),
]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_SECONDS = 3600.0
SHELL_SIGNALS = 128
"""Exit status of a process that signal n ended: this + n, as in shells."""


class Interrupted(BaseException):
    """A signal ended the command; nothing but the command itself catches this."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise Interrupted within a block, in the main thread.

    What leaves the block is typer.Exit, with the status that shells give.
    """

    def interrupt(number: int) -> None:
        raise Interrupted(number)

    try:
        with handling_signals(interrupt):
            yield
    except Interrupted as interrupted:
        raise typer.Exit(SHELL_SIGNALS + interrupted.number) from interrupted


@contextlib.contextmanager
def handling_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Call a function for SIGINT and SIGTERM within a block, in the main thread."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for_signal(lost: threading.Event, what: str) -> None:
    """Wait until a signal comes.

    Raises:
        typer.Exit: `lost` was set; the text on standard error says what was.
    """
    with contextlib.suppress(Interrupted):
        while not lost.wait(_LOOK_SECONDS):
            pass
        write_error(f"{what} was lost: the lease could not be kept alive")
        raise typer.Exit(1)


def write_error(text: str) -> None:
    """Write a line of an error."""
    sys.stderr.write(f"allhands: {text}\n")
    sys.stderr.flush()
