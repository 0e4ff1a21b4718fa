"""Where a worker listens for its peers, and the address that they are told."""

import asyncio
import ipaddress
from dataclasses import dataclass

from allhands.config import Daemon, Hosted, WorldConfig
from allhands.coordinator.endpoint import Dial, Endpoint
from allhands.coordinator.rendezvous import own_address, resolve
from allhands.coordinator.session import listens_beyond_loopback
from allhands.errors import CoordinatorUnavailable
from allhands.runtime import interfaces


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses of this host."""

    listen: str
    advertise: str = ""
    """What peers dial; empty: the address from which the coordinator sees this worker."""


async def given(config: WorldConfig) -> Reach | None:
    """Return what the user has said about it; None: nothing.

    Raises:
        ValueError: the interface is not there or has no address, the name has none.
    """
    listen = ""
    if config.interface:
        try:
            listen = interfaces.address_of(config.interface)
        except ValueError as error:
            raise ValueError(f"ALLHANDS_INTERFACE: {error}") from error
    if not config.advertise:
        return Reach(listen, listen) if listen else None
    try:
        advertised = await resolve(config.advertise)
    except CoordinatorUnavailable as error:
        raise ValueError(f"ALLHANDS_ADVERTISE: {error}") from error
    if not listen and interfaces.is_own(advertised):
        listen = advertised
    # An address that is translated on the way here may end at any of this host.
    return Reach(listen or ("::" if ":" in advertised else "0.0.0.0"), advertised)


async def found(config: WorldConfig, endpoint: Endpoint, dial: Dial, timeout: float) -> Reach:
    """Return what fits where nothing is said: the address on the way to the coordinator.

    Where that is loopback, and workers on other hosts reach the coordinator too, it is the one of
    this host that they reach.

    Raises:
        CoordinatorUnavailable, Unauthenticated: the coordinator cannot be asked whether they do.
    """
    towards = await own_address(endpoint)
    if not isinstance(config.place, Daemon | Hosted) or not is_loopback(towards):
        return Reach(towards)
    if not await listens_beyond_loopback(dial, timeout):
        return Reach(towards)
    outside = await asyncio.to_thread(interfaces.address_beyond_loopback)
    return Reach(towards) if outside is None else Reach(outside, outside)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
