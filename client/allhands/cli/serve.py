"""`allhands serve`: the daemon."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

_DrainTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        help="How long running jobs get to end after SIGTERM or Ctrl-C.",
    ),
]


def serve_command(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0 takes any free one.")
    ] = "127.0.0.1:7070",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="The token that callers must show; else ALLHANDS_TOKEN, else a random one.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen beyond loopback without token or TLS."),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Keep keys, queues and barriers in this folder, over restarts and crashes.",
        ),
    ] = None,
    drain_timeout: _DrainTimeout = 30.0,
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; a second one ends it at once.

    It writes its address and token to your runtime directory, for your own commands on this host.
    Beyond loopback it wants a token and TLS files.
    """
    from allhands_server.config import FLAGS, ServerConfig, read_token
    from allhands_server.daemon import main

    host, port = _parse_address(listen)
    try:
        config = ServerConfig(
            host=host,
            port=port,
            token=read_token(token_file),
            tls_cert=tls_cert,
            tls_key=tls_key,
            insecure=insecure,
            data_dir=data_dir,
            drain_timeout=drain_timeout,
            setting_names=FLAGS,
        )
        config.validate()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(main(config))


def _parse_address(listen: str) -> tuple[str, int]:
    """Read HOST:PORT, an IPv6 address in brackets."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host or (":" in host) != (host[0] == "[" and host[-1] == "]"):
        raise typer.BadParameter(f"--listen wants HOST:PORT or [IPV6]:PORT, not {listen!r}")
    return host.strip("[]"), int(port)
