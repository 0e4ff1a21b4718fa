"""`allhands kv`: the keys of a job, by hand."""

import sys
from typing import Annotated, TypeAlias

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.escapes import escape_line

kv_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Job: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
_Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY")]


@kv_app.command("get")
def get(
    job: _Job,
    key: _Key,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write the key's value to standard output, byte for byte."""
    with open_client(coordinator, job, insecure=insecure) as control:
        value = control.get(key)
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


@kv_app.command("put")
def put(
    job: _Job,
    key: _Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="`-` reads standard input.")],
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Set the key."""
    with open_client(coordinator, job, insecure=insecure) as control:
        control.put(key, sys.stdin.buffer.read() if value == "-" else value)


@kv_app.command("del")
def delete(
    job: _Job,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...")],
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Delete the keys; fail if a key did not exist."""
    from allhands.coordinator.kv.values import format_keys
    from allhands.errors import NotFound

    with open_client(coordinator, job, insecure=insecure) as control:
        absent = [key for key in keys if not control.delete(key)]
    if absent:
        raise NotFound(f"job {job!r} had no {format_keys(absent)}")


@kv_app.command("ls")
def ls(
    job: _Job,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only keys that begin so.")] = "",
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """List the keys, one per line; unprintable characters are escaped, as in `\\x1b`."""
    with open_client(coordinator, job, insecure=insecure) as control:
        for key in control.list(prefix):
            typer.echo(escape_line(key))
