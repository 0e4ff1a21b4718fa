"""Addresses of this host's network interfaces, as the kernel has them."""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s16x8x")
_ADDRESS = slice(20, 24)
_IPV6_TABLE = Path("/proc/net/if_inet6")
_LINK_SCOPE = "20"


def list_addresses(interface: str) -> list[str]:
    """List the first address of IPv4 of an interface, and its first of IPv6 beyond the link."""
    return [one for one in (_read_ipv4(interface), _read_ipv6(interface)) if one is not None]


def list_outside_addresses() -> list[str]:
    """List the addresses of all interfaces but loopback, in the kernel's order of interfaces."""
    return [
        address
        for _, name in socket.if_nameindex()
        for address in list_addresses(name)
        if not ipaddress.ip_address(address).is_loopback
    ]


def ask_interface(request: int, interface: str) -> bytes | None:
    """Return the kernel's `struct ifreq` to a request of ioctl(2); None: it has no answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return fcntl.ioctl(probe, request, _IFREQ.pack(interface.encode()))
        except OSError:
            return None


def _read_ipv4(interface: str) -> str | None:
    answer = ask_interface(_SIOCGIFADDR, interface)
    return None if answer is None else socket.inet_ntoa(answer[_ADDRESS])


def _read_ipv6(interface: str) -> str | None:
    try:
        table = _IPV6_TABLE.read_text()
    except OSError:
        return None  # this kernel has no IPv6
    for line in table.splitlines():
        digits, _, _, scope, _, name = line.split()
        if name == interface and scope != _LINK_SCOPE:
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return None
