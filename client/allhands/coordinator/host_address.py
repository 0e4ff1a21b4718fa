"""Addresses of hosts by name, IPv4 first, and of this host on the way to another."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from allhands.coordinator.endpoint import Endpoint
from allhands.errors import CoordinatorUnavailable

_ANY_PORT = 1

AddressRow: TypeAlias = "tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]"
"""Of `getaddrinfo`."""


async def resolve_host(host: str) -> str:
    """Resolve a host name to an address.

    Raises:
        CoordinatorUnavailable: it has no address, perhaps not yet.
    """
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    with _explain_unknown(host):
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(_choose_address(found)[4][0])


def resolve_host_blocking(host: str) -> str:
    """Resolve a host name as `resolve_host` does, on the caller's thread."""
    with _explain_unknown(host):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(_choose_address(found)[4][0])


async def find_own_address(endpoint: Endpoint) -> str:
    """Return the address of this host on the way to the coordinator: where peers reach it."""
    return find_address_towards(await resolve_host(endpoint.address.host))


def find_address_towards(host: str) -> str:
    """Return the address of this host on the way to another one, given by name or address.

    Raises:
        CoordinatorUnavailable: it has no address, or there is no way to it.
    """
    # As bytes, for a text brings the tables of international names in: a quarter of a MiB.
    name = host.encode() if host.isascii() else host
    with _explain_unknown(host):
        found = socket.getaddrinfo(name, _ANY_PORT, type=socket.SOCK_DGRAM)
    family, _, _, _, target = _choose_address(found)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting sends nothing
        try:
            probe.connect(target)
        except OSError as error:
            raise CoordinatorUnavailable(f"no way to {host}: {error}") from error
        return str(probe.getsockname()[0])


def _choose_address(found: Sequence[AddressRow]) -> AddressRow:
    return min(found, key=lambda row: row[0] != socket.AF_INET)


@contextlib.contextmanager
def _explain_unknown(host: str) -> Iterator[None]:
    try:
        yield
    except socket.gaierror as error:
        raise CoordinatorUnavailable(f"the host {host!r} has no address: {error}") from error
