"""Groups: ranks with collectives, point-to-point messages and recovery.

Every method checks its arguments, takes the next place in the group's order and returns a `Work`
at once; the faces in `api` decide how to wait. Safe from any thread: calls take the order in
which they got their numbers, and every rank must make the same calls in the same order.
`collectives.primitive` states the rules for arrays.
"""

import functools
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import numpy as np

from allhands.collectives import arguments, plan
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite import Composed
from allhands.collectives.composite_call import (
    CompositeCall,
    CompositeState,
    StepBuilder,
    make_custom_reduction,
)
from allhands.collectives.part import Part
from allhands.collectives.primitive import BuildParts, CallTimeout, Collectives
from allhands.collectives.reduction import OPS, ReduceOp, check
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.data import sparse_array
from allhands.data.codec import DataclassRegistry
from allhands.data.serializer import ObjectSerializer
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import clip_timeout, to_seconds
from allhands.engine.failures import call_errors
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import QueueOnlyNumbering
from allhands.engine.operation import MonitoredBarrierCall, Operation
from allhands.engine.p2p.message import P2PRequest, name_message
from allhands.engine.work import explanations
from allhands.engine.work.completed import CompletedSend, CompletedWork
from allhands.engine.work.persistent import PersistentCall, QueuedPersistentCall
from allhands.engine.work.split_phase import SplitPhaseWork
from allhands.engine.work.work import Work
from allhands.runtime import native_core
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.termination import get_cancel_reason

_ABORT_SECONDS = 1.0


class LoopExecutor(Protocol):
    """The way to the loop on which an engine lives, from any thread."""

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; calls keep their order."""

    def run_on_caller_thread(self, act: Callable[[], bool]) -> bool:
        """Call a short function here as if on the loop; return whether that was possible.

        It says whether the loop has something to do because of it.
        """

    @property
    def callbacks(self) -> Callbacks | None:
        """Executor of completion callbacks; None: the thread that completes the call."""


class Recovery(Protocol):
    """Recovery of a group that has lost ranks; callable from any thread."""

    def agree(self, group: str, flag: bool, timeout: float) -> bool: ...

    def shrink(self, group: str, timeout: float, default: float) -> "Group": ...

    def grow(self, group: str, count: int, timeout: float, default: float) -> "Group": ...


class Coalescer(Protocol):
    """Collector of a group's calls for later submission."""

    def redirect(self) -> "Group | None":
        """Return the calling thread's coalescing group; None: not coalescing."""


