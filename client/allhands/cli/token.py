"""`allhands token`: certificates of daemon and workers, and tokens."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from allhands.cli.completion import complete_jobs
from allhands.cli.documents import make_tokens_fields
from allhands.cli.options import ClientOptions, OldJobOption, settle_job, takes_client
from allhands.cli.render import Output, make_output_option, print_document, print_names

token_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Directory: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", file_okay=False)]
_Days: TypeAlias = Annotated[
    int, typer.Option("--days", metavar="N", min=1, help="How long the certificates hold.")
]


@token_app.command("init")
def init(
    directory: _Directory,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Name or address by which workers reach the daemon; may be repeated. Default: "
            "the name of this host.",
        ),
    ] = None,
    days: _Days = 365,
) -> None:
    """Make an authority, certificates for daemon and workers, and a token.

    Prints what to run on each host. What is in DIR already is never overwritten.
    """
    from allhands.cli.tls_directories import create_directories, describe_use

    try:
        names = create_directories(directory, hosts or [], days)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(describe_use(directory, names))


@token_app.command("renew")
def renew(directory: _Directory, days: _Days = 365) -> None:
    """Make new certificates in the place of those in DIR, with the same authority and names.

    Copy them to where the old ones are: daemon and workers take them up without a restart.
    """
    from allhands.cli.tls_directories import renew_certificates

    try:
        renewed = renew_certificates(directory, days)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    for path in renewed:
        typer.echo(path)


@token_app.command("create")
@takes_client
def create(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            help="The job that it opens; '*': all jobs.",
            autocompletion=complete_jobs,
        ),
    ] = None,
    old_job: OldJobOption = None,
    verbs: Annotated[
        str,
        typer.Option(
            "--verbs",
            metavar="VERB,...",
            help="read, write: keys; join: as a worker; admin: all of these, abort and delete.",
        ),
    ] = "join,read,write",
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="As 90s, 30m, 12h or 7d; default: never."),
    ] = None,
    single_use: Annotated[
        bool, typer.Option("--single-use", help="One worker may join with it.")
    ] = False,
    joins: Annotated[
        int,
        typer.Option("--joins", metavar="N", min=0, help="So many workers may; 0: any number."),
    ] = 0,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Make a token for one job, and print it: this is the only time that it is shown.

    Workers and commands take it as ALLHANDS_TOKEN.
    """
    if (opened := settle_job(job, old_job)) is None:
        raise typer.BadParameter("name the job that it opens, or '*' for all jobs")
    lifetime = None if expires is None else _parse_time(expires)
    chosen = [verb.strip() for verb in verbs.split(",") if verb.strip()]
    most = 1 if single_use else joins
    with client.open() as control:
        token = control.create_token(job=opened, verbs=chosen, lifetime=lifetime, max_joins=most)
    if not output.is_document:
        typer.echo(token)
        return
    fields = {
        "token": token,
        "job": opened,
        "verbs": chosen,
        "lifetime_seconds": lifetime,
        "max_joins": most,
    }
    print_document("Token", fields, output)


@token_app.command("list")
@takes_client
def list_tokens(
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """List the tokens for jobs, without their secrets."""
    with client.open() as control:
        found = control.tokens()
    if output.is_document:
        print_document("TokenList", make_tokens_fields(found), output)
        return
    if output is Output.NAME:
        print_names(one.id for one in found)
        return
    rows = [("ID", "JOB", "VERBS", "EXPIRES", "JOINS")]
    for one in found:
        until = "never"
        if one.expires_at:
            until = datetime.fromtimestamp(one.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        joins = f"{one.joins} of {one.max_joins}" if one.max_joins else str(one.joins)
        rows.append((one.id, one.job, ",".join(one.verbs), until, joins))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@token_app.command("revoke")
@takes_client
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...")],
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Refuse the callers of tokens from now on, by id as `allhands token list` shows it."""
    with client.open() as control:
        for id in ids:
            control.revoke_token(id)
            if output.is_document:
                print_document("TokenRevocation", {"id": id}, output, in_stream=True)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_time(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"--expires wants a time as 90s, 30m, 12h or 7d, not {text!r}")
    return float(int(found[1]) * _UNITS[found[2]])
