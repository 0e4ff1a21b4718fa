"""Listening address of a worker, and the address advertised to its peers."""

import asyncio
import ipaddress

from allhands.config import Daemon, HostedByRank0, WorldConfig
from allhands.coordinator.endpoint import ChannelConfig, Endpoint
from allhands.coordinator.host_address import find_own_address, resolve_host
from allhands.coordinator.session_channel import find_reached_endpoint, listens_beyond_loopback
from allhands.errors import CoordinatorUnavailable
from allhands.runtime import interfaces
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """Addresses of this host."""

    listen: str
    advertise: str = ""
    """What peers dial; empty: the address from which the coordinator sees this worker."""


async def resolve_configured(config: WorldConfig) -> AdvertisedAddress | None:
    """Return the configured listening address; None: not configured.

    Raises:
        ValueError: the interface is not there or has no address, the name has none.
    """
    listen = ""
    if config.interface:
        try:
            listen = interfaces.get_address(config.interface)
        except ValueError as error:
            raise ValueError(f"ALLHANDS_INTERFACE: {error}") from error
    if not config.advertise:
        return AdvertisedAddress(listen, listen) if listen else None
    try:
        advertised = await resolve_host(config.advertise)
    except CoordinatorUnavailable as error:
        raise ValueError(f"ALLHANDS_ADVERTISE: {error}") from error
    if not listen and interfaces.is_own_address(advertised):
        listen = advertised
    # An address that is translated on the way here may end at any of this host.
    return AdvertisedAddress(listen or ("::" if ":" in advertised else "0.0.0.0"), advertised)


async def discover(
    config: WorldConfig, endpoint: Endpoint, channel_config: ChannelConfig, timeout: float
) -> AdvertisedAddress:
    """Return the local address of the route to the coordinator, for unconfigured ranks.

    Where that is loopback, and workers on other hosts reach the coordinator too, it is the one of
    this host that they reach.

    Raises:
        CoordinatorUnavailable, Unauthenticated: the coordinator cannot be asked whether they do.
    """
    if endpoint.address.others:
        endpoint = await find_reached_endpoint(channel_config, timeout)
    towards = await find_own_address(endpoint)
    if not isinstance(config.rendezvous, Daemon | HostedByRank0) or not is_loopback(towards):
        return AdvertisedAddress(towards)
    if not await listens_beyond_loopback(channel_config, timeout):
        return AdvertisedAddress(towards)
    outside = await asyncio.to_thread(interfaces.find_outside_address)
    return AdvertisedAddress(towards) if outside is None else AdvertisedAddress(outside, outside)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
