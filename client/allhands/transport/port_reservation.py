"""Ports that are taken before their server starts."""

import socket


def reserve_port(host: str, port: int) -> socket.socket:
    """Take a port, so that nobody else gets it; return a socket that listens there.

    Raises:
        OSError: the host is not an address of this machine, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    allow_sharing(reserved, True)  # with connections of a listener that has ended
    try:
        reserved.setblocking(False)
        reserved.bind((host, port))
        # Of several that have bound it one may listen; from then on nobody else gets it.
        reserved.listen(1)
        allow_sharing(reserved, False)
    except OSError:
        reserved.close()
        raise
    return reserved


def allow_sharing(reserved: socket.socket, may_share: bool) -> None:
    """Let others bind the port of a socket that does not listen, or forbid it."""
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, may_share)
