"""Versions of the protocol, said to and heard from a coordinator."""

from typing import Any

import grpc

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.versions import explain_mismatch, write_versions


class VersionRefused(grpc.RpcError):
    """Failure of a call to a coordinator without a common version, as if it had refused it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.FAILED_PRECONDITION

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> tuple[Any, ...]:
        return ()


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


def is_version_refused(error: Exception) -> bool:
    """Whether a coordinator's description was not to be had for want of a common version."""
    return isinstance(error, grpc.RpcError) and (
        error.code() is grpc.StatusCode.FAILED_PRECONDITION
    )
