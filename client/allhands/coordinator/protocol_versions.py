"""Versions of the protocol, said to and heard from a coordinator."""

from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.versions import explain_mismatch, write_versions


class VersionRefused(CallFailed):
    """Failure of a call to a coordinator without a common version, as if it had refused it."""

    def __init__(self, text: str) -> None:
        super().__init__(StatusCode.FAILED_PRECONDITION, text)


def make_describe_request() -> wire.DescribeCoordinatorRequest:
    """Make the request for a coordinator's description, with the versions of this side."""
    request = wire.DescribeCoordinatorRequest()
    write_versions(request)
    return request


def check_description(
    description: wire.CoordinatorDescription,
) -> wire.CoordinatorDescription:
    """Return a description whose coordinator has a version in common with this side.

    Raises:
        VersionRefused: it has none.
    """
    if problem := explain_mismatch(description, "this client", "the coordinator"):
        raise VersionRefused(problem)
    return description
