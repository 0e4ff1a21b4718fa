"""Rendezvous of a world: find the coordinator, or host one in rank 0."""

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allhands.config import Daemon, FileRendezvous, HostedByRank0, SingleProcess, WorldConfig
from allhands.coordinator.attempts import RETRY_SECONDS, ConnectAttempts
from allhands.coordinator.embed import start_coordinator
from allhands.coordinator.endpoint import (
    Address,
    Endpoint,
    apply_notice,
    check_privacy,
    normalise_host,
    parse_named_url,
    parse_url,
)
from allhands.coordinator.host_address import resolve_host
from allhands.errors import CoordinatorUnavailable
from allhands_proto import notice
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands.coordinator.embed import RunningCoordinator

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02
_DRAIN_SECONDS = 30.0


@dataclass(slots=True)
class WorldRendezvous:
    """The coordinator of a world, and the embedded server if hosted here."""

    endpoint: Endpoint
    embedded: "RunningCoordinator | None" = None
    rendezvous_file: Path | None = None
    is_guess: bool = False
    """The endpoint is from what rank 0 left on this host, perhaps from an earlier world of it."""

    async def aclose(self) -> None:
        """Stop a coordinator hosted by this rank, after all other ranks have left."""
        if self.rendezvous_file is not None:
            self.rendezvous_file.unlink(missing_ok=True)
        if self.embedded is not None:
            await self.embedded.stop(_DRAIN_SECONDS)


async def find_or_host_coordinator(config: WorldConfig) -> WorldRendezvous:
    """Find the coordinator of a world; rank 0 starts one if there is none.

    Raises:
        CoordinatorUnavailable: rank 0 announced no address within the timeout.
        OSError: rank 0 cannot listen on the requested address.
        ValueError: the coordinator would be reachable from other hosts without a token and TLS, or
            others could read this rank's token on its way.
    """
    match config.rendezvous:
        case Daemon(url, source):
            address = parse_named_url(url, source)
            endpoint = apply_notice(
                Endpoint(
                    address,
                    config.token,
                    config.tls_ca,
                    config.insecure,
                    config.tls_name,
                    config.tls_cert,
                    config.tls_key,
                )
            )
            await _check_privacy(endpoint)
            return WorldRendezvous(endpoint)
        case HostedByRank0() as place:
            return await _host_or_connect(config, place)
        case FileRendezvous(name):
            path = Path(name) if os.path.isabs(name) else notice.directory() / name
            if config.rank != 0:
                return WorldRendezvous(
                    await _wait_rendezvous_file(path, config.timeout), is_guess=True
                )
            path.unlink(missing_ok=True)  # of an earlier run that was killed
            meeting = await _start_coordinator(_add_token(config), "127.0.0.1", 0)
            meeting.rendezvous_file = path
            _publish_rendezvous_file(path, meeting.endpoint)
            return meeting
        case SingleProcess():
            return await _start_coordinator(_add_token(config), "127.0.0.1", 0)


async def _check_privacy(endpoint: Endpoint) -> None:
    """Raise ValueError as `check_privacy` does; on a thread only if a name is to be resolved."""
    is_known = endpoint.tls_ca is not None or endpoint.insecure or endpoint.address.is_loopback
    if not is_known:
        await asyncio.to_thread(check_privacy, endpoint)


def _add_token(config: WorldConfig) -> WorldConfig:
    """Settle the token here where the ranks need no notice to learn it."""
    return replace(config, token=config.token or secrets.token_urlsafe(32))


