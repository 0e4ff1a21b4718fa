"""Joining a world: options resolved, a rendezvous through a store, the backend's join."""

import os
from collections.abc import Iterator
from typing import TypedDict

from allhands import config
from allhands.api.world import ThreadRank, World
from allhands.deadlines import to_seconds
from allhands.options import (
    WORLD_DEFAULTS,
    GroupPolicy,
    ProcessOptions,
    WorldOptions,
    check_keywords,
    show_options,
)
from allhands.stores import Store
from allhands_proto import notice


class StoreOptions(TypedDict, total=False):
    """Store in place of a rendezvous by URL.

    Args:
        store: instead of `init_method`: a store that all ranks have, with `rank` and `world_size`.
            They meet at its coordinator, else at one that rank 0 hosts on loopback; `threads` and
            `fake` need it for nothing.
    """

    store: Store | None


class JoinOptions(WorldOptions, StoreOptions, total=False):
    """Keyword arguments of `init_process_group` and `aio.connect`."""


show_join_options = show_options(ProcessOptions, GroupPolicy, StoreOptions)
"""Decorator of the functions that take `JoinOptions`."""


def check_join_options(call: str, options: JoinOptions) -> None:
    """Raise TypeError for keywords that joining a world does not have, naming `call`."""
    check_keywords(call, options.keys(), JoinOptions.__annotations__.keys())


def join_world(
    thread_rank: ThreadRank | None,
    attempts: Iterator[int],
    init_method: str | None,
    options: JoinOptions,
) -> World:
    """Join a world and wait until all its ranks are there; see `init_process_group`.

    `thread_rank` is the calling thread's place where threads are ranks; `attempts` counts the
    worlds that this process, or that thread, has tried to join.
    """
    given: JoinOptions = {**WORLD_DEFAULTS, **options}
    store = given.pop("store", None)
    settings: WorldOptions = given
    backend = settings["backend"]
    if store is not None and init_method is not None:
        raise ValueError("init_method and store both say where to meet: give one of them")
    if backend == "threads" and thread_rank is not None:
        init_method, settings["rank"], settings["world_size"] = thread_rank.resolve_rank(
            settings["rank"], settings["world_size"]
        )
    settings["timeout"] = seconds = to_seconds(settings["timeout"])
    attempt = next(attempts)
    place, tls_name, tls_pair = None, None, None
    if store is not None and backend not in ("fake", "threads"):  # which meet elsewhere
        from allhands.membership.store_rendezvous import rendezvous_via_store

        meeting = rendezvous_via_store(store, settings["rank"], settings["world_size"], seconds)
        place, attempt, tls_name = meeting.place, 0, meeting.tls_name
        tls_pair = meeting.tls_pair
        settings["job"] = settings["job"] or meeting.job
        settings["token"], settings["tls"] = meeting.token, meeting.tls_ca
        settings["insecure"] = settings["insecure"] or meeting.insecure
    resolved = config.resolve_config(
        os.environ,
        init_method=init_method,
        tls_name=tls_name,
        tls_pair=tls_pair,
        parent=identify_parent_process(),
        attempt=attempt,
        rendezvous=place,
        **settings,
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
            from allhands.api.fake import FakeWorld

            return FakeWorld
        case "threads":
            if thread_rank is None:
                text = "backend='threads' is for the threads of allhands.testing.run_threads"
                raise RuntimeError(text)
            return thread_rank
        case _:
            return World
