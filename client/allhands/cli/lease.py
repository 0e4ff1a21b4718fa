"""`allhands lease`: the leases of a job."""

import time
from typing import Annotated, TypeAlias

import typer

from allhands.cli.options import ClientOptions, JobArgument, takes_client
from allhands.cli.records import write_line
from allhands.cli.render import Output, format_time, make_output_option, print_document
from allhands.escapes import escape_line

lease_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Number: TypeAlias = Annotated[int, typer.Argument(metavar="LEASE", min=1)]
_Output: TypeAlias = Annotated[Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)]
_PART = 3
"""A lease is kept alive when one of so many parts of its time is over."""


@lease_app.command("grant")
@takes_client
def grant(
    job: JobArgument,
    ttl: Annotated[float, typer.Argument(metavar="SECONDS", help="Time to live.")],
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Grant a lease, and write its number; keys are bound by `kv put --lease`."""
    with client.open(job) as control:
        number = control.grant_lease(ttl)
    if output.is_document:
        print_document("LeaseGrant", {"lease": number, "granted_seconds": ttl}, output)
    else:
        write_line(str(number))


@lease_app.command("revoke")
@takes_client
def revoke(
    job: JobArgument,
    lease: _Number,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """End a lease, and delete its keys; write how many."""
    with client.open(job) as control:
        deleted = control.revoke_lease(lease)
    if output.is_document:
        print_document("LeaseRevocation", {"lease": lease, "deleted_keys": deleted}, output)
    else:
        write_line(str(deleted))


@lease_app.command("keep-alive")
@takes_client
def keep_alive(
    job: JobArgument,
    lease: _Number,
    once: Annotated[bool, typer.Option("--once", help="Only once, and exit.")] = False,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Begin the time of a lease again and again, until interrupted or the lease has ended."""
    with client.open(job) as control:
        while True:
            ttl = control.keep_alive(lease)
            if output.is_document:
                fields = {"lease": lease, "granted_seconds": ttl}
                print_document("LeaseKeptAlive", fields, output, in_stream=True)
            else:
                write_line(f"lease {lease} kept alive for {ttl:g} s")
            if once:
                return
            time.sleep(ttl / _PART)


@lease_app.command("timetolive")
@takes_client
def timetolive(
    job: JobArgument,
    lease: _Number,
    keys: Annotated[bool, typer.Option("--keys", help="With the keys of the lease.")] = False,
    output: _Output = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Write the time that a lease has left."""
    with client.open(job) as control:
        status = control.lease_status(lease)
    if output.is_document:
        fields = {
            "lease": lease,
            "granted_seconds": status.granted,
            "remaining_seconds": status.remaining,
            "end_time": format_time(time.time() + status.remaining),
            "keys": list(status.keys) if keys else None,
        }
        print_document("Lease", fields, output)
        return
    write_line(f"lease {lease} granted for {status.granted:g} s, {status.remaining:.1f} s left")
    if keys:
        for key in status.keys:
            write_line(escape_line(key))


@lease_app.command("list")
@takes_client
def list_leases(
    job: JobArgument,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """List the leases of a job, one per line."""
    with client.open(job) as control:
        leases = control.leases()
    if output.is_document:
        print_document("LeaseList", {"leases": list(leases)}, output)
        return
    for number in leases:
        write_line(str(number))
