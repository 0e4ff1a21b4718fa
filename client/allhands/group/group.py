"""Groups: ranks with collectives, point-to-point messages and recovery.

Every method checks its arguments, takes the next place in the group's order and returns a `Work`
at once; the faces in `api` decide how to wait. Safe from any thread: calls take the order in
which they got their numbers, and every rank must make the same calls in the same order.
`collectives.primitive` states the rules for arrays.
"""

import copy
import functools
import threading
from datetime import timedelta
from typing import Unpack

from allhands.collectives import arguments
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite import Composed
from allhands.collectives.composite_call import CompositeCall, make_custom_reduction
from allhands.collectives.primitive import CallTimeout, Collectives
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.reduction import ReduceOp, check, parse_op
from allhands.collectives.staging import Outputs
from allhands.data import sparse_array
from allhands.data.codec import DataclassRegistry
from allhands.data.serializer import ObjectSerializer
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import to_seconds
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import SingleCallNumbering, check_timeout
from allhands.engine.routes import Route, choose_persistent
from allhands.engine.work import explanations
from allhands.engine.work.persistent import PersistentCall, QueuedPersistentCall
from allhands.engine.work.work import Work
from allhands.group.awaited import AwaitedSubmitter
from allhands.group.begun import BegunSubmitter
from allhands.group.call_hooks import CallHooks
from allhands.group.inline import InlineSubmitter
from allhands.group.interfaces import Coalescer, LoopExecutor, Recovery, Submitter
from allhands.options import CallOptions, check_options, read_options
from allhands.runtime import native_core

_ABORT_SECONDS = 1.0


