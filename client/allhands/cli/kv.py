"""`allhands kv`: the keys of a job, by hand."""

import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.records import (
    make_range_fields,
    print_json,
    print_records,
    print_txn,
    write_line,
)
from allhands.cli.render import Output
from allhands.escapes import escape_line

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.kv.records import KeyRange
    from allhands.coordinator.kv.transactions import Get, SortBy

kv_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Job: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
_Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY")]
_End: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[END]", help="All keys from KEY up to this one.")
]
_Output: TypeAlias = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
_Prefix: TypeAlias = Annotated[bool, typer.Option("--prefix", help="All keys that begin with KEY.")]
_FromKey: TypeAlias = Annotated[bool, typer.Option("--from-key", help="All keys from KEY on.")]
_SORTS = {"key": "key", "version": "version", "create": "create", "modify": "mod", "value": "value"}


@kv_app.command("get")
def get(
    job: _Job,
    key: _Key,
    end: _End = None,
    prefix: _Prefix = False,
    from_key: _FromKey = False,
    rev: Annotated[int, typer.Option("--rev", min=0, help="As it was at a revision.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most keys; 0: all.")] = 0,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without the values.")] = False,
    count_only: Annotated[bool, typer.Option("--count-only", help="Only how many.")] = False,
    print_value_only: Annotated[
        bool, typer.Option("--print-value-only", help="Without the keys.")
    ] = False,
    sort_by: Annotated[str, typer.Option("--sort-by", help=f"One of {', '.join(_SORTS)}.")] = "key",
    order: Annotated[str, typer.Option("--order", help="ASCEND or DESCEND.")] = "ASCEND",
    output: _Output = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write the value of a key, byte for byte; of several keys write key and value, a line each."""
    from allhands.coordinator.kv.transactions import Get

    wants_records = any((end, prefix, from_key, rev, limit, keys_only, count_only))
    if not wants_records and output is Output.TABLE:
        with open_client(coordinator, job, insecure=insecure) as control:
            _write_single(control.get(key))
        return
    if order.upper() not in ("ASCEND", "DESCEND"):
        raise typer.BadParameter(f"--order is ASCEND or DESCEND, not {order!r}")
    wanted = Get(
        key,
        "" if from_key else end,
        prefix,
        limit=limit,
        revision=rev,
        keys_only=keys_only,
        count_only=count_only,
        sort_by=_read_sort(sort_by),
        descending=order.upper() == "DESCEND",
    )
    with open_client(coordinator, job, insecure=insecure) as control:
        found = _read_all(control, job, wanted)
    if output is Output.JSON:
        print_json(make_range_fields(found))
    elif count_only:
        write_line(str(found.count))
    else:
        print_records(found.records, keys_only=keys_only, values_only=print_value_only)


@kv_app.command("put")
def put(
    job: _Job,
    key: _Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="`-` reads standard input.")],
    lease: Annotated[
        int, typer.Option("--lease", min=0, help="Lease with the end of which it is deleted.")
    ] = 0,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Set the key."""
    with open_client(coordinator, job, insecure=insecure) as control:
        control.put(key, sys.stdin.buffer.read() if value == "-" else value, lease=lease)


@kv_app.command("del")
def delete(
    job: _Job,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...")],
    prefix: Annotated[
        bool, typer.Option("--prefix", help="All keys that begin so; write how many.")
    ] = False,
    from_key: Annotated[
        bool, typer.Option("--from-key", help="All keys from KEY on; write how many.")
    ] = False,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Delete the keys; fail if a key did not exist."""
    from allhands.coordinator.kv.values import format_keys
    from allhands.errors import NotFound

    with open_client(coordinator, job, insecure=insecure) as control:
        if prefix or from_key:
            delete_all = control.delete_prefix if prefix else control.delete_range
            write_line(str(sum(delete_all(key) for key in keys)))
            return
        absent = [key for key in keys if not control.delete(key)]
    if absent:
        raise NotFound(f"job {job!r} had no {format_keys(absent)}")


@kv_app.command("count")
def count(
    job: _Job,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Of keys that begin so.")] = "",
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write the number of keys."""
    with open_client(coordinator, job, insecure=insecure) as control:
        write_line(str(control.count(prefix)))


@kv_app.command("txn")
def txn(
    job: _Job,
    output: _Output = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Carry out the transaction on standard input.

    Conditions, operations if they hold, and operations if not, with empty lines between:
    `mod("k") = "0"`; `put k v`, `get k --prefix`, `del k`.
    """
    from allhands.cli.txn_text import parse_txn

    with open_client(coordinator, job, insecure=insecure) as control:
        read = parse_txn(sys.stdin.read())
        done = control.transaction(read.conditions, read.success, read.failure)
    print_txn(done, as_json=output is Output.JSON)


@kv_app.command("compact")
def compact(
    job: _Job,
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=1)],
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Forget the history of the keys up to a revision."""
    with open_client(coordinator, job, insecure=insecure) as control:
        control.compact(revision)


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


def _write_single(value: bytes) -> None:
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def _read_sort(name: str) -> "SortBy":
    found: SortBy | None = _SORTS.get(name.lower())  # type: ignore[assignment]
    if found is None:
        raise typer.BadParameter(f"keys are sorted by {', '.join(_SORTS)}, not by {name!r}")
    return found


def _read_all(control: "Control", job: str, wanted: "Get") -> "KeyRange":
    """Return the records wanted; without a limit in as many calls as it takes."""
    from dataclasses import replace

    from allhands.coordinator.kv.requests import find_next_page, make_get

    first = page = control.request(make_get(job, wanted))
    records = list(first)
    following = None if wanted.limit else find_next_page(wanted, page)
    while following is not None:
        page = control.request(make_get(job, following))
        records += page
        following = find_next_page(following, page)
    return replace(first, records=tuple(records), has_more=page.has_more)
