"""Queries of the coordinator of the default world: client, store, status."""

from dataclasses import replace
from datetime import timedelta

from allhands.api.default_world import find_world, require_world
from allhands.coordinator.client import Control
from allhands.coordinator.client import connect as _connect
from allhands.coordinator.status import JobStatus
from allhands.deadlines import to_seconds
from allhands.options import DEFAULT_TIMEOUT
from allhands.stores import CoordinatorStore


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    timeout: float = 30.0,
    insecure: bool = False,
) -> Control:
    """Open a client of a coordinator; without URL, of this world's.

    Without a world either, it is the one that `allhands status` would find. `insecure` is as for
    `init_process_group`.
    """
    if url is None and (world := find_world()) is not None:
        endpoint = replace(world.endpoint, token=token or world.endpoint.token)
        return Control(endpoint, job=world.job, timeout=timeout)
    return _connect(url, token=token, timeout=timeout, insecure=insecure)


def store(timeout: float | timedelta | None = None) -> CoordinatorStore:
    """Return the job's store with c10d's methods; closed with its last reference.

    `timeout` is in seconds, for every wait; None: as for calls in the world, 30 s without one.
    """
    world = find_world()
    usual = DEFAULT_TIMEOUT if world is None else world.group.timeout
    limit = usual if timeout is None else to_seconds(timeout)
    return CoordinatorStore(connect(timeout=limit), limit)


def status() -> JobStatus:
    """Return the coordinator's view of this job; `str()` makes a table."""
    world = require_world()
    with connect() as control:
        return control.job(world.job)
