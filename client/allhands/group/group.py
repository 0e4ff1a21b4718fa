"""Group: the ranks that call together, and the collectives that they call.

Every method checks its arguments, takes the next place in the group's order and returns a `Work`
at once; the faces in `api` decide how to wait. Safe from any thread: calls take the order in
which they got their numbers, and every rank must make the same calls in the same order.
`engine.collectives` says what holds for arrays.
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
from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite import Composed
from allhands.collectives.composite_call import Chain, Moves, Running, foreign_chain
from allhands.collectives.part import Part
from allhands.collectives.primitive import Build, Collectives, Timeout
from allhands.collectives.reduction import OPS, ReduceOp, check
from allhands.collectives.request import Native
from allhands.collectives.signature import Call, Result
from allhands.data import sparse_array
from allhands.data.codec import Types
from allhands.data.serializer import Objects
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import effective, seconds
from allhands.engine.failures import call_errors
from allhands.engine.group_engine import GroupEngine, Meeting, Operation
from allhands.engine.numbering import Careful
from allhands.engine.p2p.message import Exchange, named
from allhands.engine.work import explanations
from allhands.engine.work.completed import Ended, Sent
from allhands.engine.work.persistent import PersistentCall, Queued
from allhands.engine.work.split_phase import Posted
from allhands.engine.work.work import Work
from allhands.runtime import native_core
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.termination import reason_of

_ABORT_SECONDS = 1.0


class Caller(Protocol):
    """The way to the loop on which an engine lives, from any thread."""

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; calls keep their order."""

    def lend(self, act: Callable[[], bool]) -> bool:
        """Call a short function here as if on the loop; return whether that was possible.

        It says whether the loop has something to do because of it.
        """

    @property
    def callbacks(self) -> Callbacks | None:
        """What runs functions once calls have ended; None: the thread that ended the call."""


class Recovery(Protocol):
    """What ranks of a group can do together that have lost some; from any thread."""

    def agree(self, group: str, flag: bool, timeout: float) -> bool: ...

    def shrink(self, group: str, timeout: float, default: float) -> "Group": ...

    def grow(self, group: str, count: int, timeout: float, default: float) -> "Group": ...


class Collector(Protocol):
    """What collects calls of a group to make them later."""

    def instead(self) -> "Group | None":
        """Return what the calling thread is to call on instead of the group; None: the group."""


