"""Network interfaces of this host and the addresses of each."""

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from allhands_proto.routes import find_outside_addresses

_SIOCGIFADDR = 0x8915
_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_IFF_UP = 1
_IFREQ = struct.Struct("16s16x8x")
_ADDRESS = slice(20, 24)
_IPV6_TABLE = Path("/proc/net/if_inet6")
_LINK_SCOPE = "20"


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """An interface of this host."""

    name: str
    addresses: tuple[str, ...]
    """Its first of IPv4, and its first of IPv6 that counts beyond the link."""
    is_up: bool
    mtu: int
    """Bytes of the largest packet; 0: unknown."""


def list_interfaces() -> tuple[NetworkInterface, ...]:
    """Return the interfaces of this host, those of loopback too."""
    return tuple(
        NetworkInterface(
            name,
            tuple(one for one in (_get_ipv4(name), _get_ipv6(name)) if one is not None),
            bool(_ask_number(_SIOCGIFFLAGS, "H", name) & _IFF_UP),
            _ask_number(_SIOCGIFMTU, "i", name),
        )
        for _, name in socket.if_nameindex()
    )


def get_address(interface: str) -> str:
    """Return the address of an interface, IPv4 before IPv6.

    Raises:
        ValueError: there is no such interface, or it has none; the text names those there are.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ValueError(
            f"this host has no network interface {interface!r}; it has {', '.join(names)}"
        )
    found = _get_ipv4(interface) or _get_ipv6(interface)
    if found is None:
        with_address = [name for name in names if _get_ipv4(name) or _get_ipv6(name)]
        raise ValueError(
            f"the network interface {interface!r} has no address; "
            f"of this host {', '.join(with_address) or 'none'} has one"
        )
    return found


def find_outside_address() -> str | None:
    """Return this host's address on the default route; None if only loopback exists.

    Without a default route, the address of the first interface.
    """
    if outside := find_outside_addresses():
        return outside[0]
    for _, name in socket.if_nameindex():
        found = _get_ipv4(name) or _get_ipv6(name)
        if found is not None and not ipaddress.ip_address(found).is_loopback:
            return found
    return None


def is_own_address(address: str) -> bool:
    """Say whether this host has an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _get_ipv4(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(told[_ADDRESS])


def _ask_number(request: int, kind: str, interface: str) -> int:
    """Return a number of an interface, in the form of `struct`; 0: it has gone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            told = fcntl.ioctl(probe, request, _IFREQ.pack(interface.encode()))
        except OSError:
            return 0
    found: int = struct.unpack_from(kind, told, 16)[0]
    return found


def _get_ipv6(interface: str) -> str | None:
    try:
        table = _IPV6_TABLE.read_text()
    except OSError:
        return None  # this kernel has no IPv6
    for line in table.splitlines():
        digits, _, _, scope, _, name = line.split()
        if name == interface and scope != _LINK_SCOPE:
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return None
