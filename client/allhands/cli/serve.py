"""`allhands serve`: the daemon."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from allhands_proto.tls_files import DIRECTORY_VARIABLE, apply_tls_directory

_DrainTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        help="How long running jobs get to end after SIGTERM or Ctrl-C.",
    ),
]
_Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="etcd://HOST:PORT,...",
        help="Keep the state in this etcd cluster, with other daemons that stand by.",
    ),
]
_StoreCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--store-ca", metavar="FILE", help="Authorities of the store, PEM; else no TLS."),
]
_StoreCert: TypeAlias = Annotated[
    Path | None,
    typer.Option("--store-cert", metavar="FILE", help="This daemon's certificate for the store."),
]
_StoreKey: TypeAlias = Annotated[
    Path | None, typer.Option("--store-key", metavar="FILE", help="Its key, PEM.")
]
_StoreUser: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--store-user-file",
        metavar="FILE",
        help="NAME:PASSWORD for the store; else ALLHANDS_STORE_USER, else none.",
    ),
]
_Advertise: TypeAlias = Annotated[
    str,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Where clients reach this daemon, of several; else where it listens.",
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
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Authorities, PEM: callers have to show a certificate of theirs.",
        ),
    ] = None,
    tls_dir: Annotated[
        Path | None,
        typer.Option(
            "--tls-dir",
            metavar="DIR",
            help="ca.crt, tls.crt, tls.key and token in one folder, as `allhands token init` "
            "makes; else ALLHANDS_TLS_DIR.",
        ),
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
            help="Keep all state in this folder: jobs go on after restarts and crashes.",
        ),
    ] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option(
            "--audit-log", metavar="FILE", help="Append a line of JSON for each call to FILE."
        ),
    ] = None,
    drain_timeout: _DrainTimeout = 30.0,
    store: _Store = None,
    store_ca: _StoreCa = None,
    store_cert: _StoreCert = None,
    store_key: _StoreKey = None,
    store_user_file: _StoreUser = None,
    advertise: _Advertise = "",
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; a second one ends it at once.

    With --store several daemons share one log, and one of them leads: clients are given the
    addresses of all.

    It writes its address and token to your runtime directory, for your own commands on this host.
    Beyond loopback it wants a token and TLS files; `allhands token init` makes them. New TLS files
    in the place of old ones are read without a restart.
    """
    # Else gRPC writes a line for each handshake that fails, and strangers decide their number.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from allhands_server.config import FLAGS, ServerConfig, read_token
    from allhands_server.daemon import main
    from allhands_server.etcd_address import parse_store, read_store_user

    host, port = _parse_address(listen)
    try:
        files = _read_directory(tls_dir) if tls_cert is None else {}
        address = None
        if store is not None:
            user = read_store_user(store_user_file)
            address = parse_store(store, ca=store_ca, cert=store_cert, key=store_key, user=user)
        config = ServerConfig(
            host=host,
            port=port,
            token=read_token(token_file) or files.get("ALLHANDS_TOKEN"),
            tls_cert=tls_cert or files.get("ALLHANDS_TLS_CERT"),
            tls_key=tls_key or files.get("ALLHANDS_TLS_KEY"),
            tls_client_ca=tls_client_ca or files.get("ALLHANDS_TLS_CLIENT_CA"),
            insecure=insecure,
            data_dir=data_dir,
            audit_log=audit_log,
            drain_timeout=drain_timeout,
            store=address,
            advertise=advertise,
            setting_names=FLAGS,
        )
        config.validate()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(main(config))


def _read_directory(tls_dir: Path | None) -> Mapping[str, str]:
    """Return what a directory of TLS files stands for, as variables."""
    named = os.environ.get(DIRECTORY_VARIABLE, "") if tls_dir is None else str(tls_dir)
    return apply_tls_directory({DIRECTORY_VARIABLE: named})


def _parse_address(listen: str) -> tuple[str, int]:
    """Read HOST:PORT, an IPv6 address in brackets."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not host or (":" in host) != (host[0] == "[" and host[-1] == "]"):
        raise typer.BadParameter(f"--listen wants HOST:PORT or [IPV6]:PORT, not {listen!r}")
    return host.strip("[]"), int(port)
