"""Joining a world: shared memory, the Join request, retries until the deadline."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from allhands.config import BACKENDS, WorldConfig
from allhands.coordinator.attempts import RETRY_SECONDS, ConnectAttempts
from allhands.coordinator.endpoint import ChannelConfig, apply_notice, configure_channel
from allhands.coordinator.rendezvous import WorldRendezvous, find_or_host_coordinator
from allhands.coordinator.session import Session
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    JoinRefused,
    Unauthenticated,
)
from allhands.runtime import native_core
from allhands.runtime.exit_notice import (
    LAUNCH_VARIABLE,
)
from allhands.shm.arena import Arena
from allhands_proto import notice, process, stack_channel
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.versions import write_versions


def make_arena(config: WorldConfig) -> tuple[Arena | None, str]:
    """Make this process's shared memory, or say why there is none.

    Raises:
        AllhandsError: there is none, and the backend is to use nothing else.
    """
    backend = BACKENDS[config.backend]
    if not backend.shares_memory:
        return None, ""
    native, absence = native_core.find()
    try:
        if native is not None:
            return Arena(native, config.limits), ""
    except OSError as error:
        absence = f"no shared memory, ranks of one host talk over links: {error}"
    if not backend.has_links:
        raise AllhandsError(f"backend={config.backend!r} is not possible: {absence}")
    return None, absence


def make_join_request(
    config: WorldConfig, rendezvous: WorldRendezvous, arena: Arena | None
) -> wire.Join:
    """Return the Join request of this process, still without ports and advertised address."""
    request = wire.Join(
        job=config.job,
        rank=config.rank,
        world_size=config.world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        heartbeat_window=config.heartbeat_window,
        label=config.label,
        hosts_coordinator=rendezvous.embedded is not None,
        memory="" if arena is None else str(arena.segment_address),
        elastic=config.is_elastic,
        max_members=config.max_size,
        pid_namespace=process.get_pid_namespace(),
        start_ticks=notice.read_start_ticks(os.getpid()),
        exit_is_reported=LAUNCH_VARIABLE in os.environ,
        stack_channel=stack_channel.open_channel(),
    )
    write_versions(request)
    return request


async def join_session(
    config: WorldConfig,
    rendezvous: WorldRendezvous,
    request: wire.Join,
    listen: Callable[[ChannelConfig, float], Awaitable[None]],
    deadline: float,
) -> Session:
    """Join, and try again until the deadline where the coordinator or a place may only be late."""
    attempts = ConnectAttempts(deadline)
    while True:
        try:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            dialled = configure_channel(rendezvous.endpoint)
            await listen(dialled, remaining)
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            return await Session.join(dialled, request, remaining)
        except (CoordinatorUnavailable, JoinRefused, Unauthenticated) as error:
            # A token may be that in the notice of a coordinator that was here before.
            endpoint = None if rendezvous.embedded else rendezvous.endpoint
            await asyncio.to_thread(attempts.record_failure, error, endpoint, rendezvous.is_guess)
        await asyncio.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
        if rendezvous.is_guess:
            remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
            rendezvous.endpoint = (
                await find_or_host_coordinator(replace(config, timeout=remaining))
            ).endpoint
        elif rendezvous.embedded is None:
            rendezvous.endpoint = apply_notice(rendezvous.endpoint)
