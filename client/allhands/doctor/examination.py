"""Examination of this host and of the way to a coordinator: all checks, in their order."""

from collections.abc import Iterator, Mapping

from allhands.coordinator.endpoint import Endpoint
from allhands.doctor.coordinator_checks import check_coordinator, check_members, skip_coordinator
from allhands.doctor.coordinator_reading import NoCoordinator, read_coordinator, read_members
from allhands.doctor.finding import Finding, fail
from allhands.doctor.host_checks import check_host
from allhands.doctor.network_checks import check_network
from allhands.doctor.reading import read_machine
from allhands.doctor.software_checks import check_software
from allhands.errors import AllhandsError


def examine(
    environ: Mapping[str, str], endpoint: Endpoint | NoCoordinator, job: str | None, ranks: int
) -> Iterator[Finding]:
    """Examine this host, the coordinator, and whether the ranks of a job are reached.

    Args:
        job: None: no ranks are looked for.
        ranks: those to run here; 0: as LOCAL_WORLD_SIZE says, else unknown.
    """
    ranks = ranks or _read_count(environ, "LOCAL_WORLD_SIZE")
    coordinator = None
    if isinstance(endpoint, NoCoordinator):
        yield skip_coordinator(endpoint.reason)
    else:
        coordinator = read_coordinator(endpoint)
        yield from check_coordinator(coordinator)
        if job and not coordinator.problem:
            yield from _examine_ranks(endpoint, job)
    machine = read_machine(environ)
    yield from check_network(machine, coordinator, ranks)
    yield from check_host(machine, ranks, _read_count(environ, "WORLD_SIZE") or ranks)
    yield from check_software(machine)


def _examine_ranks(endpoint: Endpoint, job: str) -> Iterator[Finding]:
    try:
        yield from check_members(job, read_members(endpoint, job))
    except AllhandsError as error:
        yield fail("ranks", str(error), "name a job that `allhands status` shows")


def _read_count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0
