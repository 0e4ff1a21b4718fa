"""Hosts on one machine, with a router that can drop packets between any two.

Each host is a network namespace of its own; the router is one more. Neither end of a connection
learns from its own system that nothing gets through, as when a switch in between fails.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from allhands.bench import netns


@dataclass(frozen=True)
class RoutedHost:
    """A host: its address, and the process that holds its namespaces."""

    name: str
    address: str
    holder: int


@dataclass(frozen=True)
class Routed:
    """Hosts by letter, and the router between them."""

    hosts: dict[str, RoutedHost]
    router: int

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two hosts from now on, in either direction."""
        for source, target in ((one, other), (other, one)):
            addresses = ("-s", self.hosts[source].address, "-d", self.hosts[target].address)
            self._table("-A", "FORWARD", *addresses, "-j", "DROP")

    def heal(self) -> None:
        """Let everything through again."""
        self._table("-F", "FORWARD")

    def slow(self, letters: str, rate: str, queue: str) -> None:
        """Limit the rate at which hosts receive; `queue` is the longest delay in the router."""
        for interface in self._towards(letters):
            shaped = ("root", "tbf", "rate", rate, "burst", "32kb", "latency", queue)
            netns.run_command(
                [
                    *netns.make_enter_command(self.router),
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    interface,
                    *shaped,
                ]
            )

    def fast(self, letters: str) -> None:
        """Remove the rate limit of hosts."""
        for interface in self._towards(letters):
            netns.run_command(
                [
                    *netns.make_enter_command(self.router),
                    "tc",
                    "qdisc",
                    "del",
                    "dev",
                    interface,
                    "root",
                ]
            )

    def _towards(self, letters: str) -> list[str]:
        return [f"host{at}" for at, letter in enumerate(self.hosts, 1) if letter in letters]

    def _table(self, *arguments: str) -> None:
        command = [*netns.make_enter_command(self.router), "iptables", *arguments]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def routed_hosts(letters: str) -> Iterator[Routed]:
    """Make hosts named by letters for a block; skips the test if impossible."""
    if shutil.which("iptables") is None:
        pytest.skip("cutting hosts off needs iptables")
    with ExitStack() as stack:
        try:
            router = stack.enter_context(netns.open_namespaces("allhands-router"))
            netns.run_command(
                [*netns.make_enter_command(router), "sysctl", "-qw", "net.ipv4.ip_forward=1"]
            )
            hosts = {}
            for at, letter in enumerate(letters, 1):
                holder = stack.enter_context(netns.open_namespaces(f"allhands-{letter}"))
                _connect(router, holder, at)
                hosts[letter] = RoutedHost(f"allhands-{letter}", f"10.78.{at}.2", holder)
        except netns.NoNamespaces as refusal:
            pytest.skip(str(refusal))
        yield Routed(hosts, router)


def _connect(router: int, holder: int, at: int) -> None:
    there, here = netns.make_enter_command(holder), netns.make_enter_command(router)
    cable = ("ip", "link", "add", "uplink", "type", "veth")
    netns.run_command([*there, *cable, "peer", "name", f"host{at}", "netns", str(router)])
    netns.run_command([*there, "ip", "addr", "add", f"10.78.{at}.2/24", "dev", "uplink"])
    netns.run_command([*here, "ip", "addr", "add", f"10.78.{at}.1/24", "dev", f"host{at}"])
    for inside, interface in ((there, "lo"), (there, "uplink"), (here, f"host{at}")):
        netns.run_command([*inside, "ip", "link", "set", interface, "up"])
    netns.run_command([*there, "ip", "route", "add", "default", "via", f"10.78.{at}.1"])
