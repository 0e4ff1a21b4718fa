"""Bound on unauthenticated connections to a gRPC port of this process.

gRPC tells a server of calls, not of connections, and bounds only how many there are in all. So the
process's own descriptors are looked at, and where too many strangers hold some, they are shut down.
"""

import asyncio
import contextlib
import errno
import ipaddress
import os
import resource
import socket
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias
from urllib.parse import unquote

from allhands_proto.unproven import GRACE_SECONDS, UnprovenConnections, limit_to_share

PART = 4
"""One of so many descriptors of this process may be a connection that has not authenticated."""
_LOOK_SECONDS = 0.25
_FAMILY = socket.AF_INET6
"""Of which an address is long enough for those of IPv4 too; the kernel says which one it is."""
_DESCRIPTORS = "/proc/self/fd"

Peer: TypeAlias = tuple[str, int]


def limit_connections() -> int:
    """Return the bound on connections of a gRPC port, a share of the descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft * 3 // 4, 16)


class Connections:
    """Watch over the connections to the ports of a server, on the running loop, until `close`."""

    def __init__(self, evicted: Callable[[str, int], None]) -> None:
        """Take a callback for evicted connections: their host, and the bound."""
        self._loop = asyncio.get_running_loop()
        self._evicted = evicted
        self._ports: set[int] = set()
        self._proven: set[str] = set()
        self._proven_before = 0
        self._unproven: UnprovenConnections[Peer] = UnprovenConnections(limit_to_share(PART))
        self._quiet = 0
        """Up to so many descriptors no bound can be exceeded."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, *ports: int) -> None:
        """Begin to look, once."""
        self._ports = set(ports)
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def mark_proven(self, peer: str) -> None:
        """Note that a peer, in gRPC's notation, has authenticated."""
        self._proven.add(peer)

    def _look(self) -> None:
        began = self._loop.time()
        try:
            self._look_from(began)
        except OSError as error:  # to look takes a descriptor
            if error.errno != errno.EMFILE:
                raise
        # Where there are very many descriptors, a look at them all is a small part of the time.
        pause = max(_LOOK_SECONDS, 20 * (self._loop.time() - began))
        self._timer = self._loop.call_later(pause, self._look)

    def _look_from(self, began: float) -> None:
        count = _count_descriptors()
        self._quiet = min(self._quiet, count + self._unproven.most // 2)
        if count > self._quiet or len(self._proven) > 2 * self._proven_before + 1024:
            self._review(began)
            crowded = len(self._unproven) > self._unproven.most // 2
            self._quiet = 0 if crowded else count + self._unproven.most // 2

    def _review(self, now: float) -> None:
        """Update the known connections, and shut down those above the bound."""
        there = dict(_list_connections(self._ports))
        self._proven = {one for one in self._proven if read_peer(one) in there}
        self._proven_before = len(self._proven)
        proven = set(map(read_peer, self._proven))
        for peer in [one for one in self._unproven if one not in there or one in proven]:
            self._unproven.discard(peer)
        for peer in there:
            if peer not in proven and peer not in self._unproven:
                self._unproven.add(peer, peer[0], now)
        while (surplus := self._unproven.find_surplus()) is not None:
            peer, since = surplus
            if since + GRACE_SECONDS > now:
                return
            self._unproven.discard(peer)
            if _shut_down(there[peer], peer):
                self._evicted(peer[0], self._unproven.most)


def _count_descriptors() -> int:
    # What Linux says at once from 6.2 on, and before as the size of a directory, which is 0.
    return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))


def _list_connections(ports: Collection[int]) -> Iterator[tuple[Peer, int]]:
    """Yield the peers of this process's connections to some ports, with descriptors."""
    for name in os.listdir(_DESCRIPTORS):
        # Looked at by number and not duplicated: the end of a copy would end locks on a file.
        try:
            looked_at = socket.socket(_FAMILY, socket.SOCK_STREAM, 0, fileno=int(name))
        except OSError:
            continue  # no socket, or closed meanwhile
        try:
            here = looked_at.getsockname()
            if isinstance(here, tuple) and len(here) > 1 and here[1] in ports:
                yield _normalise(*looked_at.getpeername()[:2]), int(name)
        except OSError:
            continue  # it is not connected
        finally:
            looked_at.detach()


def _shut_down(descriptor: int, peer: Peer) -> bool:
    """Shut down a connection owned by gRPC, which then closes its descriptor."""
    try:
        connection = socket.socket(_FAMILY, socket.SOCK_STREAM, 0, fileno=os.dup(descriptor))
    except OSError:
        return False
    with connection, contextlib.suppress(OSError):
        if _normalise(*connection.getpeername()[:2]) == peer:
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def read_peer(written: str) -> Peer | None:
    """Read `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(written).partition(":")[2].rpartition(":")
    try:
        return _normalise(host.strip("[]"), int(port))
    except ValueError:
        return None


def _normalise(host: str, port: int) -> Peer:
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address), port
