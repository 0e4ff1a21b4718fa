"""The default world: joining, leaving, and the threads that are ranks.

The default world is the only global state of the package. Where threads are ranks, each of them has
a world of its own, and the process has none.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta

from allhands import config
from allhands.api.joining import join_world
from allhands.api.world import ThreadRank, World
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.stores import Store

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


def init_process_group(
    init_method: str | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    timeout: float | timedelta = config.DEFAULT_TIMEOUT,
    job: str | None = None,
    token: str | None = None,
    tls: str | None = None,
    insecure: bool = False,
    backend: str = "auto",
    label: str | None = None,
    heartbeat_window: float | None = None,
    deterministic: bool = False,
    on_failure: str = "raise",
    retryable: bool = False,
    min_size: int = 1,
    max_size: int = 0,
    abort_on_exception: bool = True,
    verify: bool = False,
    allow_pickle: bool = False,
    store: Store | None = None,
) -> None:
    """Join the world of this process and wait until all ranks have joined.

    Args:
        init_method: `ah://host:port/job` for a running coordinator; `env://` (the default):
            ALLHANDS_URL, else MASTER_ADDR and MASTER_PORT, else what torchrun, mpirun or srun
            tell, else a world of one; `tcp://host:port` or `file:///path`: rank 0 hosts it.
        rank: this process's rank; -1: from the environment, else the coordinator assigns one.
        world_size: how many ranks; -1: from the environment, else what the others bring.
        timeout: seconds until joining fails; also the default for every call.
        job: the job's name at the coordinator; it may also stand in the URL.
        token: what the coordinator wants to see; default ALLHANDS_TOKEN, else this user's notice.
        tls: path of the authorities that vouch for the coordinator; default ALLHANDS_TLS_CA.
        insecure: do without TLS beyond loopback, where token and data can be read and changed on
            the way; default whether ALLHANDS_INSECURE is 1.
        backend: `auto`: shared memory in groups whose ranks are all on one host, else links;
            `shm`: shared memory or an error; `socket`: links alone; `grpc`: links over gRPC alone;
            `threads`: the world of the threads that `allhands.testing.run_threads` has started;
            `fake`: nobody else is there, and every call ends at once; see `engine.fake`.
        label: a name for this process, for people who look.
        heartbeat_window: seconds of silence after which a rank counts as lost, even if it lives;
            the first rank of a job to join sets it. If it says nothing a rank is lost after 5 s of
            silence in which nothing shows that it lives, else at a call's deadline.
        deterministic: give the same bits for a world size whatever the transport, the algorithm,
            the cut: contributions are added up in the order of ranks. All ranks get the same bits
            in any case. Over links it costs memory for every rank's part of a slice.
        on_failure: what the world does when ranks are lost. `raise`: calls fail with PeerFailed,
            until the survivors `shrink` it; `shrink`: it goes on with the others, and makes the
            interrupted call again; `wait`: it goes on once other processes have joined in their
            places, and calls say so by MembershipChanged, so that the program can `State.sync`.
        retryable: a call that fails leaves its arrays as they were, and is done by all ranks that
            are left or by none, as with `shrink` and `wait`. That costs a copy of what a call
            writes, a barrier, and the way through the queue: some hundred microseconds a call.
        min_size: with fewer ranks left calls fail for good.
        max_size: to how many ranks `grow` may take the world; given, or with `shrink` or `wait`,
            processes that join while it runs wait to be taken in.
        abort_on_exception: when an exception ends this process, the calls of others that need it
            raise `GroupAborted` with its traceback; else `PeerFailed`, as for any rank that left.
        verify: check every frame on links by a digest under a secret of the job, and compare a
            digest of the result among the ranks: `DataCorrupted` names the link, or the ranks whose
            result differs. All ranks must say the same. Calls then take longer, small ones by a
            round over links.
        allow_pickle: let object collectives send what is not of a known type as a pickle; who
            receives one runs what it says, so all ranks must be trusted.
        store: instead of `init_method`: a store that all ranks have, with `rank` and `world_size`.
            They meet at its coordinator, else at one that rank 0 hosts on loopback; `threads` and
            `fake` need it for nothing.

    Raises:
        ValueError: an argument or a variable makes no sense; nothing was contacted.
        RuntimeError: this process is in a world already, or its threads are.
        JoinRefused, CollectiveTimeout, CoordinatorUnavailable, Unauthenticated: see `errors`.
    """
    global _default_world
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
        joined = join_world(
            *get_thread_state(),
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            job=job,
            token=token,
            tls=tls,
            insecure=insecure,
            backend=backend,
            label=label,
            heartbeat_window=heartbeat_window,
            deterministic=deterministic,
            on_failure=on_failure,
            retryable=retryable,
            min_size=min_size,
            max_size=max_size,
            abort_on_exception=abort_on_exception,
            verify=verify,
            allow_pickle=allow_pickle,
            store=store,
        )
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
    """
    global _default_world
    world = require_world()
    if isinstance(group, NonMember):
        return
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
    world = require_world()
    if isinstance(group, NonMember):
        return
    if group is None or group is world.group:
        world.abort(reason)
    else:
        for part in group.parts:
            world.abort(reason, part.name)


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
