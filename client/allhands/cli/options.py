"""Options and arguments that many commands share: job, coordinator, credentials, watching."""

import getpass
import inspect
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.completion import complete_contexts, complete_jobs
from allhands.cli.render import Color

if TYPE_CHECKING:
    from allhands.coordinator.client import Control

JobArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="Which job.", autocompletion=complete_jobs)
]

AnyJobArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="Which job; may be left out where the coordinator's URL names it.",
        autocompletion=complete_jobs,
    ),
]

OldJobOption: TypeAlias = Annotated[str | None, typer.Option("--job", hidden=True)]
"""JOB as it was named before it was an argument."""

WatchOption: TypeAlias = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every second, until Ctrl-C.")
]

ColorOption: TypeAlias = Annotated[
    Color, typer.Option("--color", help="auto: colours on terminals, unless NO_COLOR is set.")
]

CoordinatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="URL",
        help="ah://HOST:PORT; else that of --context, ALLHANDS_URL, the current context, else "
        "your coordinator on this host.",
    ),
]

ContextOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Coordinator and credentials by name, as `allhands context list` shows them; else "
        "ALLHANDS_CONTEXT.",
        autocompletion=complete_contexts,
    ),
]

TokenFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="The token to show; else ALLHANDS_TOKEN."),
]

TlsDirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-dir",
        metavar="DIR",
        help="ca.crt, tls.crt, tls.key and perhaps token in one folder, as `allhands token init` "
        "makes; else ALLHANDS_TLS_DIR.",
    ),
]

TlsCaOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Authorities that vouch for the coordinator, PEM; else ALLHANDS_TLS_CA.",
    ),
]

TlsCertOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Own certificate chain, where the coordinator asks for one, PEM; else "
        "ALLHANDS_TLS_CERT.",
    ),
]

TlsKeyOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="Its key, PEM; else ALLHANDS_TLS_KEY."),
]

InsecureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Send token and data in plaintext to another host; else TLS (--tls-ca).",
    ),
]


class ClientOptions(CoordinatorChoice):
    """The options of all commands that ask a coordinator."""

    __slots__ = ()

    @contextmanager
    def open(self, job: str | None = None) -> "Iterator[Control]":
        """Open a client of the chosen coordinator, for `job` or the job of the URL.

        Where none is chosen, it is the coordinator of this user on this host that has the job.

        Raises:
            typer.BadParameter: the URL is malformed, several coordinators could be meant, others
                could read the token on its way, or the coordinator says that an argument makes no
                sense.
        """
        from allhands.cli.endpoints import find_endpoint, names_coordinator
        from allhands.cli.job_search import JobSearch, search_job
        from allhands.coordinator.client import Control

        try:
            search = JobSearch()
            if job is not None and not names_coordinator(self, os.environ):
                search = search_job(job)
            endpoint = search.endpoint or find_endpoint(self, os.environ)
            with (
                search.explain_not_found(),
                Control(endpoint, job=job or endpoint.address.job) as control,
            ):
                yield control
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def takes_client(
    command: Callable[..., None], coordinator: object = CoordinatorOption
) -> Callable[..., None]:
    """Give a command the options of `ClientOptions` in the place of its parameter `client`.

    `coordinator` is the type of the option of that name.
    """
    types = {
        "coordinator": coordinator,
        "context": ContextOption,
        "token_file": TokenFileOption,
        "tls_dir": TlsDirOption,
        "tls_ca": TlsCaOption,
        "tls_cert": TlsCertOption,
        "tls_key": TlsKeyOption,
        "insecure": InsecureOption,
    }

    @wraps(command)
    def run(**given: Any) -> None:
        own = {name: value for name, value in given.items() if name not in types}
        command(**own, client=ClientOptions(**{name: given[name] for name in types}))

    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    kept = [
        one.replace(kind=keyword) for one in signature.parameters.values() if one.name != "client"
    ]
    added = [
        inspect.Parameter(one.name, keyword, default=one.default, annotation=types[one.name])
        for one in fields(ClientOptions)
    ]
    parameters = [*kept, *added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    del run.__wrapped__  # whose signature is not this one's
    return run


def settle_job(positional: str | None, option: str | None) -> str | None:
    """Return the job named by argument or by `--job`, the older way.

    Raises:
        typer.BadParameter: they name two.
    """
    if positional is not None and option is not None and positional != option:
        raise typer.BadParameter(f"two jobs are named: {positional!r}, and {option!r} by --job")
    return positional if positional is not None else option


def describe_user() -> str:
    """Return user and host of this command, as shown to the ranks."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in a container
        name = "somebody"
    return f"{name} (host {socket.gethostname()})"