class Group(Collectives[Work], Composed[Work]):
    """The ranks that call together; made by `init_process_group`, `new_group` or `aio.connect`."""

    def __init__(
        self,
        engine: GroupEngine,
        thread: Caller,
        timeout: float,
        recovery: Recovery | None = None,
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._recovery = recovery
        self.order = Careful(engine.order) if engine.verifies else engine.order
        self.deterministic = engine.deterministic
        self.timeout = timeout
        self.objects = Objects(Types())
        self.collecting: Collector | None = None

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def timeout(self) -> float:
        """Seconds that a call may take when it does not say otherwise; may be set, on each rank.

        It counts for calls from then on. A timedelta will do; else ValueError.
        """
        return self.order.timeout

    @timeout.setter
    def timeout(self, timeout: float | timedelta) -> None:
        self.order.timeout = _checked(seconds(timeout))

    @functools.cached_property
    def here(self) -> "Group":
        """The same group, whose calls run on the caller's thread where none is under way."""
        here = _Here(self._engine, self._thread, self.timeout, self._recovery)
        here.objects = self.objects
        return here

    @property
    def parts(self) -> "tuple[Group, ...]":
        """The groups that carry out its calls: itself, unless they are dealt to several."""
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
        """What `src` and `dst` of the plain calls name each rank: its rank in the world.

        Where the group has lost or taken in ranks, it is the rank in the group.
        """
        return self._engine.named

    @property
    def sequence(self) -> int:
        """Number of the latest call of this rank; 0 before the first. Point to point has none."""
        return self.order.taken

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
    def _wire(self) -> Wire | None:
        return self._engine.wire

    def explain(self) -> str:
        """Say how the latest call that shared memory helped was carried out; "": there was none."""
        comm = self._engine.order.comm
        last = None if comm is None else comm.last_call()
        return self._engine.explanation if last is None else explanations.shared(last)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    # ------------------------------------------------------------ other calls

    def all_reduce(
        self,
        x: AnyArray | SparseArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` on every rank with the combination of all, the same bits everywhere.

        A sparse array, of this package or of SciPy, has new indices and values then, as if all
        were dense: see `all_reduce_sparse`.
        """
        if isinstance(x, SparseArray):
            return self.all_reduce_sparse(x, op, timeout=timeout, label=label)
        if sparse_array.is_foreign(x):
            return self.all_reduce_sparse(sparse_array.Foreign(x), op, timeout=timeout, label=label)
        return super().all_reduce(x, op, timeout=timeout, label=label)

    def all_reduce_init(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> PersistentCall:
        """Prepare an `all_reduce` of `x` that is made many times; it talks to nobody yet."""
        check(op, arguments.target(x, "x").dtype)
        own = 0.0 if timeout is None else self._given(timeout)

        def make() -> Work:
            return self.all_reduce(x, op, timeout=timeout, label=label)

        native, _ = native_core.find()
        if native is None or type(x) is not np.ndarray or op not in OPS:
            return Queued(make)
        call: PersistentCall = native.AllReduceRequest(self.order, x, op, make, own, label)
        return call

    def monitored_barrier(
        self,
        timeout: Timeout = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> Work:
        """End when every rank has called it; else tell all ranks which have not, as one of them.

        With `wait_all_ranks` the error names every rank that is missing, not only the first.
        """
        seconds, call = self._seconds(timeout), Call("monitored_barrier")
        with self.order.lock:
            operation = self._numbered(Native("barrier"), call, _no_parts, None, seconds, label)
            operation.meeting = Meeting(wait_all_ranks)
            self._hand_over(operation.work, self._engine.submit, self._engine.cancel, operation)
        return operation.work

    def abort(self, reason: str) -> None:
        """End the group on all its ranks: calls raise `GroupAborted`, also those to come."""
        done = threading.Event()

        def act() -> None:
            self._engine.abort(reason)
            done.set()

        self._thread.call(act)
        if not self._engine.is_at_home:
            done.wait(_ABORT_SECONDS)

    # ------------------------------------------------------------ point to point

    def send(
        self,
        x: AnyArray,
        dst: int,
        tag: int = 0,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Send `x` to rank `dst`; ended when `x` may be changed, received or not."""
        source, peer = self.check_send(x, dst, tag)
        return self._exchange("send", source, x, peer, tag, timeout, label)

    def recv(
        self,
        x: AnyArray,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` with the next message from `src`, or from whoever sends, under `tag`."""
        target, peer = self.check_recv(x, src, tag)
        return self._exchange("recv", target, x, peer, tag, timeout, label)

    def check_send(self, x: AnyArray, dst: int, tag: int) -> tuple[Array, int]:
        """Check what `send` is given; return the array's elements and the job's rank of `dst`."""
        _check_tag(tag)
        return arguments.source(x, "x"), self._peer(dst, "dst")

    def check_recv(self, x: AnyArray, src: int | None, tag: int) -> tuple[Array, int | None]:
        """Check what `recv` is given; return the array's elements and the job's rank of `src`."""
        _check_tag(tag)
        return arguments.target(x, "x"), None if src is None else self._peer(src, "src")

    # ------------------------------------------------------------ going on after failures

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group, so that all can `agree` or `shrink`.

        It is `abort` by the name that ULFM gives it.
        """
        self.abort(reason)

    def agree(self, flag: bool = True, *, timeout: Timeout = None) -> bool:
        """Return whether all ranks that are there have given a true flag, the same everywhere.

        It works on groups that have lost ranks, and is uniform also when more are lost meanwhile.

        Raises:
            CollectiveTimeout: a rank that is there did not call it.
            MembershipChanged: this process is no member any more.
        """
        return self._recover().agree(self.name, flag, self._seconds(timeout))

    def shrink(self, *, timeout: Timeout = None) -> "Group":
        """Return a group of the ranks that are left, in their order; all of them must call it.

        Raises:
            CollectiveTimeout: a rank that is there did not call it.
            MembershipChanged: this process is no member any more.
        """
        group = self._recover().shrink(self.name, self._seconds(timeout), self.timeout)
        group.objects = self.objects
        return group

    def grow(self, count: int, *, timeout: Timeout = None) -> "Group":
        """Return a group of the ranks that are left and of `count` newcomers, once they are there.

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
        group = self._recover().grow(self.name, count, self._seconds(timeout), self.timeout)
        group.objects = self.objects
        return group

    def _recover(self) -> Recovery:
        if self._recovery is None:
            raise RuntimeError(f"{self} has no coordinator that could tell who is left")
        return self._recovery

    # ------------------------------------------------------------ inside

    def pass_over(self, reason: str) -> None:
        """Use up the number of a call that others make, who are told why not to wait for it."""
        with self.order.lock:
            operation = self._numbered(
                Native("barrier"), Native("barrier").call, plan.barrier, None, self.timeout, None
            )
            self._thread.call(self._engine.pass_over, operation, reason)

    def _start(
        self,
        native: Native,
        build: Build,
        result: Result,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        """Begin a checked call, or give it its number and its place in a queue, in one step."""
        posted = self._post(native, result, timeout, label)
        if posted is not None:
            return posted
        return self._queue_call(native, native.call, build, result, timeout, label)

    def _post(
        self, native: Native, result: Result, timeout: Timeout, label: str | None
    ) -> Posted | None:
        """Give this rank's part of a small all_reduce at once, if it comes next; else None.

        Not on the loop, for which its failure would wait.
        """
        comm, callbacks = self.order.comm, self._thread.callbacks
        if native.kind != "all_reduce" or comm is None or callbacks is None:
            return None
        if self._engine.is_at_home:
            return None
        seconds = self._seconds(timeout)
        posted = comm.start_all_reduce(native.targets[0], native.op, seconds, label, native.shape)
        if posted is None:
            return None
        call = native.call
        work = Posted(call, posted, native.nbytes, result, label, self.name, callbacks)
        work.own(lambda: self._thread.call(self._engine.give_up, work))
        return work

    def _queue_call(
        self,
        native: Native,
        call: Call,
        build: Build,
        result: Result,
        timeout: Timeout,
        label: str | None,
        running: Running | None = None,
    ) -> Work:
        seconds = self._seconds(timeout)
        with self.order.lock:
            operation = self._numbered(native, call, build, result, seconds, label)
            operation.running = running
            if seconds <= 0:  # its number is used up, as on the other ranks
                operation.cancelled = True
                operation.work.fail(
                    call_errors.over_before(repr(operation.work), operation.work, seconds)
                )
            elif running is None and self._backlogged(operation):
                return operation.work
            self._hand_over(operation.work, self._engine.submit, self._engine.cancel, operation)
        return operation.work

    def _backlogged(self, operation: Operation) -> bool:
        """Let a call wait for its turn beside the loop, if it needs nothing of it."""
        callbacks = self._thread.callbacks
        if callbacks is None or self.order.comm is None:
            return False
        if not self._engine.backlog(callbacks).add(operation):
            return False
        operation.work.own(lambda: self._thread.call(self._engine.cancel, operation))
        return True

    def _start_foreign(
        self, native: Native, result: Result, timeout: Timeout, label: str | None
    ) -> Work:
        return self._chain(foreign_chain(native, result), timeout, label)

    def _chain(self, chain: Chain, timeout: Timeout, label: str | None) -> Work:
        """Give a call of several steps its number and hand it to the loop, in one step."""
        moves = Moves(self.name, self.rank, self.size, self.deterministic, self._wire)
        native = Native(chain.call.operation)
        return self._queue_call(
            native, chain.call, _no_parts, None, timeout, label, Running(chain, moves)
        )

    def _numbered(
        self,
        native: Native,
        call: Call,
        build: Build,
        result: Result,
        seconds: float,
        label: str | None,
    ) -> Operation:
        """Give a call its number, with the order's lock held."""

        call = call.labelled(label)
        if (clash := self.order.clash(label)) is not None:
            self._engine.refuse_clash(call.operation, clash)
        work = Work(call, self.order.take(), label, self.name, self._thread.callbacks)
        work.waiter = self._waiter()
        self.order.entered(work)
        work.entry = self._engine.recording.asked(
            call.operation, work.sequence, native.nbytes, call, label
        )
        return Operation(
            work,
            call,
            native,
            build,
            result,
            seconds,
            time.monotonic() + seconds,
        )

    def _waiter(self) -> int:
        """Return the thread that waits for what it calls here; 0: it may do something else."""
        return 0

    def _exchange(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        given = self._given(timeout)
        if operation == "send" and peer is not None and (p2p := self.order.p2p) is not None:
            place = self._engine.ranks.index(peer)
            if p2p.try_send(array, place, tag, given, label):
                return Sent(array.nbytes, label, self.name, result)
        seconds = effective(given)
        call = Call("message", str(array.dtype), array.size)
        work = Work(Call(operation), 0, label, self.name, self._thread.callbacks)
        work.entry = self._engine.recording.message(operation, array.nbytes, call, peer, tag, label)
        if seconds <= 0:
            what = named(operation, self.ranks, peer, tag)
            work.fail(call_errors.over_before(what, work, seconds))
            return work
        exchange = Exchange(
            work, call, array, result, peer, tag, seconds, time.monotonic() + seconds
        )
        messages = self._engine.messages
        if (path := messages.shm_path) is None or not path.begin(exchange):
            with self.order.lock:
                if (late := messages.shm_path) is None or late is path:
                    self._hand_over(work, messages.start, messages.cancel, exchange)
                    self.order.detours += 1
                    return work
            late.begin(exchange)
        return work

    def _hand_over(
        self,
        work: Work,
        start: Callable[..., None],
        cancel: Callable[..., None],
        what: object,
    ) -> None:
        work.own(lambda: self._thread.call(cancel, what))
        self._thread.call(start, what)

    def _seconds(self, timeout: Timeout) -> float:
        """Return how long a call may take that is made now; 0 or less: its time is over."""
        return effective(self._given(timeout))

    def _given(self, timeout: Timeout) -> float:
        return self.order.timeout if timeout is None else _checked(float(timeout))

    def _peer(self, rank: int, name: str) -> int:
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


def _checked(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return timeout


class _Here(Group):
    """A group for callers that wait anyway."""

    def _waiter(self) -> int:
        return threading.get_ident()

    def _start(
        self,
        native: Native,
        build: Build,
        result: Result,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        comm = self.order.comm
        seconds = self._seconds(timeout)
        if seconds <= 0:
            return super()._start(native, build, result, timeout, label)
        if comm is not None:
            if native.run(comm, 0, seconds, time.monotonic() + seconds, label):
                return Ended.latest(comm, label, self.name, result)
        elif self._engine.goes_here(native):
            call = native.call
            begun: list[Work] = []

            def begin() -> bool:
                with self.order.lock:
                    operation = self._numbered(native, call, build, result, seconds, label)
                    work = operation.work
                    begun.append(work)
                    work.own(lambda: self._thread.call(self._engine.cancel, operation))
                    if not self._engine.is_next(work.sequence):
                        self._thread.call(self._engine.submit, operation)
                        return True
                return self._engine.run_here(operation)

            try:
                if self._thread.lend(begin):
                    return begun[0]
            except BaseException as error:  # Ctrl-C came meanwhile
                for work in begun:
                    work.abandon(reason_of(type(error).__name__))
                raise
        return super()._start(native, build, result, timeout, label)


def _no_parts(rank: int, size: int) -> list[Part]:
    """What a call is over links that has none: it is another thing, or not known yet."""
    return []
