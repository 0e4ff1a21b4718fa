"""Progress of long commands on standard error: a bar on a terminal, elsewhere a line a step."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import typer

Say: TypeAlias = Callable[[str], None]
"""Takes the text of the step that begins; the one before it has ended."""


@contextlib.contextmanager
def show_progress(total: int | None, *, is_quiet_elsewhere: bool = False) -> Iterator[Say]:
    """Yield a function to call at the beginning of each step.

    Args:
        total: number of steps; None: unknown, the bar shows that something happens.
        is_quiet_elsewhere: write nothing where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield _say_nothing if is_quiet_elsewhere else _write_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns.insert(1, MofNCompleteColumn())
    # Nothing stays of it: what the command found comes below.
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        begun = 0

        def say(what: str) -> None:
            nonlocal begun
            # A step shorter than the bar's interval is shown too.
            progress.update(task, description=what, completed=begun, refresh=True)
            begun += 1

        yield say


def _write_line(what: str) -> None:
    typer.echo(what, err=True)


def _say_nothing(_what: str) -> None:
    pass
