"""Probes of a coordinator that cannot be reached, over connections that the test has."""

import socket

from allhands.coordinator.probing import _probe_without_ca


def test_a_connection_that_ends_within_the_handshake_stays_its_owners() -> None:
    """Else nobody closes it: an unclosed socket is reported much later, wherever that may be."""
    near, far = socket.socketpair()
    with near, far:
        far.close()
        assert _probe_without_ca("it", near, 10.0) is None
        assert near.fileno() >= 0