class Group(Collectives[Work], Composed[Work]):
    """A group of ranks; made by `init_process_group`, `new_group` or `aio.connect`."""

    __slots__ = ("order",)  # read by every plain call; the rest is in the dictionary of its bases

    def __init__(
        self,
        engine: GroupEngine,
        thread: LoopExecutor,
        timeout: float,
        recovery: Recovery | None = None,
    ) -> None:
        order = SingleCallNumbering(engine.order) if engine.verifies else engine.order
        self._set_up(
            BegunSubmitter(engine, thread, order),
            InlineSubmitter(engine, thread, order),
            recovery,
            ObjectSerializer(DataclassRegistry()),
            AwaitedSubmitter(engine, thread, order),
        )
        self.timeout = timeout

    def _set_up(
        self,
        submitter: Submitter,
        inline_submitter: Submitter | None,
        recovery: Recovery | None,
        objects: ObjectSerializer,
        awaited_submitter: Submitter | None = None,
    ) -> None:
        """Take the parts of a group; without their own submitters calls take the first."""
        self.base_submitter = self.submitter = submitter
        """`submitter` is `base_submitter`, or where the group has call hooks, one around it."""
        self.inline_submitter = inline_submitter
        self.awaited_submitter = awaited_submitter
        self.order = submitter.order
        """As the plain functions see it: they try its communicator before all else."""
        self.deterministic = submitter.engine.deterministic
        self.recovery = recovery
        self.objects = objects
        self.coalescer: Coalescer[Group] | None = None
        self.call_hooks: CallHooks | None = None
        """The hooks of its world; None: it has no world that could have any."""

    def replace_submitters(self, submitter: Submitter, inline_submitter: Submitter | None) -> None:
        """Let later calls go by other submitters; those being coalesced stay where they are."""
        self.submitter, self.inline_submitter = submitter, inline_submitter
        self.__dict__.pop("here", None)
        self.__dict__.pop("awaited", None)
        if self.coalescer is None:
            self.order = submitter.order

    @property
    def name(self) -> str:
        return self.submitter.engine.name

    @property
    def timeout(self) -> float:
        """Default timeout of calls in seconds; may be set, on each rank separately.

        It applies to later calls. A timedelta is accepted.

        Raises:
            ValueError: not a positive number.
        """
        return self.order.timeout

    @timeout.setter
    def timeout(self, timeout: float | timedelta) -> None:
        self.order.timeout = check_timeout(to_seconds(timeout))

    @functools.cached_property
    def here(self) -> "Group":
        """The same group with calls inline on the caller's thread where possible."""
        return self if self.inline_submitter is None else make_view(self, self.inline_submitter)

    @functools.cached_property
    def awaited(self) -> "Group":
        """The same group for callers on an event loop of their own; itself with call hooks."""
        if self.awaited_submitter is None or self.submitter is not self.base_submitter:
            return self
        return make_view(self, self.awaited_submitter)

    @property
    def parts(self) -> "tuple[Group, ...]":
        """The groups that run the calls: itself, or several for round robin."""
        return (self,)

    @property
    def rank(self) -> int:
        """This process's place in the group."""
        return self.submitter.engine.rank

    @property
    def size(self) -> int:
        return len(self.submitter.engine.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """World rank of each group rank: the values of `src` and `dst` in plain calls.

        In a group that has lost or gained ranks: the group ranks themselves.
        """
        return self.submitter.engine.caller_ranks

    @property
    def sequence(self) -> int:
        """Number of this rank's latest collective; 0 before the first. Messages have no number."""
        return self.order.latest_sequence

    @property
    def members(self) -> tuple[int, ...]:
        """Job rank of each rank of the group: the coordinator's number of its process.

        Equal to the world's ranks until the world has lost or gained ranks.
        """
        return self.submitter.engine.ranks

    @property
    def verify(self) -> bool:
        """Whether data is verified in transit, and results compared (`DataCorrupted`)."""
        return self.submitter.engine.verifies

    @property
    def _link_cost(self) -> LinkCost | None:
        return self.submitter.engine.link_cost

    def explain(self) -> str:
        """Describe the variant of the latest call over shared memory; "": there was none."""
        comm = self.submitter.engine.order.comm
        last = None if comm is None else comm.last_call()
        return self.submitter.engine.explanation if last is None else explanations.explain_shm(last)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    def all_reduce(
        self,
        x: AnyArray | SparseArray,
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> Work:
        """Overwrite `x` on every rank with the combination of all, the same bits everywhere.

        A sparse array, of this package or of SciPy, has new indices and values then, as if all
        were dense: see `all_reduce_sparse`.
        """
        if sparse_array.is_scipy_sparse(x):
            x = sparse_array.ScipySparseArray(x)
        if isinstance(x, SparseArray):
            check_options("all_reduce", options)
            return self.all_reduce_sparse(x, op, **options)
        return super().all_reduce(x, op, **options)

    def all_reduce_init(
        self, x: AnyArray, op: ReduceOp | str = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> PersistentCall:
        """Prepare a persistent `all_reduce` of `x`, without any communication yet."""
        timeout, label = read_options("all_reduce_init", options)
        op = parse_op(op)
        outputs = Outputs()
        check(op, outputs.check(arguments.to_output(x, "x"), "x").dtype)
        own = 0.0 if timeout is None else self.order.resolve_timeout(timeout)

        def make() -> Work:
            links = self.order.links
            begun = None if links is None else links.start_all_reduce(x, op, timeout, label, None)
            return self.all_reduce(x, op, **options) if begun is None else begun

        native, _ = native_core.find()
        route = choose_persistent(x, op, has_core=native is not None)
        if native is None or route is not Route.PERSISTENT or outputs.staging is not None:
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

        Args:
            timeout: seconds; None: the group's.
            wait_all_ranks: name every missing rank in the error, not only the first.

        Raises:
            CollectiveTimeout: a rank was missing at the deadline; the group stays usable.
            PeerFailed, GroupAborted: a rank was lost, or the group was aborted.
        """
        return self.submitter.start_monitored_barrier(timeout, wait_all_ranks, label)

    def abort(self, reason: str) -> None:
        """Abort the group on all ranks: present and future calls raise `GroupAborted`."""
        engine, done = self.submitter.engine, threading.Event()

        def act() -> None:
            engine.abort(reason)
            done.set()

        self.submitter.executor.call(act)
        if not engine.is_on_loop:
            done.wait(_ABORT_SECONDS)

    def send(self, x: AnyArray, dst: int, tag: int = 0, **options: Unpack[CallOptions]) -> Work:
        """Send `x` to rank `dst`; ended when `x` may be changed, received or not.

        Args:
            x: array of any layout and of any dtype without Python objects; only read, and borrowed
                until the work ends.
            dst: rank of the group, other than this one.
            tag: matched with the receive's.

        Raises:
            TypeError, ValueError: an argument does not fit; nothing was sent.
        """
        timeout, label = read_options("send", options)
        source, peer = self.check_send(x, dst, tag)
        return self.submitter.start_p2p("send", source, x, peer, tag, timeout, label)

    def recv(
        self, x: AnyArray, src: int | None = None, tag: int = 0, **options: Unpack[CallOptions]
    ) -> Work:
        """Overwrite `x` with the next message under `tag` from `src`; None: any source.

        Args:
            x: writeable array of the sender's dtype and number of elements; borrowed
                until the work ends.

        Raises:
            TypeError, ValueError: an argument does not fit; nothing was received.

        A work that fails leaves `x` unchanged unless its error's `outputs_intact` is false.
        """
        timeout, label = read_options("recv", options)
        outputs = Outputs()
        target, peer = self.check_recv(x, src, tag, outputs)
        return self.submitter.start_p2p(
            "recv", target, x, peer, tag, timeout, label, outputs.staging
        )

    def check_send(self, x: AnyArray, dst: int, tag: int) -> tuple[Array, int]:
        """Check the arguments of `send`; return the flat array and the job's rank of `dst`."""
        _check_tag(tag)
        source = arguments.check_source(arguments.to_input(x, "x"), "x")
        return source, self._resolve_peer(dst, "dst")

    def check_recv(
        self, x: AnyArray, src: int | None, tag: int, outputs: Outputs | None = None
    ) -> tuple[Array, int | None]:
        """Check the arguments of `recv`; return the flat array and the job's rank of `src`."""
        _check_tag(tag)
        target = (outputs or Outputs()).check(arguments.to_output(x, "x"), "x")
        return target, None if src is None else self._resolve_peer(src, "src")

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group, so that all can `agree` or `shrink`.

        It is `abort` by the name that ULFM gives it.
        """
        self.abort(reason)

    def agree(self, flag: bool = True, *, timeout: CallTimeout = None) -> bool:
        """Return the logical AND of the flags of all present ranks, equal on each.

        A collective call of all present ranks, also in groups that have lost ranks; all get the
        same result even if ranks are lost meanwhile.

        Args:
            timeout: seconds; None: the group's.

        Raises:
            CollectiveTimeout: a present rank did not make the call.
            MembershipChanged: this process is no member any more.
        """
        seconds = self.order.clip_timeout(timeout)
        return self._require_recovery().agree(self.name, flag, seconds)

    def shrink(self, *, timeout: CallTimeout = None) -> "Group":
        """Return a group of the remaining ranks, in order; a collective call of them all.

        Args:
            timeout: seconds; None: the group's.

        Raises:
            CollectiveTimeout: a present rank did not make the call; the group is unchanged.
            MembershipChanged: this process is no member any more.
        """
        seconds = self.order.clip_timeout(timeout)
        return self._make_successor(
            self._require_recovery().shrink(self.name, seconds, self.timeout)
        )

    def grow(self, count: int, *, timeout: CallTimeout = None) -> "Group":
        """Return a group of the remaining ranks and `count` newcomers, once present.

        A collective call of all remaining ranks. Newcomers are processes that join the job
        meanwhile, or wait already; the new group is their world.

        Args:
            count: number of newcomers, at least 1.
            timeout: seconds; None: the group's.

        Raises:
            ValueError: `count` is below 1.
            CollectiveTimeout: a rank did not make the call, or too few newcomers came.
            Refused: the world would exceed the job's `max_size`.
            MembershipChanged: this process is no member any more.
        """
        if count < 1:
            raise ValueError(f"a group grows by at least one rank, not {count}")
        seconds, recovery = self.order.clip_timeout(timeout), self._require_recovery()
        return self._make_successor(recovery.grow(self.name, count, seconds, self.timeout))

    def _require_recovery(self) -> Recovery:
        if self.recovery is None:
            raise RuntimeError(f"{self} has no coordinator that could tell who is left")
        return self.recovery

    def _make_successor(self, engine: GroupEngine) -> "Group":
        """Return a group like this of other ranks."""
        group = Group(engine, self.submitter.executor, self.timeout, self.recovery)
        group.objects = self.objects
        if self.call_hooks is not None:
            self.call_hooks.attach(group)
        return group

    def pass_over(self, reason: str) -> None:
        """Skip a call's number, and notify the peers in that call of `reason`."""
        self.submitter.skip(reason)

    def _start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        return self.submitter.start(call, timeout, label)

    def _start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        return self.submitter.start_composite(composite, timeout, label)

    def _start_custom_reduction(
        self, call: PrimitiveCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        return self.submitter.start_composite(make_custom_reduction(call), timeout, label)

    def _resolve_peer(self, rank: int, name: str) -> int:
        """Return the world's rank of another rank of the group."""
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{name}={rank} is not in {self.name!r}, whose ranks go from 0 to {self.size - 1}"
            )
        if rank == self.rank:
            raise ValueError(f"{name}={rank} is this rank itself: messages go to other ranks")
        return self.submitter.engine.ranks[rank]


def _check_tag(tag: int) -> None:
    if not 0 <= tag < 1 << 31:
        raise ValueError(f"tag must be from 0 to {(1 << 31) - 1}, not {tag}")


def make_view(group: Group, submitter: Submitter) -> Group:
    """Return the same group with another submitter, for blocking calls too."""
    view = copy.copy(group)
    view.__dict__.pop("here", None)
    view.__dict__.pop("awaited", None)
    view.submitter, view.inline_submitter = submitter, None
    return view
