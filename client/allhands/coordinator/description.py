"""Description of a coordinator, as it gives it to whoever examines the way there."""

import time

import grpc

from allhands.coordinator.blocking_channel import open_channel
from allhands.coordinator.blocking_versions import check_grpc_description
from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands.coordinator.protocol_versions import make_describe_request
from allhands.coordinator.status_errors import translate_error
from allhands.escapes import escape_line
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2_grpc
from allhands_proto.versions import OWN, Versions, read_versions


@dataclass(frozen=True, slots=True)
class CoordinatorDescription:
    """What a coordinator says of itself."""

    round_trip: float
    """Seconds, of a call on an open connection."""
    clock_offset: float | None
    """What to add to this host's wall clock to get the coordinator's, in seconds, give or take half
    a round trip; None: it is of a version that does not tell."""
    versions: Versions
    """Of the protocol."""
    own_versions: Versions
    token_id: str
    """Of the token of a job; empty: the cluster's own was shown."""
    is_reached_by_others: bool
    """Whether it listens where other hosts reach it."""
    role: str
    """Of several daemons with one log; empty: it is alone."""
    leader: str
    """Address of the daemon that leads; empty: none is known, or it is alone."""


def describe_coordinator(endpoint: Endpoint, timeout: float) -> CoordinatorDescription:
    """Ask a coordinator what it is, twice: the second call has its connection.

    Blocks for `timeout` seconds at most. `probe_coordinator` finds out why it failed.

    Raises:
        ValueError: token or certificate are malformed; or as `check_privacy`.
        OSError: a file of TLS cannot be read.
        CoordinatorUnavailable, Unauthenticated, Refused: it does not answer, or not this caller.
    """
    config = configure_channel(endpoint)
    request = make_describe_request()
    request.with_limits = True
    deadline = time.monotonic() + timeout
    with open_channel(config) as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        try:
            for _ in range(2):
                sent, sent_at = time.monotonic(), time.time()
                told = stub.DescribeCoordinator(
                    request, timeout=max(deadline - sent, 0.0), metadata=config.metadata
                )
                round_trip = time.monotonic() - sent
            check_grpc_description(told)
        except grpc.RpcError as error:
            raise translate_error(
                error, "describe the coordinator", target=config.target
            ) from error
    offset = told.wall_time - (sent_at + round_trip / 2) if told.wall_time else None
    return CoordinatorDescription(
        round_trip,
        offset,
        read_versions(told),
        OWN,
        escape_line(told.token_id),
        told.beyond_loopback,
        escape_line(told.role),
        escape_line(told.leader),
    )
