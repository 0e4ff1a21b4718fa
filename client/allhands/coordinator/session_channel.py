"""Channels of asyncio to the coordinator, and its answer on which hosts can connect."""

import grpc
import grpc.aio

from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.status_errors import translate_error
from allhands.errors import (
    CoordinatorUnavailable,
)
from allhands_proto import forks
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc


async def listens_beyond_loopback(channel_config: ChannelConfig, timeout: float) -> bool:
    """Ask a coordinator whether other hosts reach it; false from versions without an answer.

    Raises:
        CoordinatorUnavailable, Unauthenticated: the coordinator cannot be asked.
    """
    async with open_channel(channel_config) as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        try:
            found = await stub.DescribeCoordinator(
                wire.DescribeCoordinatorRequest(), timeout=timeout, metadata=channel_config.metadata
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                text = f"the coordinator at {channel_config.target} does not answer"
                raise CoordinatorUnavailable(text) from error
            raise translate_error(error, "join", target=channel_config.target) from error
    return found.beyond_loopback


def open_channel(channel_config: ChannelConfig) -> grpc.aio.Channel:
    """Open a channel of the running loop, which connects with its first call."""
    forks.use_grpc()
    if channel_config.others:
        from allhands.coordinator.moving_aio_channel import MovingAioChannel  # which few need

        return MovingAioChannel(channel_config, open_channel)
    if channel_config.credentials is None:
        return grpc.aio.insecure_channel(channel_config.target, options=channel_config.options)
    return grpc.aio.secure_channel(
        channel_config.target, channel_config.credentials, options=channel_config.options
    )
