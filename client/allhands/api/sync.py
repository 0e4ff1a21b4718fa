"""The module-level calls: plain functions on a default group, as torch.distributed has them.

`group` is what `new_group` gave, None for the whole world. Ranks given here (`src`, `dst`) are
ranks of the world, whatever the group. A call returns None when it has ended, and raises what went
wrong; with `async_op=True` it returns a `Work` at once. `timeout` is in seconds and defaults to the
group's; `label` is a name of yours for the call, for people who look.

The default world is the only global state of the package. Where threads are ranks, each of them has
one of its own, and the process has none.
"""

import contextlib
import itertools
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from allhands import config
from allhands.api.fake import FakeWorld
from allhands.api.world import ThreadRank, World
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.coordinator.client import Control
from allhands.coordinator.client import connect as _connect
from allhands.coordinator.status import JobStatus
from allhands.deadlines import to_seconds
from allhands.engine.work.persistent import PersistentCall
from allhands.engine.work.work import Work
from allhands.errors import InvalidArgument
from allhands.group.coalescing import CoalescedWork
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.membership.store_rendezvous import rendezvous_via_store
from allhands.recorder.record import OperationRecord
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason
from allhands.stores import CoordinatorStore, Store
from allhands_proto import notice

AnyGroup = Group | NonMember | None

_lock = threading.Lock()
_default_world: World | None = None
_default_group: Group | NonMember = NonMember("no world")
"""The group of calls that name none."""
_attempt_numbers = itertools.count()


class _ThreadState(threading.local):
    """What a thread has for itself that is a rank."""

    thread_rank: ThreadRank | None = None
    """Its place among them; None: it is a thread like any other."""
    world: World | None = None

    def __init__(self) -> None:
        self.attempt_numbers = itertools.count()


_thread_state = _ThreadState()
_thread_rank_count = 0
"""Threads that have a seat."""


def _reset_after_fork() -> None:
    """Let a forked child make a world of its own: its threads are no ranks, and hold no locks."""
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
    """Join the world of this process and wait until all its ranks are there.

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
    global _default_world, _default_group
    seat = _thread_state.thread_rank
    with _lock if seat is None else contextlib.nullcontext():
        if (world := find_world()) is not None and not world.is_inherited:
            raise RuntimeError("this process is in a world already: destroy_process_group() first")
        _thread_state.world = None  # in a forked child it may be the parent's
        if seat is None and _thread_rank_count:
            raise RuntimeError(
                "threads of this process are ranks, and this thread is none of them: "
                "give it a group of the rank that has started it"
            )
        if store is not None and init_method is not None:
            raise ValueError("init_method and store both say where to meet: give one of them")
        if backend == "threads" and seat is not None:
            init_method, rank, world_size = seat.resolve_rank(rank, world_size)
        length, attempt = to_seconds(timeout), count_attempt()
        place, tls_name = None, None
        if store is not None and backend not in ("fake", "threads"):  # which meet elsewhere
            meeting = rendezvous_via_store(store, rank, world_size, length)
            place, attempt, job = meeting.place, 0, job or meeting.job
            token, tls = meeting.token, meeting.tls_ca
            insecure, tls_name = insecure or meeting.insecure, meeting.tls_name
        settled = config.resolve_config(
            os.environ,
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=length,
            job=job,
            token=token,
            tls_ca=tls,
            tls_name=tls_name,
            insecure=insecure,
            label=label,
            heartbeat_window=heartbeat_window or 0.0,
            backend=backend,
            deterministic=deterministic,
            on_failure=on_failure,
            retryable=retryable,
            min_size=min_size,
            max_size=max_size,
            abort_on_exception=abort_on_exception,
            verify=verify,
            allow_pickle=allow_pickle,
            parent=identify_parent_process(),
            attempt=attempt,
            rendezvous=place,
        )
        joined = _choose_joiner(settled.backend, seat).join(settled)
        if seat is not None:
            _thread_state.world = joined
            return
        _default_world = joined
        _default_group = _default_world.group


def is_initialized() -> bool:
    """Say whether this process is in a world; of a thread that is a rank, whether it is."""
    return find_world() is not None


def destroy_process_group(group: AnyGroup = None) -> None:
    """Leave the world, or forget one group of it; a no-op for a rank that is not in the group.

    Messages sent before are received first. A rank that hosts the coordinator waits for the
    others to leave, 30 s at most.
    """
    global _default_world, _default_group
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
            _default_group = NonMember("no world")
    world.close()


def get_rank(group: AnyGroup = None) -> int:
    """Return this process's rank in the group; -1 if it is not in it."""
    return -1 if isinstance(group, NonMember) else (group or require_world().group).rank


