"""`allhands token`: certificates of daemon and workers, and tokens."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

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
