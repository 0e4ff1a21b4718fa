"""Checks of this host's addresses, name and ports. Pure."""

from collections.abc import Iterator

from allhands.config import BACKENDS, read_host, read_port_range
from allhands.doctor.finding import Finding, fail, ok, skip, warn
from allhands.doctor.machine import CoordinatorReading, Machine
from allhands.runtime.interfaces import NetworkInterface
from allhands_proto.loopback import is_loopback

_BY_HAND = "set ALLHANDS_ADVERTISE to the address at which the other hosts reach this one"


def check_network(
    machine: Machine, coordinator: CoordinatorReading | None, ranks: int
) -> Iterator[Finding]:
    """Check interfaces, the advertised address, the host's name and the range of ports.

    `ranks` are those to run here, 0: unknown; no coordinator: none is to be dialled.
    """
    yield check_interfaces(machine)
    yield check_advertised(machine, coordinator)
    yield check_own_name(machine)
    yield check_ports(machine, ranks)


def check_interfaces(machine: Machine) -> Finding:
    """Check that this host has an address beyond loopback."""
    listed = "; ".join(_describe(one) for one in machine.interfaces if one.addresses)
    if not _list_outside(machine):
        return warn(
            "interfaces",
            f"only ranks of this host can talk to each other: {listed or 'no addresses'}",
            "for several hosts give an interface an address and bring it up (ip addr, ip link; "
            "in a container its network settings)",
        )
    return ok("interfaces", listed)


def check_advertised(machine: Machine, coordinator: CoordinatorReading | None) -> Finding:
    """Find the address that ranks of this host would announce to the others, and why that."""
    environ = machine.environ
    try:
        advertised = read_host(environ.get("ALLHANDS_ADVERTISE", ""), "ALLHANDS_ADVERTISE")
    except ValueError as error:
        return fail("advertised", str(error), _BY_HAND)
    others_dial = coordinator is not None and (
        coordinator.is_reached_by_others or not coordinator.is_loopback
    )
    if advertised:
        return _check_given_address(machine, advertised, others_dial)
    if name := environ.get("ALLHANDS_INTERFACE", ""):
        return _check_given_interface(machine, name)
    if coordinator is None:
        return skip("advertised", "that of the way to a coordinator, and there is none")
    if coordinator.own_address and not is_loopback(coordinator.own_address):
        at = _name_interface(machine, coordinator.own_address)
        return ok(
            "advertised", f"{coordinator.own_address}{at}: that of the way to the coordinator"
        )
    if not coordinator.own_address:
        return skip("advertised", "that of the way to the coordinator, not known")
    if not coordinator.is_reached_by_others:
        return ok(
            "advertised",
            f"{coordinator.own_address}: the coordinator serves this host alone, as do its ranks",
        )
    if not machine.outside_address:
        return fail(
            "advertised",
            f"{coordinator.own_address}: other hosts reach the coordinator, and no rank of this "
            "host, which has no address beyond loopback",
            f"bring an interface up, or {_BY_HAND}",
        )
    at = _name_interface(machine, machine.outside_address)
    return ok(
        "advertised",
        f"{machine.outside_address}{at}: that of the default route, as other hosts reach the "
        "coordinator here",
    )


def _check_given_address(machine: Machine, advertised: str, others_dial: bool) -> Finding:
    if not machine.advertise_addresses:
        return fail(
            "advertised",
            f"ALLHANDS_ADVERTISE={advertised}: the name has no address here",
            f"give it one in DNS or /etc/hosts, or {_BY_HAND}",
        )
    address = machine.advertise_addresses[0]
    named = address if address == advertised else f"{advertised} ({address})"
    if is_loopback(address) and others_dial:
        return fail(
            "advertised",
            f"{named}, by ALLHANDS_ADVERTISE: other hosts reach themselves there",
            _BY_HAND,
        )
    own = {one for interface in machine.interfaces for one in interface.addresses}
    how = "" if address in own else "; not of an interface here, so it must be translated (NAT)"
    return ok("advertised", f"{named}, by ALLHANDS_ADVERTISE{how}")