def get_world_size(group: AnyGroup = None) -> int:
    """Return the number of ranks in the group; -1 if this process is not in it."""
    return -1 if isinstance(group, NonMember) else (group or require_world().group).size


def set_timeout(timeout: float | timedelta, group: AnyGroup = None) -> None:
    """Set how long calls of this rank on the group may take from now on that do not say it.

    It is the group's `timeout`, which may be set as well. Nothing outside the group.

    Raises:
        ValueError: it is not positive, or endless.
    """
    if not isinstance(group, NonMember):
        (group or require_world().group).timeout = to_seconds(timeout)


def default_group() -> Group:
    """Return the group of all ranks.

    Raises:
        RuntimeError: `init_process_group` has not been called.
    """
    return require_world().group


def empty(
    shape: int | tuple[int, ...],
    dtype: npt.DTypeLike = np.float64,
    group: AnyGroup = None,
) -> AnyArray:
    """Return an array of zeros that the ranks of this host share: collectives copy it least.

    It is an ordinary array, each rank has its own, and others only read it, within calls that are
    given it. Its memory goes back when nobody holds it or a view of it, also after the world has
    been left. Where there is no shared memory it is ordinary memory. `group` says in which world.

    Raises:
        TypeError: elements that are Python objects.
        MemoryError: there is no such piece of memory.
    """
    return require_world().empty(shape, dtype)


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    timeout: float = 30.0,
    insecure: bool = False,
) -> Control:
    """Open a client of a coordinator: keys, barriers, jobs; no URL: that of this world.

    Without a world either, it is the one that `allhands status` would find. `insecure` is as for
    `init_process_group`.
    """
    if url is None and (world := find_world()) is not None:
        endpoint = replace(world.endpoint, token=token or world.endpoint.token)
        return Control(endpoint, job=world.job, timeout=timeout)
    return _connect(url, token=token, timeout=timeout, insecure=insecure)


def store(timeout: float | timedelta | None = None) -> CoordinatorStore:
    """Return the store of this process's job, with c10d's methods; it lives as long as you hold it.

    `timeout` is in seconds, for every wait; None: as for calls in the world, 30 s without one.
    """
    world = find_world()
    usual = config.DEFAULT_TIMEOUT if world is None else world.group.timeout
    limit = usual if timeout is None else to_seconds(timeout)
    return CoordinatorStore(connect(timeout=limit), limit)


def status() -> JobStatus:
    """Return what the coordinator knows of this process's job; `str()` of it is a table."""
    world = require_world()
    with connect() as control:
        return control.job(world.job)


def flight_recorder() -> list[OperationRecord]:
    """Return what this process called last in its world, oldest first, what runs now included.

    It remembers 2,048 operations of each group (ALLHANDS_RECORDER_SIZE, a power of two; 0: none).
    """
    return require_world().get_records()


# ---------------------------------------------------------------- collectives


