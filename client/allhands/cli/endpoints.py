"""The coordinator that a command asks: by options, environment, contexts, or found on this host.

    the coordinator   --coordinator, --context, ALLHANDS_URL, ALLHANDS_CONTEXT, the current context,
                      your coordinator on this host: that with the named job, else the daemon
    its credentials   --token-file and --tls-*, then --tls-dir, those of --context, the environment,
                      those of another context

A context's credentials go to the context's coordinator alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import typer

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.contexts import Context, choose_context, load_contexts
from allhands.coordinator.endpoint import Endpoint, find_coordinator
from allhands_proto.tls_files import DIRECTORY_VARIABLE, apply_tls_directory, read_tls_directory


def find_endpoint(options: CoordinatorChoice, environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint that options, environment and contexts mean, in this order.

    Raises:
        typer.BadParameter: the options contradict each other.
        ValueError: a URL is malformed, several coordinators could be meant, a context or a file
            cannot be read.
        CoordinatorUnavailable: none could be.
    """
    own = _read_options(options)
    settings = {
        name: value
        for name, value in apply_tls_directory(environ).items()
        if value and name != DIRECTORY_VARIABLE
    }
    if options.context is not None:
        if options.coordinator is not None:
            raise typer.BadParameter(
                "a context is a coordinator by name: give --coordinator or --context"
            )
        context = load_contexts(environ).find(options.context)
        settings = {**settings, **_read_context(context), **own}
        return find_coordinator(context.url, settings, insecure=options.insecure)
    if options.coordinator is not None or "ALLHANDS_URL" in settings:
        return find_coordinator(options.coordinator, {**settings, **own}, insecure=options.insecure)
    if (chosen := choose_context(environ)) is not None:
        settings = {**_read_context(chosen), **settings, **own}
        return find_coordinator(chosen.url, settings, insecure=options.insecure)
    found = find_coordinator(None, settings, token=own.get("ALLHANDS_TOKEN"))
    return replace(
        found,
        tls_ca=own.get("ALLHANDS_TLS_CA", found.tls_ca),
        tls_cert=own.get("ALLHANDS_TLS_CERT", found.tls_cert),
        tls_key=own.get("ALLHANDS_TLS_KEY", found.tls_key),
    )


def names_coordinator(options: CoordinatorChoice, environ: Mapping[str, str]) -> bool:
    """Return whether options, environment or contexts name a coordinator, or credentials for one.

    Raises:
        ValueError: a context cannot be read.
    """
    is_chosen = options != type(options)() or bool(environ.get("ALLHANDS_URL"))
    return is_chosen or choose_context(environ) is not None


def _read_options(options: CoordinatorChoice) -> dict[str, str]:
    """Return the options' credentials as the variables of the same meaning."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise typer.BadParameter("a certificate and its key go together: --tls-cert, --tls-key")
    folder = {} if options.tls_dir is None else read_tls_directory(options.tls_dir, "--tls-dir")
    own = _make_variables(
        None if options.token_file is None else str(options.token_file),
        *(options.tls_ca, options.tls_cert, options.tls_key),
    )
    return {**folder, **own}


def _read_context(context: Context) -> dict[str, str]:
    found = _make_variables(context.token_file, context.tls_ca, context.tls_cert, context.tls_key)
    return {**found, "ALLHANDS_INSECURE": "1"} if context.insecure else found


def _make_variables(
    token_file: str | None,
    tls_ca: Path | str | None,
    tls_cert: Path | str | None,
    tls_key: Path | str | None,
) -> dict[str, str]:
    named = {
        "ALLHANDS_TOKEN": None if token_file is None else _read_token(token_file),
        "ALLHANDS_TLS_CA": tls_ca,
        "ALLHANDS_TLS_CERT": tls_cert,
        "ALLHANDS_TLS_KEY": tls_key,
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def _read_token(path: str) -> str:
    """Return the token in a file.

    Raises:
        ValueError: it cannot be read, or holds none.
    """
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValueError(f"the token in {path} cannot be read: {reason}") from error
    if not token:
        raise ValueError(f"there is no token in {path}")
    return token