def _check_given_interface(machine: Machine, name: str) -> Finding:
    found = next((one for one in machine.interfaces if one.name == name), None)
    known = ", ".join(one.name for one in machine.interfaces if one.addresses)
    fix = f"name one of those with an address: {known or 'none has any'}"
    if found is None:
        return fail("advertised", f"ALLHANDS_INTERFACE={name}: there is no such interface", fix)
    if not found.addresses:
        return fail("advertised", f"ALLHANDS_INTERFACE={name}: it has no address", fix)
    if not found.is_up:
        return fail(
            "advertised", f"ALLHANDS_INTERFACE={name}: it is down", f"ip link set {name} up"
        )
    return ok("advertised", f"{found.addresses[0]} ({name}), by ALLHANDS_INTERFACE")


def check_own_name(machine: Machine) -> Finding:
    """Check that this host's name leads other hosts to it, as MASTER_ADDR and Gloo expect."""
    name, found = machine.hostname, machine.name_addresses
    outside = machine.outside_address or next(iter(_list_outside(machine)), "")
    line = f"{outside} {name}"
    if not found:
        return warn(
            "own name",
            f"{name!r} has no address here; programs that give their host's name to others fail",
            f"add it to DNS or /etc/hosts: {line}" if outside else "add it to DNS or /etc/hosts",
        )
    listed = ", ".join(found)
    if not outside:
        return ok("own name", f"{name!r} is {listed}; this host has no address for others")
    if all(map(is_loopback, found)):
        return warn(
            "own name",
            f"{name!r} is {listed} here; programs that give others this name (MASTER_ADDR, "
            "Gloo) are not reached",
            f"in /etc/hosts take it from the line of {found[0]}, and add: {line}",
        )
    own = {one for interface in machine.interfaces for one in interface.addresses}
    if own.isdisjoint(found):
        return warn(
            "own name",
            f"{name!r} is {listed}, which no interface of this host has",
            f"correct it in DNS or /etc/hosts: {line}, unless the address is translated (NAT)",
        )
    return ok("own name", f"{name!r} is {listed}")


def check_ports(machine: Machine, ranks: int) -> Finding:
    """Check that the configured range has free ports for the ranks."""
    try:
        ports = read_port_range(
            machine.environ.get("ALLHANDS_PORT_RANGE", ""), "ALLHANDS_PORT_RANGE"
        )
    except ValueError as error:
        return fail("ports", str(error), "write it as in ALLHANDS_PORT_RANGE=30000-30999")
    if ports is None:
        return ok("ports", "any free ports: a firewall must let them through")
    backend = BACKENDS.get(machine.environ.get("ALLHANDS_BACKEND", ""), BACKENDS["auto"])
    needed = backend.listening_ports * max(ranks, 1)
    free = len(ports) - len(machine.taken_ports)
    taken = ", ".join(map(str, machine.taken_ports[:4]))
    more = ", ..." if len(machine.taken_ports) > 4 else ""
    detail = f"{ports[0]}-{ports[-1]}: {free} of {len(ports)} free"
    if machine.taken_ports:
        detail += f" (taken: {taken}{more})"
    if free < needed:
        return fail(
            "ports",
            f"{detail}; {max(ranks, 1)} rank{'s' if ranks > 1 else ''} listen on {needed}",
            "widen ALLHANDS_PORT_RANGE, or end what listens there (ss -ltnp)",
        )
    return ok("ports", detail)


def _list_outside(machine: Machine) -> list[str]:
    return [
        address
        for one in machine.interfaces
        for address in one.addresses
        if one.is_up and not is_loopback(address)
    ]


def _name_interface(machine: Machine, address: str) -> str:
    return next((f" ({one.name})" for one in machine.interfaces if address in one.addresses), "")


def _describe(interface: NetworkInterface) -> str:
    is_outside = not all(map(is_loopback, interface.addresses))
    mtu = f" mtu {interface.mtu}" if interface.mtu and is_outside else ""
    down = "" if interface.is_up else " (down)"
    return f"{interface.name} {' '.join(interface.addresses)}{mtu}{down}"
