"""Joining a world: options resolved, a rendezvous through a store, the backend's join."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TypedDict, Unpack

from allhands import config
from allhands.api.fake import FakeWorld
from allhands.api.world import ThreadRank, World
from allhands.deadlines import to_seconds
from allhands.membership.store_rendezvous import rendezvous_via_store
from allhands.stores import Store
from allhands_proto import notice


class WorldOptions(TypedDict):
    """Options of `init_process_group` that reach the configuration unchanged."""

    label: str | None
    deterministic: bool
    on_failure: str
    retryable: bool
    min_size: int
    max_size: int
    abort_on_exception: bool
    verify: bool
    allow_pickle: bool


def join_world(
    thread_rank: ThreadRank | None,
    attempts: Iterator[int],
    *,
    init_method: str | None,
    rank: int,
    world_size: int,
    timeout: float | timedelta,
    job: str | None,
    token: str | None,
    tls: str | None,
    insecure: bool,
    backend: str,
    heartbeat_window: float | None,
    store: Store | None,
    **options: Unpack[WorldOptions],
) -> World:
    """Join a world and wait until all its ranks are there; see `init_process_group`.

    `thread_rank` is the calling thread's place where threads are ranks; `attempts` counts the
    worlds that this process, or that thread, has tried to join.
    """
    if store is not None and init_method is not None:
        raise ValueError("init_method and store both say where to meet: give one of them")
    if backend == "threads" and thread_rank is not None:
        init_method, rank, world_size = thread_rank.resolve_rank(rank, world_size)
    seconds, attempt = to_seconds(timeout), next(attempts)
    place, tls_name = None, None
    if store is not None and backend not in ("fake", "threads"):  # which meet elsewhere
        meeting = rendezvous_via_store(store, rank, world_size, seconds)
        place, attempt, job = meeting.place, 0, job or meeting.job
        token, tls = meeting.token, meeting.tls_ca
        insecure, tls_name = insecure or meeting.insecure, meeting.tls_name
    resolved = config.resolve_config(
        os.environ,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=seconds,
        job=job,
        token=token,
        tls_ca=tls,
        tls_name=tls_name,
        insecure=insecure,
        backend=backend,
        heartbeat_window=heartbeat_window or 0.0,
        parent=identify_parent_process(),
        attempt=attempt,
        rendezvous=place,
        **options,
    )
    return _choose_joiner(resolved.backend, thread_rank).join(resolved)


def identify_parent_process() -> str:
    """Name the parent process by id and start time, which no other process has."""
    pid = os.getppid()
    return f"{pid}.{notice.read_start_ticks(pid)}"


def _choose_joiner(backend: str, thread_rank: ThreadRank | None) -> ThreadRank | type[World]:
    """Return the class or thread rank that joins worlds of that backend."""
    match backend:
        case "fake":
            return FakeWorld
        case "threads":
            if thread_rank is None:
                text = "backend='threads' is for the threads of allhands.testing.run_threads"
                raise RuntimeError(text)
            return thread_rank
        case _:
            return World