class Group(Collectives[Work], Composed[Work]):
    """A group of ranks; made by `init_process_group`, `new_group` or `aio.connect`."""

    def __init__(
        self,
        engine: GroupEngine,
        thread: LoopExecutor,
        timeout: float,
        recovery: Recovery | None = None,
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._recovery = recovery
        self.order = QueueOnlyNumbering(engine.order) if engine.verifies else engine.order
        self.deterministic = engine.deterministic
        self.timeout = timeout
        self.objects = ObjectSerializer(DataclassRegistry())
        self.coalescer: Coalescer | None = None

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def timeout(self) -> float:
        """Default timeout of calls in seconds; may be set, on each rank.

        It counts for calls from then on. A timedelta will do; else ValueError.
        """
        return self.order.timeout

    @timeout.setter
    def timeout(self, timeout: float | timedelta) -> None:
        self.order.timeout = _check_timeout(to_seconds(timeout))

    @functools.cached_property
    def here(self) -> "Group":
        """The same group with calls inline on the caller's thread where possible."""
        here = _InlineGroup(self._engine, self._thread, self.timeout, self._recovery)
        here.objects = self.objects
        return here

    @property
    def parts(self) -> "tuple[Group, ...]":
        """The groups that run the calls: itself, or several for round robin."""
        return (self,)

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        return self._engine.rank

    @property
    def size(self) -> int:
        return len(self._engine.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """World rank of each group rank: the values of `src` and `dst` in plain calls.

        Where the group has lost or taken in ranks, it is the rank in the group.
        """
        return self._engine.caller_ranks

    @property
    def sequence(self) -> int:
        """Number of the latest call of this rank; 0 before the first. Point to point has none."""
        return self.order.latest_sequence

    @property
    def members(self) -> tuple[int, ...]:
        """The job's rank of each rank of the group, as the coordinator numbers processes.

        They are the world's ranks until it has lost or taken in some.
        """
        return self._engine.ranks

    @property
    def verify(self) -> bool:
        """Whether data is checked on its way, and results are compared: `DataCorrupted`."""
        return self._engine.verifies

    @property
    def _link_cost(self) -> LinkCost | None:
        return self._engine.link_cost

    def explain(self) -> str:
        """Say how the latest call that shared memory helped was carried out; "": there was none."""
        comm = self._engine.order.comm
        last = None if comm is None else comm.last_call()
        return self._engine.explanation if last is None else explanations.explain_shm(last)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    def all_reduce(
        self,
        x: AnyArray | SparseArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: CallTimeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` on every rank with the combination of all, the same bits everywhere.

        A sparse array, of this package or of SciPy, has new indices and values then, as if all
        were dense: see `all_reduce_sparse`.
        """
        if isinstance(x, SparseArray):
            return self.all_reduce_sparse(x, op, timeout=timeout, label=label)
        if sparse_array.is_scipy_sparse(x):
            return self.all_reduce_sparse(
                sparse_array.ScipySparseArray(x), op, timeout=timeout, label=label
            )
        return super().all_reduce(x, op, timeout=timeout, label=label)

    def all_reduce_init(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: CallTimeout = None,
        label: str | None = None,
    ) -> PersistentCall:
        """Prepare a persistent `all_reduce` of `x`, without any communication yet."""
        check(op, arguments.check_target(x, "x").dtype)
        own = 0.0 if timeout is None else self._resolve_timeout(timeout)

        def make() -> Work:
            return self.all_reduce(x, op, timeout=timeout, label=label)

        native, _ = native_core.find()
        if native is None or type(x) is not np.ndarray or op not in OPS:
            return QueuedPersistentCall(make)
        call: PersistentCall = native.AllReduceRequest(self.order, x, op, make, own, label)
        return call

    def monitored_barrier(
        self,
        timeout: CallTimeout = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> Work:
        """Wait for all ranks; on a timeout fail on all, naming the missing ranks.

        With `wait_all_ranks` the error names every rank that is missing, not only the first.
        """
        seconds, call = self._get_effective_timeout(timeout), CallSignature("monitored_barrier")
        with self.order.lock:
            operation = self._create_operation(
                CollectiveRequest("barrier"), call, _build_no_parts, None, seconds, label
            )
            operation.monitored_barrier = MonitoredBarrierCall(wait_all_ranks)
            self._post_to_loop(
                operation.work, self._engine.submit, self._engine.queue.cancel, operation
            )
        return operation.work

    def abort(self, reason: str) -> None:
        """Abort the group on all ranks: present and future calls raise `GroupAborted`."""
        done = threading.Event()

        def act() -> None:
            self._engine.abort(reason)
            done.set()

        self._thread.call(act)
        if not self._engine.is_on_loop:
            done.wait(_ABORT_SECONDS)

    def send(
        self,
        x: AnyArray,
        dst: int,
        tag: int = 0,
        *,
        timeout: CallTimeout = None,
        label: str | None = None,
    ) -> Work:
        """Send `x` to rank `dst`; ended when `x` may be changed, received or not."""
        source, peer = self.check_send(x, dst, tag)
        return self._start_p2p("send", source, x, peer, tag, timeout, label)

    def recv(
        self,
        x: AnyArray,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: CallTimeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` with the next message under `tag` from `src`; None: any source."""
        target, peer = self.check_recv(x, src, tag)
        return self._start_p2p("recv", target, x, peer, tag, timeout, label)

    def check_send(self, x: AnyArray, dst: int, tag: int) -> tuple[Array, int]:
        """Check the arguments of `send`; return the flat array and the job's rank of `dst`."""
        _check_tag(tag)
        return arguments.check_source(x, "x"), self._resolve_peer(dst, "dst")

    def check_recv(self, x: AnyArray, src: int | None, tag: int) -> tuple[Array, int | None]:
        """Check the arguments of `recv`; return the flat array and the job's rank of `src`."""
        _check_tag(tag)
        return arguments.check_target(x, "x"), None if src is None else self._resolve_peer(
            src, "src"
        )

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group, so that all can `agree` or `shrink`.

        It is `abort` by the name that ULFM gives it.
        """
        self.abort(reason)

    def agree(self, flag: bool = True, *, timeout: CallTimeout = None) -> bool:
        """Return the logical AND of the flags of all present ranks, equal on each.

        It works on groups that have lost ranks, and is uniform also when more are lost meanwhile.

        Raises:
            CollectiveTimeout: a rank that is there did not call it.
            MembershipChanged: this process is no member any more.
        """
        return self._require_recovery().agree(self.name, flag, self._get_effective_timeout(timeout))

    def shrink(self, *, timeout: CallTimeout = None) -> "Group":
        """Return a group of the remaining ranks, in order; called by all of these.

        Raises:
            CollectiveTimeout: a rank that is there did not call it.
            MembershipChanged: this process is no member any more.
        """
        group = self._require_recovery().shrink(
            self.name, self._get_effective_timeout(timeout), self.timeout
        )
        group.objects = self.objects
        return group

    def grow(self, count: int, *, timeout: CallTimeout = None) -> "Group":
        """Return a group of the remaining ranks and `count` newcomers, once present.

        Newcomers are processes that join the job meanwhile, or wait for that already; the group is
        the world that they join. All ranks that are left must call it.

        Raises:
            ValueError: a count below 1.
            CollectiveTimeout: a rank did not call it, or fewer newcomers came.
            Refused: there would be more ranks than the job's `max_size`.
            MembershipChanged: this process is no member any more.
        """
        if count < 1:
            raise ValueError(f"a group grows by at least one rank, not {count}")
        group = self._require_recovery().grow(
            self.name, count, self._get_effective_timeout(timeout), self.timeout
        )
        group.objects = self.objects
        return group

    def _require_recovery(self) -> Recovery:
        if self._recovery is None:
            raise RuntimeError(f"{self} has no coordinator that could tell who is left")
        return self._recovery

    def pass_over(self, reason: str) -> None:
        """Skip a call's number, and notify the peers in that call of `reason`."""
        with self.order.lock:
            operation = self._create_operation(
                CollectiveRequest("barrier"),
                CollectiveRequest("barrier").call,
                plan.barrier,
                None,
                self.timeout,
                None,
            )
            self._thread.call(self._engine.skip, operation, reason)

    def _start(
        self,
        request: CollectiveRequest,
        build: BuildParts,
        result: Result,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        """Start a checked call: publish directly, or number and queue."""
        posted = self._publish(request, result, timeout, label)
        if posted is not None:
            return posted
        return self._enqueue(request, request.call, build, result, timeout, label)

    def _publish(
        self, request: CollectiveRequest, result: Result, timeout: CallTimeout, label: str | None
    ) -> SplitPhaseWork | None:
        """Start a small split-phase all_reduce over shared memory; None: not possible now.

        Not on the loop, for which its failure would wait.
        """
        comm, callbacks = self.order.comm, self._thread.callbacks
        if request.kind != "all_reduce" or comm is None or callbacks is None:
            return None
        if self._engine.is_on_loop:
            return None
        seconds = self._get_effective_timeout(timeout)
        posted = comm.start_all_reduce(
            request.targets[0], request.op, seconds, label, request.shape
        )
        if posted is None:
            return None
        call = request.call
        work = SplitPhaseWork(call, posted, request.nbytes, result, label, self.name, callbacks)
        work.own(lambda: self._thread.call(self._engine.queue.cancel_shm_call, work))
        return work

    def _enqueue(
        self,
        request: CollectiveRequest,
        signature: CallSignature,
        build: BuildParts,
        result: Result,
        timeout: CallTimeout,
        label: str | None,
        composite_state: CompositeState | None = None,
    ) -> Work:
        seconds = self._get_effective_timeout(timeout)
        with self.order.lock:
            operation = self._create_operation(request, signature, build, result, seconds, label)
            operation.composite_state = composite_state
            if seconds <= 0:  # its number is used up, as on the other ranks
                operation.is_cancelled = True
                operation.work.fail(
                    call_errors.build_expired_error(repr(operation.work), operation.work, seconds)
                )
            elif composite_state is None and self._try_defer(operation):
                return operation.work
            self._post_to_loop(
                operation.work, self._engine.submit, self._engine.queue.cancel, operation
            )
        return operation.work

    def _try_defer(self, operation: Operation) -> bool:
        """Queue a call over shared memory outside the loop; return whether possible."""
        callbacks = self._thread.callbacks
        if callbacks is None or self.order.comm is None:
            return False
        if not self._engine.queue.get_deferred_calls(callbacks).add(operation):
            return False
        operation.work.own(lambda: self._thread.call(self._engine.queue.cancel, operation))
        return True

    def _start_custom_reduction(
        self, request: CollectiveRequest, result: Result, timeout: CallTimeout, label: str | None
    ) -> Work:
        return self._start_composite(make_custom_reduction(request, result), timeout, label)

    def _start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Number a composite call and hand over to the loop, under one lock."""
        moves = StepBuilder(self.name, self.rank, self.size, self.deterministic, self._link_cost)
        native = CollectiveRequest(composite.call.operation)
        return self._enqueue(
            native,
            composite.call,
            _build_no_parts,
            None,
            timeout,
            label,
            CompositeState(composite, moves),
        )

    def _create_operation(
        self,
        request: CollectiveRequest,
        signature: CallSignature,
        build: BuildParts,
        result: Result,
        seconds: float,
        label: str | None,
    ) -> Operation:
        """Give a call its number, with the order's lock held."""

        signature = signature.with_label(label)
        if (clash := self.order.find_clash(label)) is not None:
            self._engine.refuse_clash(signature.operation, clash)
        work = Work(signature, self.order.take(), label, self.name, self._thread.callbacks)
        work.waiting_thread = self._get_waiting_thread()
        self.order.set_latest(work)
        work.entry = self._engine.recorder.record_call(
            signature.operation, work.sequence, request.nbytes, signature, label
        )
        return Operation(
            work,
            signature,
            request,
            build,
            result,
            seconds,
            time.monotonic() + seconds,
        )

    def _get_waiting_thread(self) -> int:
        """Return the id of the thread that blocks on its calls; 0: none."""
        return 0

    def _start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        given = self._resolve_timeout(timeout)
        if operation == "send" and peer is not None and (p2p := self.order.p2p) is not None:
            place = self._engine.ranks.index(peer)
            if p2p.try_send(array, place, tag, given, label):
                return CompletedSend(array.nbytes, label, self.name, result)
        seconds = clip_timeout(given)
        call = CallSignature("message", str(array.dtype), array.size)
        work = Work(CallSignature(operation), 0, label, self.name, self._thread.callbacks)
        work.entry = self._engine.recorder.record_message(
            operation, array.nbytes, call, peer, tag, label
        )
        if seconds <= 0:
            what = name_message(operation, self.ranks, peer, tag)
            work.fail(call_errors.build_expired_error(what, work, seconds))
            return work
        exchange = P2PRequest(
            work, call, array, result, peer, tag, seconds, time.monotonic() + seconds
        )
        messages = self._engine.p2p_router
        if (path := messages.shm_path) is None or not path.begin(exchange):
            with self.order.lock:
                if (late := messages.shm_path) is None or late is path:
                    self._post_to_loop(work, messages.start, messages.cancel, exchange)
                    self.order.queued_messages += 1
                    return work
            late.begin(exchange)
        return work

    def _post_to_loop(
        self,
        work: Work,
        start: Callable[..., None],
        cancel: Callable[..., None],
        item: object,
    ) -> None:
        work.own(lambda: self._thread.call(cancel, item))
        self._thread.call(start, item)

    def _get_effective_timeout(self, timeout: CallTimeout) -> float:
        """Return the seconds left for a call made now; 0 or less: expired."""
        return clip_timeout(self._resolve_timeout(timeout))

    def _resolve_timeout(self, timeout: CallTimeout) -> float:
        return self.order.timeout if timeout is None else _check_timeout(float(timeout))

    def _resolve_peer(self, rank: int, name: str) -> int:
        """Return the world's rank of another rank of the group."""
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{name}={rank} is not in {self.name!r}, whose ranks go from 0 to {self.size - 1}"
            )
        if rank == self.rank:
            raise ValueError(f"{name}={rank} is this rank itself: messages go to other ranks")
        return self._engine.ranks[rank]


def _check_tag(tag: int) -> None:
    if not 0 <= tag < 1 << 31:
        raise ValueError(f"tag must be from 0 to {(1 << 31) - 1}, not {tag}")


def _check_timeout(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return timeout


class _InlineGroup(Group):
    """A group for blocking callers: calls run on their threads where possible."""

    def _get_waiting_thread(self) -> int:
        return threading.get_ident()

    def _start(
        self,
        request: CollectiveRequest,
        build: BuildParts,
        result: Result,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        comm = self.order.comm
        seconds = self._get_effective_timeout(timeout)
        if seconds <= 0:
            return super()._start(request, build, result, timeout, label)
        if comm is not None:
            if request.run(comm, 0, seconds, time.monotonic() + seconds, label):
                return CompletedWork.from_comm(comm, label, self.name, result)
        elif self._engine.can_run_inline(request):
            call = request.call
            begun: list[Work] = []

            def begin() -> bool:
                with self.order.lock:
                    operation = self._create_operation(request, call, build, result, seconds, label)
                    work = operation.work
                    begun.append(work)
                    work.own(lambda: self._thread.call(self._engine.queue.cancel, operation))
                    if not self._engine.queue.is_next(work.sequence):
                        self._thread.call(self._engine.submit, operation)
                        return True
                return self._engine.queue.run_inline(operation)

            try:
                if self._thread.run_on_caller_thread(begin):
                    return begun[0]
            except BaseException as error:  # Ctrl-C came meanwhile
                for work in begun:
                    work.abandon(get_cancel_reason(type(error).__name__))
                raise
        return super()._start(request, build, result, timeout, label)


def _build_no_parts(rank: int, size: int) -> list[Part]:
    """Return no parts: the call is not a single collective over links."""
    return []
