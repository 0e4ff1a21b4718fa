"""Unauthenticated connections of a listener: their bound, and the choice to evict.

Used by every listener, on both sides of the wire. Pure: the time is passed in.
"""

import ipaddress
import resource
from collections.abc import Iterator
from typing import Generic, TypeVar

GRACE_SECONDS = 0.5
"""No connection is dropped to make room before it has had so long: a handshake takes milliseconds,
and the ranks of a large job on one host may all connect at the same moment."""

_FEWEST, _MOST = 32, 4096
_IPV6_SITE = 64  # bits: whoever has one address there has them all

C = TypeVar("C")


class UnprovenConnections(Generic[C]):
    """Unauthenticated connections of one listener, by host."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_site: dict[str, dict[C, float]] = {}
        self._site: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._site)

    def __iter__(self) -> Iterator[C]:
        return iter(self._site)

    def __contains__(self, connection: object) -> bool:
        return connection in self._site

    def add(self, connection: C, host: str, now: float) -> None:
        site = self._site[connection] = group_address(host)
        self._by_site.setdefault(site, {})[connection] = now

    def discard(self, connection: C) -> None:
        """Forget a connection, authenticated or closed. Idempotent."""
        if (site := self._site.pop(connection, None)) is not None:
            there = self._by_site[site]
            del there[connection]
            if not there:
                del self._by_site[site]

    def find_surplus(self) -> tuple[C, float] | None:
        """Return the connection to evict, with its time of arrival; None: there is room.

        It is the oldest of the host with the most of them, so no host displaces another's.
        """
        if len(self._site) < self.most:
            return None
        there = max(self._by_site.values(), key=len)
        return next(iter(there.items()))


def group_address(host: str) -> str:
    """Return the unit of accounting of an address: loopback or an IPv6 /64 is one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return "loopback"
    if address.version == 6:
        return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
    return str(address)


def limit_to_share(part: int) -> int:
    """Return the `part`-th part of this process's limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST * part if soft == resource.RLIM_INFINITY else soft
    return min(max(allowed // part, _FEWEST), _MOST)
