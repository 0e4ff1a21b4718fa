"""Channels of asyncio to the coordinator, and its answer on which hosts can connect."""

from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands.coordinator.direct_channel import open_direct_channel
from allhands.coordinator.endpoint import ChannelConfig, Endpoint
from allhands.coordinator.http2.call import Failure
from allhands.coordinator.http2.stub import Channel, make_stub
from allhands.coordinator.protocol_versions import check_description, make_describe_request
from allhands.coordinator.status_errors import translate_error
from allhands.errors import (
    CoordinatorUnavailable,
)
from allhands_proto.v1 import coordinator_pb2 as wire


async def listens_beyond_loopback(channel_config: ChannelConfig, timeout: float) -> bool:
    """Ask a coordinator whether other hosts reach it; false from versions without an answer.

    Raises:
        CoordinatorUnavailable, Unauthenticated: the coordinator cannot be asked.
    """
    found, _ = await _describe(channel_config, timeout)
    return found.beyond_loopback


async def find_reached_endpoint(channel_config: ChannelConfig, timeout: float) -> Endpoint:
    """Return the endpoint of the address that answers, of several.

    Raises:
        CoordinatorUnavailable, Unauthenticated: none answers, or it refuses.
    """
    if not channel_config.others:
        return channel_config.endpoint
    _, called = await _describe(channel_config, timeout)
    return called.endpoint


async def _describe(
    channel_config: ChannelConfig, timeout: float
) -> tuple[wire.CoordinatorDescription, ChannelConfig]:
    """Ask a coordinator what it is; return also which of its daemons or addresses answered."""
    async with open_channel(channel_config) as channel:
        stub = make_stub(channel)
        try:
            found = check_description(
                await stub.DescribeCoordinator(
                    make_describe_request(), timeout=timeout, metadata=channel_config.metadata
                )
            )
            called = channel_config
            if channel_config.others:
                called = await choose_daemon(channel, channel_config)
        except CallFailed as error:
            if error.status is StatusCode.DEADLINE_EXCEEDED:
                text = f"the coordinator at {channel_config.target} does not answer"
                raise CoordinatorUnavailable(text) from error
            raise translate_error(error, "join", target=channel_config.target) from error
    return found, called


async def choose_daemon(channel: Channel, channel_config: ChannelConfig) -> ChannelConfig:
    """Return the daemon or address for the next stream; waits as long as all are silent."""
    if channel_config.others:
        from allhands.coordinator.moving_aio_channel import MovingAioChannel  # which few need

        if isinstance(channel, MovingAioChannel):
            return await channel.find_daemon(channel_config.metadata)
    return channel_config


def open_channel(channel_config: ChannelConfig, failure: Failure = CallFailed) -> Channel:
    """Open a channel of the running loop, which connects with its first call; it starts no thread.

    `failure` is the class of what failed calls raise; with several daemons gRPC's error as well.
    """
    if channel_config.others:
        from allhands.coordinator.moving_aio_channel import MovingAioChannel  # which few need

        return MovingAioChannel(channel_config)
    return open_direct_channel(channel_config, failure)