async def _host_or_connect(config: WorldConfig, place: HostedByRank0) -> WorldRendezvous:
    """Host the coordinator in rank 0, where `place` says; go there on the others.

    Raises:
        ValueError: other hosts would reach it without a token and TLS; the same text on all ranks.
    """
    if config.rank == 0 and place.on_listening is not None:
        return await _host_and_announce(config, place, place.on_listening)
    if not _is_secured(config) and await _is_reachable_remotely(place):
        if config.world_size == 1 and not config.is_elastic:
            return await _start_coordinator(
                config, "127.0.0.1", place.port
            )  # nobody is to reach it
        raise ValueError(_explain_requirements(config, place))
    resolved = await _resolve_host_until(place.host, time.monotonic() + config.timeout)
    if config.rank == 0:
        await asyncio.to_thread(_check_certificate, config, place)
        return await _start_coordinator(
            config, _choose_listen_address(config, place.host, resolved), place.port, place.host
        )
    # A certificate is for a name; without one all ranks take the same address of several.
    address = Address(place.host if config.tls_ca else resolved, place.port)
    # On loopback rank 0 speaks TLS only if it was told to, whatever other coordinators do.
    tls_ca = None if address.is_loopback and config.tls_cert is None else config.tls_ca
    endpoint = Endpoint(
        address,
        config.token,
        tls_ca,
        config.insecure,
        config.tls_name,
        config.tls_cert,
        config.tls_key,
    )
    deadline = time.monotonic() + config.timeout
    while address.is_loopback and time.monotonic() < deadline:
        # Rank 0 leaves its token in a notice when it listens, perhaps after this rank is up.
        if (endpoint := apply_notice(endpoint)).token is not None:
            break
        await asyncio.sleep(_POLL_SECONDS)
    is_guess = config.token is None
    await _check_privacy(endpoint)
    return WorldRendezvous(endpoint, is_guess=is_guess)


async def _host_and_announce(
    config: WorldConfig, place: HostedByRank0, announce: Callable[[str, str], None]
) -> WorldRendezvous:
    """Host the coordinator in rank 0, and announce its address or the failure."""
    try:
        meeting = await _start_coordinator(config, await resolve_host(place.host), place.port)
    except (OSError, ValueError) as error:
        await asyncio.to_thread(announce, "", str(error))
        raise
    try:
        await asyncio.to_thread(announce, meeting.endpoint.address.url, "")
    except BaseException:
        assert meeting.embedded is not None
        await meeting.embedded.stop(0)
        raise
    return meeting


def _is_secured(config: WorldConfig) -> bool:
    """Return whether this rank has the token and TLS files of a reachable coordinator."""
    has_tls = config.tls_cert and config.tls_key if config.rank == 0 else config.tls_ca
    return config.token is not None and bool(has_tls or config.insecure)


async def _is_reachable_remotely(place: HostedByRank0) -> bool:
    """Return whether other hosts could reach rank 0's coordinator, as far as known here."""
    if place.spans_hosts:
        return True
    try:
        return not Address(await resolve_host(place.host), place.port).is_loopback
    except CoordinatorUnavailable:
        return True  # a name that this host does not know yet is not its own


def _check_certificate(config: WorldConfig, place: HostedByRank0) -> None:
    """Check that the others can dial rank 0 by its certificate.

    Raises:
        ValueError: it is for other hosts.
    """
    if config.tls_cert is None:
        return
    from allhands_proto.issuing import read_hosts  # which takes long to load

    name = normalise_host(config.tls_name or place.host)
    try:
        hosts = read_hosts(Path(config.tls_cert).read_bytes())
    except (OSError, ValueError):
        return  # the coordinator says what is wrong with the file
    _, _, parent = name.partition(".")
    if hosts and not {name.lower(), f"*.{parent}".lower()} & {one.lower() for one in hosts}:
        raise ValueError(
            f"rank 0 is to host the coordinator at {Address(place.host, place.port).target} "
            f"({place.source}), and its certificate, {config.tls_cert}, is for "
            f"{', '.join(hosts)}: give it one for {name}. `allhands token init tls --host {name}` "
            "makes the folders: ALLHANDS_TLS_DIR=tls/daemon on rank 0's host, "
            "ALLHANDS_TLS_DIR=tls/worker on the others"
        )


