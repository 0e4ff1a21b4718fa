"""Listening sockets of one port on several hosts."""

import errno
import socket

from allhands_proto.authority import format_authority
from allhands_server.authorities import WILDCARDS

_ATTEMPTS = 32
"""To find a port that is free on all hosts."""


def listen_on(hosts: tuple[str, ...], port: int, backlog: int) -> list[socket.socket]:
    """Listen on one port of all hosts; 0: any that is free on each of them.

    A wildcard address takes IPv4 and IPv6. Of a name that stands for several addresses at least one
    has to be of this machine.

    Raises:
        OSError: a host is not of this machine, or the port is taken.
    """
    attempts = 1 if port else _ATTEMPTS
    while True:
        attempts -= 1
        opened: list[socket.socket] = []
        try:
            for host in hosts:
                found = opened[0].getsockname()[1] if opened else port
                opened += _listen_on_host(host, found, backlog)
        except OSError as error:
            for one in opened:
                one.close()
            if error.errno != errno.EADDRINUSE:
                raise
            if not attempts:
                text = f"{format_authority(hosts[0], port)} is taken: another process listens there"
                raise OSError(errno.EADDRINUSE, text) from error
            continue  # free on one host, and taken on another
        return opened


def _listen_on_host(host: str, port: int, backlog: int) -> list[socket.socket]:
    if host in WILDCARDS and socket.has_dualstack_ipv6():
        return [
            socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        ]
    opened: list[socket.socket] = []
    refused: OSError | None = None
    # As bytes, for a text brings the tables of international names in: a quarter of a MiB.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        where = (address[0], opened[0].getsockname()[1] if opened else port, *address[2:])
        try:
            opened.append(socket.create_server(where, family=family, backlog=backlog))
        except OSError as error:
            refused = error
            if error.errno == errno.EADDRINUSE:
                break
    if refused is not None and (not opened or refused.errno == errno.EADDRINUSE):
        for one in opened:
            one.close()
        raise refused
    return opened
