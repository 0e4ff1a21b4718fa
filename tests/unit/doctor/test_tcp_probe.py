"""Probes over real connections on loopback."""

import contextlib
import socket

import pytest

from allhands.doctor.tcp_probe import NONCE_BYTES, ProbeListener, probe


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_listener_is_reached_and_measured(address: str) -> None:
    with ProbeListener(address, None) as listener:
        found = probe(address, listener.port, listener.nonce)
    assert (found.failure, found.problem) == (None, "")
    assert found.round_trip > 0
    assert found.bandwidth > 0
    assert found.mtu > 60000


def test_a_caller_without_the_nonce_gets_no_answer() -> None:
    with ProbeListener("127.0.0.1", None) as listener:
        found = probe("127.0.0.1", listener.port, bytes(NONCE_BYTES))
        assert found.failure == "other"
        assert "the other side has closed it" in found.problem
        # And it goes on with the next one.
        assert probe("127.0.0.1", listener.port, listener.nonce).failure is None


def test_a_port_without_a_listener_is_refused() -> None:
    with ProbeListener("127.0.0.1", None) as listener:
        port = listener.port
    assert probe("127.0.0.1", port, bytes(NONCE_BYTES)).failure == "refused"


def test_a_listener_takes_a_free_port_of_its_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as stack:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="no port of the range is free"):
            stack.enter_context(ProbeListener("127.0.0.1", [port]))
        listener = stack.enter_context(ProbeListener("127.0.0.1", [port, 0]))
        assert listener.port != port


def test_an_address_of_another_host_is_listened_for_on_all() -> None:
    """As behind NAT, where the announced address is translated on the way here."""
    with ProbeListener("192.0.2.1", None) as listener:
        assert probe("127.0.0.1", listener.port, listener.nonce).failure is None