def _explain_requirements(config: WorldConfig, place: HostedByRank0) -> str:
    """Explain the settings that every rank needs; equal on ranks with equal settings."""
    has_tls = config.tls_ca or config.tls_cert
    absent = [] if config.token else ["no token (ALLHANDS_TOKEN)"]
    if not has_tls and not config.insecure:
        absent.append("no TLS (ALLHANDS_TLS_CA)")
    if has_tls and not config.insecure and config.rank == 0:
        absent.append("no certificate on rank 0's host (ALLHANDS_TLS_CERT, ALLHANDS_TLS_KEY)")
    elif has_tls and not config.insecure and not config.tls_ca:
        absent.append("no authority on this rank (ALLHANDS_TLS_CA)")
    at = Address(place.host, place.port).target
    return (
        f"rank 0 is to host the coordinator at {at} ({place.source}), where other hosts reach it, "
        f"and there is {' and '.join(absent)}. Set\n"
        f"  either the folders that `allhands token init tls --host {place.host}` makes: "
        "ALLHANDS_TLS_DIR=tls/daemon on rank 0's host, ALLHANDS_TLS_DIR=tls/worker on the others,\n"
        "  or, on every rank, if that network is yours alone (token and data travel in the clear): "
        "ALLHANDS_INSECURE=1, and ALLHANDS_TOKEN, one secret of yours, as `openssl rand -hex 32` "
        "prints it,\n"
        "  or, with certificates of your own, on every rank: ALLHANDS_TOKEN, and "
        f"ALLHANDS_TLS_CA=FILE, the authority of a certificate for {place.host}; on rank 0's host: "
        "ALLHANDS_TLS_CERT=FILE and ALLHANDS_TLS_KEY=FILE, that certificate and its key.\n"
        "Or start `allhands serve` and set ALLHANDS_URL=ah://HOST:PORT/JOB on every rank."
    )


def _choose_listen_address(config: WorldConfig, name: str, resolved: str) -> str:
    """Return rank 0's listening address for a host name.

    Many hosts resolve their own name to loopback, which no other host reaches: then all addresses
    are used, if the ranks have a token and TLS files.
    """
    is_own_name = name != "localhost" and name != resolved
    if not (is_own_name and Address(resolved, 0).is_loopback and _is_secured(config)):
        return resolved
    return "::" if ":" in resolved else "0.0.0.0"


async def _start_coordinator(
    config: WorldConfig, host: str, port: int, name: str | None = None
) -> WorldRendezvous:
    """Start the embedded coordinator on this loop; `name` is for its certificate."""
    guarded = name is not None and config.tls_cert is not None
    running = await start_coordinator(
        host,
        port,
        config.token,
        tls_cert=config.tls_cert if guarded else None,
        tls_key=config.tls_key if guarded else None,
        tls_client_ca=config.tls_client_ca if guarded else None,
        insecure=config.insecure,
        data_dir=config.data_dir,
    )
    logger.info("rank 0 hosts the coordinator of job %s at %s", config.job, running.url)
    if guarded and name is not None:
        authority = config.tls_ca or config.tls_cert
        return WorldRendezvous(
            Endpoint(
                Address(name, running.port),
                running.token,
                authority,
                tls_name=config.tls_name,
                tls_cert=config.tls_cert,
                tls_key=config.tls_key,
            ),
            running,
        )
    address = Address(running.host, running.port)
    return WorldRendezvous(Endpoint(address, running.token, insecure=config.insecure), running)


async def _wait_rendezvous_file(path: Path, timeout: float) -> Endpoint:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (endpoint := _read_rendezvous_file(path)) is not None:
            return endpoint
        await asyncio.sleep(_POLL_SECONDS)
    raise CoordinatorUnavailable(
        f"rank 0 has not started a coordinator on this host within {timeout:g} s "
        f"(it would have left {path}); did it start, under the same user?"
    )


def _read_rendezvous_file(path: Path) -> Endpoint | None:
    try:
        said = json.loads(path.read_text())
        if not notice.is_alive(said["pid"], said["born"]):
            return None  # a note outlives a rank 0 that was killed
        return Endpoint(parse_url(said["url"]), said["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there yet


def _publish_rendezvous_file(path: Path, endpoint: Endpoint) -> None:
    content: dict[str, object] = {
        "url": endpoint.address.url,
        "token": endpoint.token,
        "pid": os.getpid(),
        "born": notice.read_start_ticks(os.getpid()),
    }
    notice.publish(path, content)


async def _resolve_host_until(host: str, deadline: float) -> str:
    """Resolve a name that may not be known yet, as where hosts start together."""
    attempts = ConnectAttempts(deadline)
    while True:
        try:
            return await resolve_host(host)
        except CoordinatorUnavailable as error:
            attempts.record_failure(error, None, is_guess=True)
        await asyncio.sleep(RETRY_SECONDS)  # nothing tells when a name is known
