"""`allhands lease`: the leases of a job."""

import time
from typing import Annotated, TypeAlias

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.records import print_json, write_line
from allhands.cli.render import Output
from allhands.escapes import escape_line

lease_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Job: TypeAlias = Annotated[str, typer.Argument(metavar="JOB")]
_Number: TypeAlias = Annotated[int, typer.Argument(metavar="LEASE", min=1)]
_Output: TypeAlias = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]
_PART = 3
"""A lease is kept alive when one of so many parts of its time is over."""


@lease_app.command("grant")
def grant(
    job: _Job,
    ttl: Annotated[float, typer.Argument(metavar="SECONDS", help="Time to live.")],
    output: _Output = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Grant a lease, and write its number; keys are bound by `kv put --lease`."""
    with open_client(coordinator, job, insecure=insecure) as control:
        number = control.grant_lease(ttl)
    if output is Output.JSON:
        print_json({"lease": number, "ttl": ttl})
    else:
        write_line(str(number))


@lease_app.command("revoke")
def revoke(
    job: _Job,
    lease: _Number,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """End a lease, and delete its keys; write how many."""
    with open_client(coordinator, job, insecure=insecure) as control:
        write_line(str(control.revoke_lease(lease)))


@lease_app.command("keep-alive")
def keep_alive(
    job: _Job,
    lease: _Number,
    once: Annotated[bool, typer.Option("--once", help="Only once, and exit.")] = False,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Begin the time of a lease again and again, until interrupted or the lease has ended."""
    with open_client(coordinator, job, insecure=insecure) as control:
        while True:
            ttl = control.keep_alive(lease)
            write_line(f"lease {lease} kept alive for {ttl:g} s")
            if once:
                return
            time.sleep(ttl / _PART)


@lease_app.command("timetolive")
def timetolive(
    job: _Job,
    lease: _Number,
    keys: Annotated[bool, typer.Option("--keys", help="With the keys of the lease.")] = False,
    output: _Output = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Write the time that a lease has left."""
    with open_client(coordinator, job, insecure=insecure) as control:
        status = control.lease_status(lease)
    if output is Output.JSON:
        listed = list(status.keys) if keys else None
        times = {"granted": status.granted, "remaining": status.remaining}
        print_json({"lease": lease, **times, "keys": listed})
        return
    write_line(f"lease {lease} granted for {status.granted:g} s, {status.remaining:.1f} s left")
    if keys:
        for key in status.keys:
            write_line(escape_line(key))


@lease_app.command("list")
def list_leases(
    job: _Job,
    output: _Output = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """List the leases of a job, one per line."""
    with open_client(coordinator, job, insecure=insecure) as control:
        leases = control.leases()
    if output is Output.JSON:
        print_json({"leases": list(leases)})
        return
    for number in leases:
        write_line(str(number))
