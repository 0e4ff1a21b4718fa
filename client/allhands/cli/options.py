"""Options of all commands for the coordinator, token and TLS."""

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from allhands.coordinator.client import Control

CoordinatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="URL",
        help="ah://HOST:PORT; else ALLHANDS_URL, else your coordinator on this host.",
    ),
]

InsecureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Send token and data in plaintext to another host; else TLS (ALLHANDS_TLS_CA).",
    ),
]


@contextmanager
def open_client(
    url: str | None, job: str | None = None, *, insecure: bool = False
) -> "Iterator[Control]":
    """Open a client of the chosen coordinator, for `job` or the job of the URL.

    Raises:
        typer.BadParameter: the URL is malformed, several coordinators could be meant, others could
            read the token on its way, or the coordinator says that an argument makes no sense.
    """
    from allhands.coordinator.client import Control
    from allhands.coordinator.endpoint import find_coordinator

    try:
        endpoint = find_coordinator(url, os.environ, insecure=insecure)
        with Control(endpoint, job=job or endpoint.address.job) as control:
            yield control
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def describe_user() -> str:
    """Return user and host of this command, as shown to the ranks."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in a container
        name = "somebody"
    return f"{name} (host {socket.gethostname()})"
