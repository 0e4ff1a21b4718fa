"""Network interfaces of this host."""

import socket

import pytest

from allhands.runtime import interfaces
from allhands.transport.ports import Ports
from support.ranks.addresses import address_beyond_loopback


def test_loopback_has_its_address() -> None:
    assert interfaces.get_address("lo") == "127.0.0.1"


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no network interface 'eth77'; it has .*lo"):
        interfaces.get_address("eth77")


def test_an_address_beyond_loopback_is_this_hosts_own() -> None:
    address_beyond_loopback()  # or skip
    found = interfaces.find_outside_address()
    assert found is not None
    assert not found.startswith("127.")
    assert interfaces.is_own_address(found)
    assert not interfaces.is_own_address("192.0.2.1")


async def test_ports_are_taken_among_those_that_are_given() -> None:
    among = _free_ports(3)
    with socket.create_server(("127.0.0.1", among[0])):
        ports = Ports("socket", among)
        await ports.start("127.0.0.1")
        assert {ports.port, ports.data_port} == {among[1], among[2]}
        late = Ports("socket", among)
        with pytest.raises(OSError, match=rf"no port from {among[0]} to {among[2]} is free"):
            await late.start("127.0.0.1")
        await late.aclose()
    await ports.aclose()


async def test_a_port_is_enough_where_all_links_are_of_grpc() -> None:
    among = _free_ports(1)
    ports = Ports("grpc", among)
    await ports.start("127.0.0.1")
    assert (ports.port, ports.data_port) == (among[0], 0)
    await ports.aclose()


async def test_a_host_of_another_machine_is_told_as_such() -> None:
    ports = Ports("socket", range(31200, 31204))
    with pytest.raises(OSError, match="assign requested address"):
        await ports.start("192.0.2.1")
    await ports.aclose()


def _free_ports(count: int) -> range:
    """Return consecutive free ports."""
    for low in range(20000, 30000, count):
        with_all = [socket.socket() for _ in range(count)]
        try:
            for at, one in enumerate(with_all):
                one.bind(("127.0.0.1", low + at))
            return range(low, low + count)
        except OSError:
            continue
        finally:
            for one in with_all:
                one.close()
    raise AssertionError("no ports are free")
