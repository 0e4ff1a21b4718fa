"""Worlds across two hosts, which are network namespaces: fixtures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from allhands.bench import netns
from allhands.bench.launchers import BenchHost
from support.ranks.addresses import free_port
from support.ranks.processes import Cluster, Process, Program

Span = Callable[..., list[Process]]
Spread = Callable[..., list[Process]]

PORT = str(free_port())
"""Of loopback here; nobody else listens in those namespaces."""

CREDENTIALS = {"ALLHANDS_TOKEN": "sesame", "ALLHANDS_INSECURE": "1"}


def pid_of(host: BenchHost) -> int:
    """Return the pid of the process holding a host's namespaces."""
    return int(host.command_prefix[host.command_prefix.index("--target") + 1])


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[BenchHost, BenchHost]]:
    try:
        with netns.open_two_hosts(None) as pair:
            yield pair
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))


@pytest.fixture
def span(spread: Spread, hosts: tuple[BenchHost, BenchHost]) -> Span:
    """Return a function to run a script in a world with ranks on the named hosts."""

    def start(places: str, program: Program, *arguments: Any) -> list[Process]:
        shared = {
            "WORLD_SIZE": str(len(places)),
            "MASTER_ADDR": hosts["ab".index(places[0])].address,
            "MASTER_PORT": PORT,
            **CREDENTIALS,
        }
        environments = [{**shared, "RANK": str(rank)} for rank in range(len(places))]
        return spread(places, environments, program, *arguments)

    return start


@pytest.fixture
def spread(cluster: Cluster, hosts: tuple[BenchHost, BenchHost]) -> Spread:
    """Return a function to run a program on named hosts, with an environment for each."""

    def start(
        places: str, environments: Iterable[Mapping[str, str]], program: Program, *arguments: Any
    ) -> list[Process]:
        return [
            cluster.start(
                program, *arguments, holder=pid_of(hosts["ab".index(place)]), **environment
            )
            for place, environment in zip(places, environments, strict=True)
        ]

    return start
