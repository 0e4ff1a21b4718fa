"""Snapshots of a coordinator's durable state, as its client gets them."""

from collections.abc import Iterator

import grpc

from allhands.coordinator.blocking_channel import open_channel
from allhands.coordinator.endpoint import Endpoint, configure_channel
from allhands.coordinator.probing import explain_failure
from allhands.coordinator.status_errors import translate_error
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc


def fetch_snapshot(endpoint: Endpoint, timeout: float) -> Iterator[bytes]:
    """Iterate over the bytes of a snapshot file, with the state of one moment.

    Raises:
        CoordinatorUnavailable: there is no connection, or it broke; what came is no whole file.
        Refused: the coordinator's log is full.
        Unauthenticated, PermissionDenied: the token is missing, or not accepted for this.
    """
    channel_config = configure_channel(endpoint)
    with open_channel(channel_config) as channel:
        save = coordinator_pb2_grpc.CoordinatorStub(channel).SaveSnapshot
        request = wire.SaveSnapshotRequest()
        try:
            for reply in save(request, timeout=timeout, metadata=channel_config.metadata):
                yield reply.data
        except grpc.RpcError as error:
            raise translate_error(
                error,
                "save a snapshot",
                target=channel_config.target,
                reason=explain_failure(error.code(), channel_config.endpoint),
            ) from error
