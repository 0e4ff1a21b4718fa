"""Where a world meets: find its coordinator, or host it in rank 0."""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from allhands.channel import Address, Endpoint, find_token, parse_url
from allhands.config import Alone, Daemon, Gathering, Hosted, WorldConfig
from allhands.errors import CoordinatorUnavailable
from allhands_proto import notice

if TYPE_CHECKING:
    from allhands_server.embedded import RunningCoordinator

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02
_DRAIN_SECONDS = 30.0
_ANY_PORT = 1


@dataclass(slots=True)
class Meeting:
    """A coordinator to go to, and the embedded one where this rank hosts it."""

    endpoint: Endpoint
    hosted: "RunningCoordinator | None" = None
    note: Path | None = None
    is_guess: bool = False
    """The endpoint is from what rank 0 left on this host, perhaps from an earlier world of it."""

    async def aclose(self) -> None:
        """Where this rank hosts the coordinator, wait until the others have left, then end it."""
        if self.note is not None:
            self.note.unlink(missing_ok=True)
        if self.hosted is not None:
            await self.hosted.stop(_DRAIN_SECONDS)


async def meet(config: WorldConfig) -> Meeting:
    """Find the coordinator of a world; rank 0 starts it where it has none.

    Raises:
        CoordinatorUnavailable: rank 0 left no note within the timeout.
        OSError: rank 0 cannot listen where it should.
        ValueError: it would listen beyond loopback without a token and TLS.
    """
    match config.place:
        case Daemon(url):
            address = parse_url(url)
            token = find_token(address, config.token, None)
            return Meeting(Endpoint(address, token, config.tls_ca))
        case Hosted(host, port, announce):
            return await _hosted(config, await _resolve(host), port, announce)
        case Gathering(name):
            path = Path(name) if os.path.isabs(name) else notice.directory() / name
            if config.rank != 0:
                return Meeting(await _find_note(path, config.timeout), is_guess=True)
            path.unlink(missing_ok=True)  # of an earlier run that was killed
            meeting = await _host(_with_token(config), "127.0.0.1", 0)
            meeting.note = path
            _leave_note(path, meeting.endpoint)
            return meeting
        case Alone():
            return await _host(_with_token(config), "127.0.0.1", 0)


def _with_token(config: WorldConfig) -> WorldConfig:
    """Settle the token here where the ranks need no notice to learn it."""
    return replace(config, token=config.token or secrets.token_urlsafe(32))


async def _hosted(
    config: WorldConfig, host: str, port: int, announce: Callable[[str, str], None] | None
) -> Meeting:
    if config.rank == 0:
        if announce is None:
            return await _host(config, host, port)
        try:
            meeting = await _host(config, host, port)
        except (OSError, ValueError) as error:
            await asyncio.to_thread(announce, "", str(error))
            raise
        try:
            await asyncio.to_thread(announce, meeting.endpoint.address.url, "")
        except BaseException:
            assert meeting.hosted is not None
            await meeting.hosted.stop(0)
            raise
        return meeting
    address = Address(host, port)
    token = config.token
    deadline = time.monotonic() + config.timeout
    while token is None and address.is_loopback and time.monotonic() < deadline:
        # Rank 0 leaves its token in a notice when it listens, perhaps after this rank is up.
        if (token := find_token(address, None, None)) is None:
            await asyncio.sleep(_LOOK_SECONDS)
    is_guess = config.token is None
    return Meeting(Endpoint(address, token, config.tls_ca), is_guess=is_guess)


async def _host(config: WorldConfig, host: str, port: int) -> Meeting:
    """Start the embedded coordinator, on this loop."""
    from allhands_server import embedded
    from allhands_server.config import ServerConfig

    running = await embedded.start(
        ServerConfig(
            host=host,
            port=port,
            token=config.token,
            insecure=config.insecure,
            post_notice=True,
            kind="embedded",
        )
    )
    logger.info("rank 0 hosts the coordinator of job %s at %s", config.job, running.url)
    address = Address(host, running.port)
    return Meeting(Endpoint(address, running.token, config.tls_ca), running)


async def _find_note(path: Path, timeout: float) -> Endpoint:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (endpoint := _read_note(path)) is not None:
            return endpoint
        await asyncio.sleep(_LOOK_SECONDS)
    raise CoordinatorUnavailable(
        f"rank 0 has not started a coordinator on this host within {timeout:g} s "
        f"(it would have left {path}); did it start, under the same user?"
    )


def _read_note(path: Path) -> Endpoint | None:
    try:
        said = json.loads(path.read_text())
        if not notice.is_alive(said["pid"], said["born"]):
            return None  # a note outlives a rank 0 that was killed
        return Endpoint(parse_url(said["url"]), said["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there yet


def _leave_note(path: Path, endpoint: Endpoint) -> None:
    content: dict[str, object] = {
        "url": endpoint.address.url,
        "token": endpoint.token,
        "pid": os.getpid(),
        "born": notice.born(os.getpid()),
    }
    notice.publish(path, content)


async def _resolve(host: str) -> str:
    """Turn a host's name into one address of it, IPv4 first."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise CoordinatorUnavailable(f"the host {host!r} has no address: {error}") from error
    families = sorted(found, key=lambda one: one[0] != socket.AF_INET)
    return str(families[0][4][0])


async def own_address(endpoint: Endpoint) -> str:
    """Return the address of this host on the way to the coordinator: where peers reach it."""
    return address_towards(await _resolve(endpoint.address.host))


def address_towards(host: str) -> str:
    """Return the address of this host on the way to another one, given by name or address.

    Raises:
        CoordinatorUnavailable: it has no address, or there is no way to it.
    """
    try:
        found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise CoordinatorUnavailable(f"the host {host!r} has no address: {error}") from error
    family, _, _, _, target = min(found, key=lambda one: one[0] != socket.AF_INET)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting sends nothing
        try:
            probe.connect(target)
        except OSError as error:
            raise CoordinatorUnavailable(f"no way to {host}: {error}") from error
        return str(probe.getsockname()[0])
