"""Check by gRPC's health protocol whether a coordinator serves: exit status 0 or 1.

For the health checks of containers: `python -m allhands_server.healthcheck [HOST:PORT]`.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from allhands_proto.authority import format_authority
from allhands_proto.loopback import resolve_loopback
from allhands_proto.tls_files import apply_tls_directory


def check(
    address: str,
    *,
    tls_ca: Path | None,
    timeout: float,
    insecure: bool = False,
    tls_pair: tuple[str, str] | None = None,
) -> str:
    """Return the serving status by name: `SERVING`, `NOT_SERVING`, ...

    `tls_ca` holds the authorities to trust; without it the connection is plaintext, which beyond
    loopback has to be allowed by `insecure`. `tls_pair` is a certificate to show, with its key.

    Raises:
        grpc.RpcError: nobody answered within `timeout` seconds, or not in this protocol.
        OSError: `tls_ca` cannot be read, or the host has no address.
        ValueError: it would be plaintext to another host.
    """
    if tls_ca is None and not insecure:
        address = _resolve_loopback(address)
    with _open_channel(address, tls_ca, tls_pair) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=timeout
        )
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check of the command line; a bad answer goes to stderr."""
    try:
        environ = apply_tls_directory(os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    options = _make_parser(environ).parse_args(arguments)
    pair = environ.get("ALLHANDS_TLS_CERT", ""), environ.get("ALLHANDS_TLS_KEY", "")
    try:
        status = check(
            options.address,
            tls_ca=options.tls_ca,
            timeout=options.timeout,
            insecure=options.insecure,
            tls_pair=pair if all(pair) else None,
        )
    except (grpc.RpcError, OSError, ValueError) as error:
        sys.stderr.write(f"{options.address}: {_describe_error(error)}\n")
        return 1
    if status != "SERVING":
        sys.stderr.write(f"{options.address}: {status}\n")
        return 1
    return 0


def _make_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="allhands_server.healthcheck", description=__doc__)
    parser.add_argument("address", nargs="?", default="localhost:7070", metavar="HOST:PORT")
    parser.add_argument(
        "--tls-ca",
        type=Path,
        default=environ.get("ALLHANDS_TLS_CA") or None,
        metavar="PEM",
        help="authorities to trust; default: ALLHANDS_TLS_CA or ALLHANDS_TLS_DIR, else plaintext",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=environ.get("ALLHANDS_INSECURE", "") == "1",
        help="ask another host in plaintext; default: whether ALLHANDS_INSECURE is 1",
    )
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS")
    return parser


def _resolve_loopback(address: str) -> str:
    host, _, port = address.rpartition(":")
    if (found := resolve_loopback(host.strip("[]"))) is None:
        raise ValueError(
            f"{host} is another host, and without TLS whoever is on the way could answer in its "
            "place: give its authorities with --tls-ca or ALLHANDS_TLS_CA; or, where that network "
            "is yours alone, --insecure or ALLHANDS_INSECURE=1"
        )
    return format_authority(found, int(port))


def _open_channel(
    address: str, tls_ca: Path | None, tls_pair: tuple[str, str] | None
) -> grpc.Channel:
    # A proxy from the environment must not stand between a container and itself.
    settings = [("grpc.enable_http_proxy", 0)]
    if tls_ca is None:
        return grpc.insecure_channel(address, options=settings)
    cert, key = (None, None) if tls_pair is None else map(_read, tls_pair)
    credentials = grpc.ssl_channel_credentials(tls_ca.read_bytes(), key, cert)
    return grpc.secure_channel(address, credentials, options=settings)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _describe_error(error: Exception) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
