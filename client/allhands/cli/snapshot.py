"""`allhands snapshot`: the durable state of a coordinator as a file, and what a log holds."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from allhands.cli.options import ClientOptions, takes_client
from allhands.cli.render import Output, make_output_option, print_document
from allhands.errors import AllhandsError
from allhands.escapes import escape_line

if TYPE_CHECKING:
    from allhands_server.log.offline import LogContents

snapshot_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_File: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE")]


@snapshot_app.command("save")
@takes_client
def save(
    file: _File,
    *,
    client: ClientOptions,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long it may take.")
    ] = 300.0,
) -> None:
    """Write the coordinator's durable state of this moment to a new file, for its user alone."""
    from allhands.coordinator.snapshots import fetch_snapshot
    from allhands_server.log.offline import inspect_log

    with (
        client.open() as control,
        _explain_log_errors(),
        _writing_anew(file) as unfinished,
    ):
        _write(unfinished, fetch_snapshot(control.endpoint, timeout))
        contents = inspect_log(unfinished)
    typer.echo(f"{file}: {_describe(contents)}")


@snapshot_app.command("restore")
def restore(
    file: _File,
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", metavar="DIR", help="A new folder, for `allhands serve`."),
    ],
) -> None:
    """Make a folder with the state in a file; nothing that is there is overwritten."""
    from allhands_server.log.offline import restore_log

    with _explain_log_errors():
        contents = restore_log(file, data_dir)
    typer.echo(f"{data_dir}: {_describe(contents)}")


@snapshot_app.command("inspect")
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A snapshot, or a folder of no daemon.")
    ],
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
) -> None:
    """Check a snapshot or a log, and show what it holds, by job and kind of change."""
    from allhands_server.log.offline import inspect_log

    with _explain_log_errors():
        contents = inspect_log(path)
    if output.is_document:
        print_document("SnapshotContents", _make_fields(contents), output)
        return
    typer.echo(_describe(contents))
    for job, kinds in sorted(contents.jobs.items()):
        for kind, size in sorted(kinds.items()):
            name = escape_line(job) or "(of no job)"
            typer.echo(f"{name:24} {kind:20} {size.count:>10,} {size.nbytes:>14,} bytes")


def _make_fields(contents: "LogContents") -> dict[str, object]:
    fields = asdict(contents)
    format_version = fields.pop("version")  # of the file; `version` is that of the document
    jobs = [
        {"job": job, "changes": [{"change": kind, **size} for kind, size in sorted(kinds.items())]}
        for job, kinds in sorted(fields.pop("jobs").items())
    ]
    return {"format_version": format_version, **fields, "jobs": jobs}


def _describe(contents: "LogContents") -> str:
    jobs = sum(bool(job) for job in contents.jobs)
    behind = f" and {contents.frames:,} frames of {contents.frames_nbytes:,}"
    return (
        f"format {contents.version}, term {contents.term}, index {contents.index:,}, {jobs:,} "
        f"job{'s' * (jobs != 1)}, snapshot of {contents.snapshot_nbytes:,} bytes"
        f"{behind if contents.frames else ''}"
    )


@contextlib.contextmanager
def _explain_log_errors() -> Iterator[None]:
    """Turn the errors of the coordinator's log into those that a command reports."""
    from allhands_server.log.errors import LogError

    try:
        yield
    except LogError as error:
        raise AllhandsError(str(error)) from error


@contextlib.contextmanager
def _writing_anew(file: Path) -> Iterator[Path]:
    """Provide a path to write, which becomes `file` at the end of the block.

    Raises:
        FileExistsError: there is something at `file`, which stays.
    """
    refusal = FileExistsError(f"{file} exists: name a new file, nothing is overwritten")
    if os.path.lexists(file):
        raise refusal
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield unfinished
        try:
            os.link(unfinished, file)  # which replaces nothing, unlike a rename
        except FileExistsError as error:
            raise refusal from error
    finally:
        unfinished.unlink(missing_ok=True)


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that only this user can read, onto the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
