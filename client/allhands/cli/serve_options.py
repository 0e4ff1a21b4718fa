"""Options of `allhands serve`."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

Listen: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        envvar="ALLHANDS_LISTEN",
        help="An address to listen on; port 0 takes any free one. Repeatable.",
    ),
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="The token that callers must show; else ALLHANDS_TOKEN, else a random one.",
    ),
]
TlsCert: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")
]
TlsClientCa: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Authorities, PEM: callers have to show a certificate of theirs.",
    ),
]
TlsDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tls-dir",
        metavar="DIR",
        help="ca.crt, tls.crt, tls.key and token in one folder, as `allhands token init` "
        "makes; else ALLHANDS_TLS_DIR.",
    ),
]
Insecure: TypeAlias = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond loopback without token or TLS.")
]
DataDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Keep all state in this folder: jobs go on after restarts and crashes.",
    ),
]
Http: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        envvar="ALLHANDS_HTTP",
        help="Address for a page of the jobs, health (/healthz, /readyz, /leader) and metrics "
        "(/metrics) by HTTP, as 127.0.0.1:7071; needs allhands[http].",
    ),
]
LogFormat: TypeAlias = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log-format",
        envvar="ALLHANDS_LOG_FORMAT",
        help="Lines on stderr: text, or a JSON object with time, level, logger, message and job.",
    ),
]
LogLevel: TypeAlias = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(
        "--log-level", envvar="ALLHANDS_LOG_LEVEL", help="The least level of lines on stderr."
    ),
]
AuditLog: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--audit-log", metavar="FILE", help="Append a line of JSON for each call to FILE."
    ),
]
DrainTimeout: TypeAlias = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        help="How long running jobs get to end after SIGTERM or Ctrl-C.",
    ),
]
Limit: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="A limit of jobs or clients, such as memory=2GiB or job-keys=5000, repeated for "
        "several; also ALLHANDS_LIMITS, with commas. `allhands status --limits` lists all.",
    ),
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="etcd://HOST:PORT,...",
        help="Keep the state in this etcd cluster, with other daemons that stand by.",
    ),
]
StoreCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--store-ca", metavar="FILE", help="Authorities of the store, PEM; else no TLS."),
]
StoreCert: TypeAlias = Annotated[
    Path | None,
    typer.Option("--store-cert", metavar="FILE", help="This daemon's certificate for the store."),
]
StoreKey: TypeAlias = Annotated[
    Path | None, typer.Option("--store-key", metavar="FILE", help="Its key, PEM.")
]
StoreUser: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--store-user-file",
        metavar="FILE",
        help="NAME:PASSWORD for the store; else ALLHANDS_STORE_USER, else none.",
    ),
]
Advertise: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--advertise",
        metavar="HOST[:PORT]",
        envvar="ALLHANDS_ADVERTISE",
        help="Where clients reach this daemon, as behind published ports of a container; else "
        "where it listens. Repeatable.",
    ),
]
KvPort: TypeAlias = Annotated[
    int,
    typer.Option(
        "--kv-port",
        metavar="PORT",
        envvar="ALLHANDS_KV_PORT",
        help="Port for key-value calls, to be published too; 0 takes any free one.",
    ),
]
KvAdvertise: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-advertise",
        metavar="HOST[:PORT]",
        envvar="ALLHANDS_KV_ADVERTISE",
        help="Where clients reach the port for key-value calls; else --kv-port on the host that "
        "they have dialled. Repeatable.",
    ),
]
