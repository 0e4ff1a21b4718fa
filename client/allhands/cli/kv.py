"""`allhands kv`: the keys of a job, by hand."""

import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from allhands.cli.missing_job import check_job_exists, note_missing_job
from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import make_range_fields, print_records, print_txn, write_line
from allhands.cli.render import Output, make_output_option, print_document, print_names
from allhands.cli.watch import watch_command

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.kv.records import KeyRange
    from allhands.coordinator.kv.transactions import Get, SortBy

kv_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Key: TypeAlias = Annotated[str, typer.Argument(metavar="KEY")]
_End: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[END]", help="All keys from KEY up to this one.")
]
_Output: TypeAlias = Annotated[Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)]
_OutputOfKeys: TypeAlias = Annotated[
    Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
]
_Prefix: TypeAlias = Annotated[bool, typer.Option("--prefix", help="All keys that begin with KEY.")]
_FromKey: TypeAlias = Annotated[bool, typer.Option("--from-key", help="All keys from KEY on.")]
_SORTS = {"key": "key", "version": "version", "create": "create", "modify": "mod", "value": "value"}


@kv_app.command("get")
@takes_client
def get(
    job: JobArgument,
    key: _Key,
    end: _End = None,
    prefix: _Prefix = False,
    from_key: _FromKey = False,
    rev: Annotated[
        int, typer.Option("--rev", metavar="REVISION", min=0, help="As it was at a revision.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="Most keys; 0: all.")
    ] = 0,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without the values.")] = False,
    count_only: Annotated[bool, typer.Option("--count-only", help="Only how many.")] = False,
    print_value_only: Annotated[
        bool, typer.Option("--print-value-only", help="Without the keys.")
    ] = False,
    sort_by: Annotated[
        str, typer.Option("--sort-by", metavar="FIELD", help=f"One of {', '.join(_SORTS)}.")
    ] = "key",
    order: Annotated[
        str, typer.Option("--order", metavar="ORDER", help="ASCEND or DESCEND.")
    ] = "ASCEND",
    output: _OutputOfKeys = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Write the value of a key, byte for byte; of several keys write key and value, a line each."""
    from allhands.coordinator.kv.transactions import Get

    wants_records = any((end, prefix, from_key, rev, limit, keys_only, count_only))
    if not wants_records and output is Output.TABLE:
        with client.open(job) as control:
            _write_single(_read_single(control, key))
        return
    if order.upper() not in ("ASCEND", "DESCEND"):
        raise typer.BadParameter(f"--order is ASCEND or DESCEND, not {order!r}")
    wanted = Get(
        key,
        "" if from_key else end,
        prefix,
        limit=limit,
        revision=rev,
        keys_only=keys_only or output is Output.NAME,
        count_only=count_only,
        sort_by=_read_sort(sort_by),
        descending=order.upper() == "DESCEND",
    )
    with client.open(job) as control:
        found = _read_all(control, job, wanted)
        if not found.count:
            note_missing_job(control)
    if output.is_document:
        print_document("KeyRange", make_range_fields(found), output)
    elif output is Output.NAME:
        print_names(record.key for record in found)
    elif count_only:
        write_line(str(found.count))
    else:
        print_records(found.records, keys_only=keys_only, values_only=print_value_only)


@kv_app.command("put")
@takes_client
def put(
    job: JobArgument,
    key: _Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="`-` reads standard input.")],
    lease: Annotated[
        int,
        typer.Option(
            "--lease", metavar="LEASE", min=0, help="Lease with the end of which it is deleted."
        ),
    ] = 0,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Set the key."""
    with client.open(job) as control:
        read = sys.stdin.buffer.read() if value == "-" else value
        revision = control.put(key, read, lease=lease)
    if output.is_document:
        print_document("KeyPut", {"key": key, "revision": revision}, output)


@kv_app.command("del")
@takes_client
def delete(
    job: JobArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...")],
    prefix: Annotated[
        bool, typer.Option("--prefix", help="All keys that begin so; write how many.")
    ] = False,
    from_key: Annotated[
        bool, typer.Option("--from-key", help="All keys from KEY on; write how many.")
    ] = False,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Delete the keys; fail if a key did not exist."""
    from allhands.coordinator.kv.values import format_keys
    from allhands.errors import NotFound

    with client.open(job) as control:
        if prefix or from_key:
            delete_all = control.delete_prefix if prefix else control.delete_range
            deleted = sum(delete_all(key) for key in keys)
            absent = []
        else:
            absent = [key for key in keys if not control.delete(key)]
            deleted = len(keys) - len(absent)
        if output.is_document:
            print_document("KeyDeletion", {"deleted": deleted}, output)
        elif prefix or from_key:
            write_line(str(deleted))
        if absent:
            if not deleted:  # else it may be gone, with the last of its keys
                check_job_exists(control)
            raise NotFound(f"job {job!r} had no {format_keys(absent)}")


@kv_app.command("count")
@takes_client
def count(
    job: JobArgument,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Of keys that begin so.")] = "",
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Write the number of keys."""
    with client.open(job) as control:
        found = control.count(prefix)
        if not found:
            note_missing_job(control)
    if output.is_document:
        print_document("KeyCount", {"prefix": prefix, "count": found}, output)
    else:
        write_line(str(found))


@kv_app.command("txn")
@takes_client
def txn(
    job: JobArgument,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Carry out the transaction on standard input.

    Conditions, operations if they hold, and operations if not, with empty lines between:
    `mod("k") = "0"`; `put k v`, `get k --prefix`, `del k`.
    """
    from allhands.cli.txn_text import parse_txn

    with client.open(job) as control:
        read = parse_txn(sys.stdin.read())
        done = control.transaction(read.conditions, read.success, read.failure)
    print_txn(done, output)


@kv_app.command("compact")
@takes_client
def compact(
    job: JobArgument,
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=1)],
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Forget the history of the keys up to a revision."""
    with client.open(job) as control:
        control.compact(revision)
    if output.is_document:
        print_document("Compaction", {"revision": revision}, output)


@kv_app.command("list")
@kv_app.command("ls", hidden=True)
@takes_client
def list_keys(
    job: JobArgument,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only keys that begin so.")
    ] = "",
    output: _OutputOfKeys = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """List the keys, one per line; unprintable characters are escaped, as in `\\x1b`."""
    with client.open(job) as control:
        keys = control.list(prefix)
        if not keys:
            note_missing_job(control)
    if output.is_document:
        print_document("KeyList", {"prefix": prefix, "keys": list(keys)}, output)
    else:
        print_names(keys)


kv_app.command("watch")(watch_command)


def _read_single(control: "Control", key: str) -> bytes:
    """Return the value of a key.

    Raises:
        NotFound: there is no such key, or no such job.
    """
    from allhands.errors import NotFound

    try:
        return control.get(key)
    except NotFound:
        check_job_exists(control)
        raise


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
