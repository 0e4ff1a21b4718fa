"""Network interfaces of this host and the addresses of each."""

import socket
import struct

from allhands_proto.interface_addresses import ask_interface, list_addresses
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.routes import find_outside_addresses

_SIOCGIFFLAGS = 0x8913
_SIOCGIFMTU = 0x8921
_IFF_UP = 1


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
            tuple(list_addresses(name)),
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
    if not (found := list_addresses(interface)):
        with_address = [name for name in names if list_addresses(name)]
        raise ValueError(
            f"the network interface {interface!r} has no address; "
            f"of this host {', '.join(with_address) or 'none'} has one"
        )
    return found[0]


def find_outside_address() -> str | None:
    """Return this host's address for other hosts; None if only loopback exists."""
    return next(iter(find_outside_addresses()), None)


def is_own_address(address: str) -> bool:
    """Say whether this host has an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _ask_number(request: int, kind: str, interface: str) -> int:
    """Return a number of an interface, in the form of `struct`; 0: it has gone."""
    if (answer := ask_interface(request, interface)) is None:
        return 0
    found: int = struct.unpack_from(kind, answer, 16)[0]
    return found
