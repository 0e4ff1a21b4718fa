"""Channels of an event loop to one daemon."""

from allhands.coordinator.endpoint import ChannelConfig, tls_context
from allhands.coordinator.http2.call import Failure
from allhands.coordinator.http2.channel import Http2Channel


def open_direct_channel(channel_config: ChannelConfig, failure: Failure) -> Http2Channel:
    """Open a channel to one daemon, which connects with its first call; it starts no thread.

    `failure` is the class of what failed calls raise.
    """
    endpoint = channel_config.endpoint
    tls = None if channel_config.tls is None else tls_context(endpoint)
    host, port = endpoint.address.host, endpoint.address.port
    return Http2Channel(host, port, tls, endpoint.tls_name, failure)
