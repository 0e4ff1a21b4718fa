"""Loopback addresses: recognition and resolution."""

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Return whether `host` is `localhost` or a literal loopback address."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # some other name
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def resolve_loopback(host: str) -> str | None:
    """Return a loopback address of `host` for connecting; None: another host.

    A name must stand for loopback addresses alone. It is not to be resolved again, for then it may
    stand for another host.

    Raises:
        socket.gaierror: the name has no address.
    """
    if is_loopback(host):
        return host
    found = {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    if not all(map(is_loopback, found)):
        return None
    return min(found, key=lambda address: (":" in address, address))
