"""Addresses of this host on the way to others."""

import contextlib
import ipaddress
import socket

from allhands_proto.interface_addresses import list_outside_addresses

_OUTSIDE_ADDRESSES = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Addresses for documentation (RFC 5737, RFC 3849): on no host, so the way there leads out."""


def stays_on_host(host: str) -> bool:
    """Return whether packets to `host`, a literal address, stay on this host.

    False for a name, which is not resolved, and for an interface's second address in one network.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    # The source of packets to an address of this host is that address. Binding it would prove
    # nothing where net.ipv4.ip_nonlocal_bind is set.
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))  # which sends nothing
        return ipaddress.ip_address(probe.getsockname()[0]) == address
    return False


def find_outside_addresses() -> list[str]:
    """Return this host's addresses on its default routes, IPv4 first.

    Without a default route, as in a closed network: those of its interfaces; empty: only loopback.
    """
    found = []
    for family, elsewhere in _OUTSIDE_ADDRESSES:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 1))  # which sends nothing
            found.append(str(probe.getsockname()[0]))
    return found or list_outside_addresses()
