"""Checks of addresses, names and ports: each breaks one thing of a healthy host."""

from dataclasses import replace

import pytest

from allhands.doctor.finding import Finding, Level
from allhands.doctor.machine import CoordinatorReading, Machine
from allhands.doctor.network_checks import (
    check_advertised,
    check_interfaces,
    check_network,
    check_own_name,
    check_ports,
)
from allhands.runtime.interfaces import NetworkInterface
from unit.doctor.machines import ANSWERING, ETHERNET, HEALTHY, LOOPBACK

BESIDE = replace(ANSWERING, is_loopback=True, own_address="127.0.0.1")
"""A daemon on this host that other hosts reach."""


def with_environ(**environ: str) -> Machine:
    return replace(HEALTHY, environ=environ)


def test_a_healthy_host_has_no_finding_to_fix() -> None:
    found = list(check_network(HEALTHY, ANSWERING, ranks=4))
    assert [one.status for one in found] == [Level.OK] * 4


def test_interfaces_without_an_address_beyond_loopback_are_warned_of() -> None:
    for interfaces in (
        (),
        (LOOPBACK,),
        (LOOPBACK, NetworkInterface("eth0", (), is_up=True, mtu=1500)),
        (LOOPBACK, replace(ETHERNET, is_up=False)),
    ):
        found = check_interfaces(replace(HEALTHY, interfaces=interfaces))
        assert found.status is Level.WARN
        assert "ip link" in found.fix


@pytest.mark.parametrize(
    ("machine", "coordinator", "status", "detail"),
    [
        (HEALTHY, ANSWERING, Level.OK, "10.0.0.5 (eth0): that of the way to the coordinator"),
        (HEALTHY, BESIDE, Level.OK, "10.0.0.5 (eth0): that of the default route, as"),
        (
            HEALTHY,
            replace(BESIDE, is_reached_by_others=False),
            Level.OK,
            "127.0.0.1: the coordinator serves this host alone",
        ),
        (HEALTHY, None, Level.SKIP, "there is none"),
        (HEALTHY, CoordinatorReading("ah://h:1", "it is down"), Level.SKIP, "not known"),
        (replace(HEALTHY, outside_address=""), BESIDE, Level.FAIL, "no rank of this host"),
        (with_environ(ALLHANDS_INTERFACE="eth0"), ANSWERING, Level.OK, "10.0.0.5 (eth0), by"),
        (with_environ(ALLHANDS_INTERFACE="eth7"), ANSWERING, Level.FAIL, "no such interface"),
        (
            replace(
                with_environ(ALLHANDS_INTERFACE="eth0"),
                interfaces=(LOOPBACK, replace(ETHERNET, is_up=False)),
            ),
            ANSWERING,
            Level.FAIL,
            "it is down",
        ),
        (
            replace(
                with_environ(ALLHANDS_INTERFACE="eth0"),
                interfaces=(LOOPBACK, replace(ETHERNET, addresses=())),
            ),
            ANSWERING,
            Level.FAIL,
            "it has no address",
        ),
        (with_environ(ALLHANDS_ADVERTISE="node5"), ANSWERING, Level.FAIL, "no address here"),
        (with_environ(ALLHANDS_ADVERTISE="0.0.0.0"), ANSWERING, Level.FAIL, "must be one address"),
        (
            replace(with_environ(ALLHANDS_ADVERTISE="node5"), advertise_addresses=("127.0.1.1",)),
            ANSWERING,
            Level.FAIL,
            "other hosts reach themselves there",
        ),
        (
            replace(with_environ(ALLHANDS_ADVERTISE="node5"), advertise_addresses=("10.0.0.5",)),
            ANSWERING,
            Level.OK,
            "node5 (10.0.0.5), by ALLHANDS_ADVERTISE",
        ),
        (
            replace(with_environ(ALLHANDS_ADVERTISE="1.2.3.4"), advertise_addresses=("1.2.3.4",)),
            ANSWERING,
            Level.OK,
            "(NAT)",
        ),
    ],
)
def test_the_advertised_address_is_told_with_its_reason(
    machine: Machine, coordinator: CoordinatorReading | None, status: Level, detail: str
) -> None:
    found = check_advertised(machine, coordinator)
    assert found.status is status
    assert detail in found.detail
    assert bool(found.fix) == (status is Level.FAIL)


def test_the_name_of_debians_hosts_file_is_warned_of_with_the_line_to_write() -> None:
    found = check_own_name(replace(HEALTHY, name_addresses=("127.0.1.1",)))
    assert found.status is Level.WARN
    assert "127.0.1.1" in found.detail
    assert found.fix.endswith("add: 10.0.0.5 node5")


@pytest.mark.parametrize(
    ("addresses", "detail"),
    [((), "has no address here"), (("10.9.9.9",), "which no interface of this host has")],
)
def test_a_name_that_leads_elsewhere_is_warned_of(addresses: tuple[str, ...], detail: str) -> None:
    found = check_own_name(replace(HEALTHY, name_addresses=addresses))
    assert (found.status, "10.0.0.5 node5" in found.fix) == (Level.WARN, True)
    assert detail in found.detail


def test_a_name_of_loopback_is_right_where_there_is_nothing_else() -> None:
    alone = replace(
        HEALTHY, interfaces=(LOOPBACK,), outside_address="", name_addresses=("127.0.0.1",)
    )
    assert check_own_name(alone).status is Level.OK


def ports(text: str, *taken: int, ranks: int = 2, backend: str = "auto") -> Finding:
    environ = {"ALLHANDS_PORT_RANGE": text, "ALLHANDS_BACKEND": backend}
    return check_ports(replace(HEALTHY, environ=environ, taken_ports=taken), ranks)


def test_a_range_needs_two_free_ports_for_each_rank() -> None:
    assert ports("30000-30003").status is Level.OK
    short = ports("30000-30003", 30001)
    assert (short.status, short.detail) == (
        Level.FAIL,
        "30000-30003: 3 of 4 free (taken: 30001); 2 ranks listen on 4",
    )
    assert ports("30000-30003", 30001, ranks=1).status is Level.OK
    assert ports("30000-30003", 30001, backend="grpc").status is Level.OK


def test_a_malformed_range_fails() -> None:
    assert ports("30003-30000").status is Level.FAIL
