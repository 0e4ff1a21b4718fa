"""Addresses of peers in gRPC's notation."""

import ipaddress
from urllib.parse import unquote

from allhands_proto.authority import format_authority


def parse_peer_host(peer: str) -> str:
    """Return the IP address in `context.peer()`: the worker's end of the connection.

    gRPC writes `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`, `unix:/path`; a Unix socket is on
    this host.

    Raises:
        ValueError: it is none of these.
    """
    scheme, _, rest = unquote(peer).partition(":")
    match scheme:
        case "unix" | "unix-abstract":
            return "127.0.0.1"
        case "ipv4" | "ipv6":
            host = rest.rpartition(":")[0].strip("[]")
            address = ipaddress.ip_address(host)
            mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 peer of a dual-stack socket
            return str(mapped or address)
        case _:
            raise ValueError(f"not the address of a peer: {peer!r}")


def format_worker_address(peer: str, port: int) -> str:
    """Return the worker's `host:port` for peers to dial."""
    return format_authority(parse_peer_host(peer), port)


def get_local_host(host: str) -> str:
    """Return the address by which this host reaches a listener on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