def broadcast(
    x: AnyArray,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on every rank with that of rank `src`."""
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.broadcast(
        x, src if group is None else find_group_rank(group, src), timeout, label
    ):
        return None
    if (found := resolve_group(group, async_op, "broadcast")) is None:
        return None
    return wait_or_return(
        found.broadcast(x, to_group_rank(found, src, "src"), timeout=timeout, label=label), async_op
    )


def all_reduce(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on every rank with the combination of all, the same bits everywhere.

    When it fails after data has moved, `x` is undefined.
    """
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.all_reduce(x, op, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_reduce")) is None:
        return None
    return wait_or_return(found.all_reduce(x, op, timeout=timeout, label=label), async_op)


def all_reduce_init(
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> PersistentCall | None:
    """Prepare an `all_reduce` of `x` that is made many times: `start()`, `wait()`, and again."""
    if (found := resolve_group(group, True, "all_reduce_init")) is None:
        return None
    return found.all_reduce_init(x, op, timeout=timeout, label=label)


def reduce(
    x: AnyArray,
    dst: int = 0,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` on rank `dst` with the combination of all; other ranks' `x` is only read."""
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.reduce(
        x, dst if group is None else find_group_rank(group, dst), op, timeout, label
    ):
        return None
    if (found := resolve_group(group, async_op, "reduce")) is None:
        return None
    return wait_or_return(
        found.reduce(x, to_group_rank(found, dst, "dst"), op, timeout=timeout, label=label),
        async_op,
    )


def gather(
    x: AnyArray,
    gather_list: list[AnyArray] | None = None,
    dst: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `gather_list` on rank `dst`, by rank, with every rank's `x`; None elsewhere."""
    if (found := resolve_group(group, async_op, "gather")) is None:
        return None
    root = to_group_rank(found, dst, "dst")
    return wait_or_return(
        found.gather(x, gather_list, root, timeout=timeout, label=label), async_op
    )


def scatter(
    x: AnyArray,
    scatter_list: list[AnyArray] | None = None,
    src: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `x` with this rank's array of `scatter_list` on rank `src`; None elsewhere."""
    if (found := resolve_group(group, async_op, "scatter")) is None:
        return None
    root = to_group_rank(found, src, "src")
    return wait_or_return(
        found.scatter(x, scatter_list, root, timeout=timeout, label=label), async_op
    )


def all_gather(
    outputs: list[AnyArray],
    x: AnyArray,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `outputs`, one array for each rank, with every rank's `x`."""
    if (found := resolve_group(group, async_op, "all_gather")) is None:
        return None
    return wait_or_return(found.all_gather(outputs, x, timeout=timeout, label=label), async_op)


def all_gather_into_tensor(
    output: AnyArray,
    x: AnyArray,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Fill `output`, world size times as long as `x`, with every rank's `x`, by rank."""
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.all_gather_into_tensor(output, x, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_gather_into_tensor")) is None:
        return None
    return wait_or_return(
        found.all_gather_into_tensor(output, x, timeout=timeout, label=label), async_op
    )


def reduce_scatter(
    output: AnyArray,
    inputs: list[AnyArray],
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `output` with the combination of all ranks' `inputs[this rank]`."""
    if (found := resolve_group(group, async_op, "reduce_scatter")) is None:
        return None
    return wait_or_return(
        found.reduce_scatter(output, inputs, op, timeout=timeout, label=label), async_op
    )


def reduce_scatter_tensor(
    output: AnyArray,
    x: AnyArray,
    op: ReduceOp = ReduceOp.SUM,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Overwrite `output` with this rank's share of the combination of all ranks' `x`."""
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.reduce_scatter_tensor(output, x, op, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "reduce_scatter_tensor")) is None:
        return None
    return wait_or_return(
        found.reduce_scatter_tensor(output, x, op, timeout=timeout, label=label), async_op
    )


def all_to_all(
    outputs: list[AnyArray],
    inputs: list[AnyArray],
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Give `inputs[j]` to the j-th rank and fill `outputs[j]` with what it gives."""
    if (found := resolve_group(group, async_op, "all_to_all")) is None:
        return None
    return wait_or_return(found.all_to_all(outputs, inputs, timeout=timeout, label=label), async_op)


def all_to_all_single(
    output: AnyArray,
    x: AnyArray,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Give each rank its rows of `x`, fill `output` with the rows they give; None: equal shares."""
    ragged = output_split_sizes is not None or input_split_sizes is not None
    comm = None if async_op or ragged else (group or _default_group).order.comm
    if comm is not None and comm.all_to_all_single(output, x, timeout, label):
        return None
    if (found := resolve_group(group, async_op, "all_to_all_single")) is None:
        return None
    work = found.all_to_all_single(
        output, x, output_split_sizes, input_split_sizes, timeout=timeout, label=label
    )
    return wait_or_return(work, async_op)


def barrier(
    group: AnyGroup = None,
    async_op: bool = False,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Return when every rank of the group has called it."""
    comm = None if async_op else (group or _default_group).order.comm
    if comm is not None and comm.barrier(timeout, label):
        return None
    if (found := resolve_group(group, async_op, "barrier")) is None:
        return None
    return wait_or_return(found.barrier(timeout=timeout, label=label), async_op)


def monitored_barrier(
    group: AnyGroup = None,
    timeout: float | timedelta | None = None,
    wait_all_ranks: bool = False,
    *,
    label: str | None = None,
) -> None:
    """Return when every rank of the group has called it, or tell all of them who has not.

    It goes by the coordinator and is slow: for debugging, and where a rank may well be missing. All
    ranks are told the same, the late ones too, whichever they are.

    Args:
        timeout: seconds; of the first rank that has waited for so long.
        wait_all_ranks: name every rank that did not pass in the error, not only the first; its
            `verdict` has all of them in any case.

    Raises:
        CollectiveTimeout: ranks did not come in time.
        CoordinatorUnavailable: there is no coordinator any more.
    """
    if (found := resolve_group(group, True, "monitored_barrier")) is None:
        return
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    wait_or_return(found.monitored_barrier(limit, wait_all_ranks, label=label), False)


def abort(reason: str, group: AnyGroup = None) -> None:
    """End a group, or the whole world, on all ranks: their calls raise `GroupAborted`.

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


# ---------------------------------------------------------------- point to point


def isend(
    x: AnyArray,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Start to send `x` to a rank; its memory is the call's until the work has ended."""
    if (found := resolve_group(group, True, "isend")) is None:
        return None
    peer = resolve_dst(found, dst, group_dst)
    return found.send(x, peer, tag, timeout=timeout, label=label)


def irecv(
    x: AnyArray,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> Work | None:
    """Start to receive into `x` from a rank; None: from whoever sends under this tag."""
    if (found := resolve_group(group, True, "irecv")) is None:
        return None
    return found.recv(x, resolve_src(found, src, group_src), tag, timeout=timeout, label=label)


def send(
    x: AnyArray,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> None:
    """Send `x` to rank `dst` of the world, or `group_dst` of the group.

    Return when its memory may be used again, received or not.
    """
    p2p = (group or _default_group).order.p2p
    if p2p is not None and group_dst is None and p2p.send(x, dst, tag, timeout, label):
        return
    if (found := resolve_group(group, True, "send")) is not None:
        peer = resolve_dst(found, dst, group_dst)
        wait_or_return(found.send(x, peer, tag, timeout=timeout, label=label), False)


def recv(
    x: AnyArray,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> int:
    """Receive into `x` from rank `src` of the world, or `group_src` of the group; None: from any.

    Return the rank of the world that sent it, -1 outside the group.
    """
    p2p = (group or _default_group).order.p2p
    if (
        p2p is not None
        and group_src is None
        and (came_from := p2p.recv(x, src, tag, timeout, label)) >= 0
    ):
        return came_from
    found = resolve_group(group, True, "recv")
    if found is None:
        return -1
    peer = resolve_src(found, src, group_src)
    work = found.recv(x, peer, tag, timeout=timeout, label=label)
    wait_or_return(work, False)
    return found.ranks[work.source_rank()]


# ---------------------------------------------------------------- inside


def _choose_joiner(backend: str, thread_rank: ThreadRank | None) -> ThreadRank | type[World]:
    """Return what joins a world of that kind."""
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


def find_world() -> World | None:
    """Return the world of this process, or of this thread where that is a rank; None: none."""
    return _thread_state.world if _default_world is None else _default_world


def require_world() -> World:
    """Return the same, for calls that need one."""
    world = find_world()
    if world is None:
        raise RuntimeError("this process is in no world: call init_process_group() first")
    return world


def bind_thread_rank(thread_rank: ThreadRank) -> None:
    """Make this thread a rank among threads, with a default world of its own to come.

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
    """Make this thread one like any other; return the world that it has not left, if any."""
    global _thread_rank_count
    with _lock:
        _thread_rank_count -= _thread_state.thread_rank is not None  # it has none in a forked child
        world, _thread_state.thread_rank, _thread_state.world = _thread_state.world, None, None
    return world


def resolve_group(group: AnyGroup, async_op: bool, operation: str) -> Group | None:
    """Return the group to call on; None, with a warning, for a rank that is not in it.

    Unless `async_op`, the call runs on this thread where nothing else is under way.
    """
    if isinstance(group, NonMember):
        warnings.warn(
            f"{operation} does nothing here: this rank does not belong to group {group.name!r}",
            stacklevel=3,
        )
        return None
    found = group or require_world().group
    if found.coalescer is not None and (instead := found.coalescer.redirect()) is not None:
        return instead
    return found if async_op else found.here


def refuse_while_coalescing(group: AnyGroup, action: str) -> None:
    """Refuse what goes on with the results of its calls where calls are collected.

    Raises:
        RuntimeError: this thread is in a block of `coalescing` on the group.
    """
    if isinstance(group, NonMember):
        return
    found = group or require_world().group
    if found.coalescer is not None and found.coalescer.redirect() is not None:
        raise RuntimeError(
            f"{action} needs at once what its calls give, and those on group {found.name!r} are "
            "collected here: do it outside of the block of coalescing()"
        )


def find_group_rank(group: Group | NonMember, rank: int) -> int:
    """Return the place of a rank of the world in a group; -1: it has none there."""
    if isinstance(group, NonMember) or rank not in group.ranks:
        return -1
    return group.ranks.index(rank)


def to_group_rank(group: Group, rank: int, name: str) -> int:
    """Turn a rank of the world into one of the group."""
    if rank not in group.ranks:
        raise InvalidArgument(
            f"invalid root rank: {name}={rank} is not part of group {group.name!r}, "
            f"whose ranks are {list(group.ranks)}"
        )
    return group.ranks.index(rank)


def resolve_dst(group: Group, dst: int | None, group_dst: int | None) -> int:
    """Return the place in the group of who is sent to; one of the two says who that is."""
    if (dst is None) == (group_dst is None):
        raise ValueError(
            "give dst, a rank of the world, or group_dst, a rank of the group: one of them, "
            f"not dst={dst} and group_dst={group_dst}"
        )
    if dst is not None:
        return to_group_rank(group, dst, "dst")
    assert group_dst is not None
    return group_dst


def resolve_src(group: Group, src: int | None, group_src: int | None) -> int | None:
    """Return the place in the group of who is received from; None: whoever sends."""
    if src is not None and group_src is not None:
        raise ValueError(
            "give src, a rank of the world, or group_src, a rank of the group: one of them, "
            f"not src={src} and group_src={group_src}"
        )
    return group_src if src is None else to_group_rank(group, src, "src")


def wait_or_return(work: Work, async_op: bool) -> Work | None:
    """Wait for a call unless the caller wants to; Ctrl-C ends it, at once.

    One that is collected is not waited for: it is made when its block ends.
    """
    if async_op:
        return work
    if isinstance(work, CoalescedWork):
        return None
    work.waiting_thread = threading.get_ident()
    try:
        work.wait()
    except INTERRUPTIONS as interruption:
        work.abandon(get_cancel_reason(type(interruption).__name__))
        raise
    return None


def count_attempt() -> int:
    """Count the worlds that this process has tried to join, from 0; or this thread, as a rank."""
    return next(
        _attempt_numbers if _thread_state.thread_rank is None else _thread_state.attempt_numbers
    )


def identify_parent_process() -> str:
    """Name the process that started this one, not to be mistaken for an earlier one of its id."""
    pid = os.getppid()
    return f"{pid}.{notice.read_start_ticks(pid)}"
