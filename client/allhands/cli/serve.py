"""`allhands serve`: the daemon."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from allhands.cli.serve_options import (
    Advertise,
    AuditLog,
    DataDir,
    DrainTimeout,
    Http,
    Insecure,
    KvAdvertise,
    KvPort,
    Limit,
    Listen,
    LogFormat,
    LogLevel,
    Store,
    StoreCa,
    StoreCert,
    StoreKey,
    StoreUser,
    TlsCert,
    TlsClientCa,
    TlsDir,
    TlsKey,
    TokenFile,
)
from allhands_proto.tls_files import DIRECTORY_VARIABLE, apply_tls_directory


def serve_command(
    listen: Listen = ["127.0.0.1:7070"],  # noqa: B006  # typer copies it
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    tls_dir: TlsDir = None,
    insecure: Insecure = False,
    data_dir: DataDir = None,
    audit_log: AuditLog = None,
    drain_timeout: DrainTimeout = 30.0,
    limit: Limit = None,
    store: Store = None,
    store_ca: StoreCa = None,
    store_cert: StoreCert = None,
    store_key: StoreKey = None,
    store_user_file: StoreUser = None,
    advertise: Advertise = None,
    kv_port: KvPort = 0,
    kv_advertise: KvAdvertise = None,
    http: Http = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; a second one ends it at once.

    With --store several daemons share one log, and one of them leads: clients are given the
    addresses of all. A daemon with several addresses says all of them when it starts.

    It writes its address and token to your runtime directory, for your own commands on this host.
    Beyond loopback it wants a token and TLS files; `allhands token init` makes them. New TLS files
    in the place of old ones are read without a restart.
    """
    from allhands_server.config import FLAGS, ServerConfig, read_token
    from allhands_server.daemon import main
    from allhands_server.etcd_address import parse_store, read_store_user
    from allhands_server.resource_limits import read_limits

    (host, port), *more = map(parse_address, _split(listen))
    try:
        files = _read_directory(tls_dir) if tls_cert is None else {}
        address = None
        if store is not None:
            user = read_store_user(store_user_file)
            address = parse_store(store, ca=store_ca, cert=store_cert, key=store_key, user=user)
        config = ServerConfig(
            host=host,
            port=port,
            more_listens=tuple(more),
            kv_port=kv_port,
            token=read_token(token_file) or files.get("ALLHANDS_TOKEN"),
            tls_cert=tls_cert or files.get("ALLHANDS_TLS_CERT"),
            tls_key=tls_key or files.get("ALLHANDS_TLS_KEY"),
            tls_client_ca=tls_client_ca or files.get("ALLHANDS_TLS_CLIENT_CA"),
            insecure=insecure,
            data_dir=data_dir,
            log_format=log_format,
            log_level=log_level,
            audit_log=audit_log,
            drain_timeout=drain_timeout,
            limits=read_limits(limit or [], os.environ),
            store=address,
            advertise=tuple(_split(advertise or ())),
            kv_advertise=tuple(_split(kv_advertise or ())),
            http=parse_address(http, "--http") if http else None,
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


def _split(given: Iterable[str]) -> list[str]:
    """Return the values of an option that may be repeated, or hold several with commas."""
    return [one.strip() for text in given for one in text.split(",")]


def parse_address(listen: str, option: str = "--listen") -> tuple[str, int]:
    """Read HOST:PORT, an IPv6 address in brackets."""
    from allhands_server.authorities import parse_authority

    if (found := parse_authority(listen)) is None:
        raise typer.BadParameter(f"{option} wants HOST:PORT or [IPV6]:PORT, not {listen!r}")
    return found
