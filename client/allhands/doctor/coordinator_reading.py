"""Reading of a coordinator: what it says to this host, and how long that takes."""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from allhands.coordinator.client import Control
from allhands.coordinator.description import describe_coordinator
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.host_address import find_address_towards
from allhands.coordinator.probing import probe_coordinator
from allhands.coordinator.status import MemberStatus
from allhands.doctor.machine import CoordinatorReading, MemberReach
from allhands.errors import AllhandsError, CoordinatorUnavailable
from allhands_proto.loopback import is_loopback
from allhands_proto.quick_dataclass import dataclass

_CALL_SECONDS = 5.0
_CONNECT_SECONDS = 3.0
_THREADS = 32


@dataclass(frozen=True, slots=True)
class NoCoordinator:
    """No coordinator is named, and there is not the one of this user on this host."""

    reason: str


def read_coordinator(endpoint: Endpoint) -> CoordinatorReading:
    """Ask a coordinator what it is; takes some seconds where it is silent."""
    address = endpoint.address
    try:
        found = describe_coordinator(endpoint, _CALL_SECONDS)
        own_address = find_address_towards(address.host)
    except CoordinatorUnavailable as error:
        probed = probe_coordinator(endpoint)
        return CoordinatorReading(address.url, str(error) if probed is None else probed.text)
    except (AllhandsError, OSError, ValueError) as error:
        return CoordinatorReading(address.url, str(error))
    return CoordinatorReading(
        url=address.url,
        has_tls=endpoint.tls_ca is not None,
        is_loopback=address.is_loopback,
        token="job" if found.token_id else "cluster",
        round_trip=found.round_trip,
        clock_offset=found.clock_offset,
        versions=str(found.versions),
        own_versions=str(found.own_versions),
        is_reached_by_others=found.is_reached_by_others,
        role=found.role,
        leader=found.leader,
        own_address=own_address,
    )


def read_members(endpoint: Endpoint, job: str) -> Sequence[MemberReach]:
    """Connect to each rank of a job at the address that it announced.

    Raises:
        AllhandsError: the coordinator cannot be asked, or knows no such job.
    """
    with Control(endpoint, job=job, timeout=_CALL_SECONDS) as control:
        members = [one for one in control.members() if one.state == "joined"]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_reach, members))


def _reach(member: MemberStatus) -> MemberReach:
    host, _, port = member.address.rpartition(":")
    host = host.strip("[]")
    started = time.monotonic()
    if is_loopback(host) and member.host != socket.gethostname():
        problem = "this address means each host itself"
        return MemberReach(member.rank, member.host, member.address, problem)
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except TimeoutError:
        problem = f"no answer within {_CONNECT_SECONDS:g} s"
        return MemberReach(member.rank, member.host, member.address, problem)
    except OSError as error:
        problem = error.strerror or str(error)
        return MemberReach(member.rank, member.host, member.address, problem)
    seconds = time.monotonic() - started
    return MemberReach(member.rank, member.host, member.address, seconds=seconds)
