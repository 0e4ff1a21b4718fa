"""The default world: joining, leaving, and the threads that are ranks.

The default world is the only global state of the package. Where threads are ranks, each of them has
a world of its own, and the process has none.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Unpack

from allhands.api.joining import JoinOptions, check_join_options, join_world, show_join_options
from allhands.api.world import ThreadRank, World
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.runtime.borrowed_loop import check_may_wait
from allhands.tracebacks import trim_traceback

AnyGroup = Group | NonMember | None

_lock = threading.Lock()
_default_world: World | None = None
_NO_GROUP = NonMember("no world")


class _DefaultGroup:
    """Holder of the group of calls that name none; in a slot, which is read in half the time."""

    __slots__ = ("group",)

    def __init__(self) -> None:
        self.group: Group | NonMember = _NO_GROUP


default = _DefaultGroup()
_attempt_numbers = itertools.count()


class _ThreadState(threading.local):
    """State of one thread: its rank, world and joining attempts."""

    thread_rank: ThreadRank | None = None
    """Its place among them; None: it is a thread like any other."""
    world: World | None = None

    def __init__(self) -> None:
        self.attempt_numbers = itertools.count()


_thread_state = _ThreadState()
_thread_rank_count = 0
"""Threads that have a seat."""


def _reset_after_fork() -> None:
    """Reset locks and thread ranks in a forked child, which has no rank."""
    global _lock, _thread_rank_count
    _lock, _thread_rank_count = threading.Lock(), 0
    _thread_state.thread_rank = None


os.register_at_fork(after_in_child=_reset_after_fork)


@show_join_options
def init_process_group(init_method: str | None = None, **options: Unpack[JoinOptions]) -> None:
    """Join the world of this process and wait until all ranks have joined.

    Args:
        init_method: `ah://host:port/job` for a running coordinator; `env://` (the default):
            ALLHANDS_URL, else MASTER_ADDR and MASTER_PORT, else what torchrun, mpirun or srun
            tell, else a world of one; `tcp://host:port` or `file:///path`: rank 0 hosts it.
        options: see `JoinOptions`.

    Raises:
        ValueError: an argument or a variable makes no sense; nothing was contacted.
        RuntimeError: this process is in a world already, or its threads are.
        JoinRefused, CollectiveTimeout, CoordinatorUnavailable, Unauthenticated: see `errors`.
    """
    global _default_world
    check_join_options("init_process_group", options)
    thread_rank = _thread_state.thread_rank
    with _lock if thread_rank is None else contextlib.nullcontext():
        if (world := find_world()) is not None and not world.is_inherited:
            raise RuntimeError("this process is in a world already: destroy_process_group() first")
        _thread_state.world = None  # in a forked child it may be the parent's
        if thread_rank is None and _thread_rank_count:
            raise RuntimeError(
                "threads of this process are ranks, and this thread is none of them: "
                "give it a group of the rank that has started it"
            )
        try:
            joined = join_world(*get_thread_state(), init_method, options)
        except Exception as error:
            trim_traceback(error)
            raise
        if thread_rank is not None:
            _thread_state.world = joined
            return
        _default_world = joined
        default.group = joined.group


def is_initialized() -> bool:
    """Return whether this process, or this thread as a rank, is in a world."""
    return find_world() is not None


def destroy_process_group(group: AnyGroup = None) -> None:
    """Leave the world, or close a group; a no-op for ranks outside the group.

    Messages sent before are received first. A rank that hosts the coordinator waits for the
    others to leave, 30 s at most.

    Raises:
        RuntimeError: called by the handler of a signal that broke into a call; the group stays.
    """
    try:
        global _default_world
        world = require_world()
        if isinstance(group, NonMember):
            return
        check_may_wait()
        if group is not None and group is not world.group:
            world.close_group(group)
            return
        if world is _thread_state.world:
            _thread_state.world = None
        else:
            with _lock:
                _default_world = None
                default.group = _NO_GROUP
        world.close()
    except Exception as error:
        trim_traceback(error)
        raise


def default_group() -> Group:
    """Return the group of all ranks.

    Raises:
        RuntimeError: `init_process_group` has not been called.
    """
    return require_world().group


def abort(reason: str, group: AnyGroup = None) -> None:
    """End a group, or the whole world, on all ranks: calls raise `GroupAborted`.

    That goes for calls that are blocked now, here and elsewhere, and for all that come later.
    """
    try:
        world = require_world()
        if isinstance(group, NonMember):
            return
        if group is None or group is world.group:
            world.abort(reason)
        else:
            for part in group.parts:
                world.abort(reason, part.name)
    except Exception as error:
        trim_traceback(error)
        raise


def find_world() -> World | None:
    """Return the world of this process, or of this thread as a rank, or None."""
    return _thread_state.world if _default_world is None else _default_world


def require_world() -> World:
    """Return the world of this process or thread, or raise RuntimeError."""
    world = find_world()
    if world is None:
        raise RuntimeError("this process is in no world: call init_process_group() first")
    return world


def bind_thread_rank(thread_rank: ThreadRank) -> None:
    """Make this thread a rank among threads, with its own default world to join.

    Raises:
        RuntimeError: the process is in a world, which every thread would take for its own.
    """
    global _thread_rank_count
    with _lock:
        if _default_world is not None:
            raise RuntimeError("this process is in a world: destroy_process_group() first")
        _thread_state.thread_rank = thread_rank
        _thread_rank_count += 1


def unbind_thread_rank() -> World | None:
    """Make this thread an ordinary thread; return its world if still joined."""
    global _thread_rank_count
    with _lock:
        _thread_rank_count -= _thread_state.thread_rank is not None  # it has none in a forked child
        world, _thread_state.thread_rank, _thread_state.world = _thread_state.world, None, None
    return world


def get_thread_state() -> tuple[ThreadRank | None, Iterator[int]]:
    """Return this thread's place among ranks, if any, and its attempt counter."""
    thread_rank = _thread_state.thread_rank
    return thread_rank, _attempt_numbers if thread_rank is None else _thread_state.attempt_numbers
