"""TCP acknowledgements of this host's connections, from the kernel's tables. Linux only.

A process that is stopped, or whose interpreter is held up, reads nothing; its host's kernel
acknowledges what it is sent all the same, as long as the process exists. A host that is gone or
out of reach acknowledges nothing.
"""

import ipaddress
import struct
from collections.abc import Iterable
from pathlib import Path

from allhands_proto.connections import read_peer

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"


def find_acknowledging(peers: Iterable[str]) -> set[str]:
    """Return the peers, in gRPC's notation, with all data acknowledged.

    Peers without an established TCP connection to this network namespace are not among them.
    """
    wanted: dict[str, str] = {}
    for peer in peers:
        for entry in _list_entries(peer):
            wanted[entry] = peer
    found: set[str] = set()
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, _, remote, state, queues = line.split(maxsplit=5)[:5]
            peer = wanted.get(remote, "")
            if peer and state == _ESTABLISHED and int(queues.partition(":")[0], 16) == 0:
                found.add(peer)
    return found


def _list_entries(peer: str) -> list[str]:
    """Return how the kernel's tables may write "ipv4:10.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    if (found := read_peer(peer)) is None:
        return []
    address, number = ipaddress.ip_address(found[0]), f":{found[1]:04X}"
    written = [address.packed]
    if address.version == 4:
        written.append(ipaddress.ip_address(f"::ffff:{address}").packed)
    return ["".join(f"{word:08X}" for word in _split_words(packed)) + number for packed in written]


def _split_words(packed: bytes) -> tuple[int, ...]:
    """Split an address into 32-bit words in native byte order."""
    return struct.unpack(f"={len(packed) // 4}I", packed)
