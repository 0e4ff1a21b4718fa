"""Channels of threads to the coordinator."""

import grpc

from allhands.coordinator.endpoint import ChannelConfig


def open_channel(channel_config: ChannelConfig) -> grpc.Channel:
    """Open a channel to one daemon or several, which connects with its first call."""
    if channel_config.others:
        from allhands.coordinator.moving_channel import MovingChannel  # which few need

        return MovingChannel(channel_config)
    return channel_config.open()
