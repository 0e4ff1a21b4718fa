"""Unused addresses and ports of this host, for tests."""

import contextlib
import random
import socket

import pytest

from allhands.coordinator.host_address import find_address_towards


def address_beyond_loopback() -> str:
    """Return an address of this host reachable from others, or skip the test."""
    try:
        found = find_address_towards("192.0.2.1")
    except RuntimeError:
        found = "127.0.0.1"
    if found.startswith("127."):
        pytest.skip("this host has no address beyond loopback")
    return found


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free, and that the kernel gives to no connection."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports between 20000 and 32000")
