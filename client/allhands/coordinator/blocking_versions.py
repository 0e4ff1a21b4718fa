"""Versions of the protocol, for clients that make calls with gRPC's own library."""

import grpc

from allhands.coordinator.http2.grpc_failures import GrpcCallFailed
from allhands.coordinator.protocol_versions import VersionRefused, check_description
from allhands_proto.v1 import coordinator_pb2 as wire


class GrpcVersionRefused(VersionRefused, GrpcCallFailed):
    """A `VersionRefused` that is gRPC's error as well."""

    def __init__(self, text: str) -> None:
        GrpcCallFailed.__init__(self, grpc.StatusCode.FAILED_PRECONDITION, text)


def check_grpc_description(
    description: wire.CoordinatorDescription,
) -> wire.CoordinatorDescription:
    """Check versions as `check_description` does.

    Raises:
        GrpcVersionRefused: there is none in common.
    """
    try:
        return check_description(description)
    except VersionRefused as error:
        raise GrpcVersionRefused(str(error.details())) from error


def is_version_refused(error: Exception) -> bool:
    """Whether a coordinator's description was not to be had for want of a common version."""
    return isinstance(error, grpc.RpcError) and (
        error.code() is grpc.StatusCode.FAILED_PRECONDITION
    )
