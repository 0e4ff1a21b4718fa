"""Group: the ranks that call together, and the collectives that they call.

Every method checks its arguments, takes the next place in the group's order and returns a `Work`
at once; the faces in `api` decide how to wait. Safe from any thread: calls take the order in
which they got their numbers, and every rank must make the same calls in the same order.

Arrays are `numpy.ndarray`s of any shape. What is written must be C-contiguous and writeable; what
is only read may be anything, and is copied first where it is not contiguous or shares memory with
what is written. Until a call has ended its arrays belong to it. Ranks here are ranks of the group.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

import numpy as np

from allhands import native_core
from allhands.callbacks import Callbacks
from allhands.deadlines import effective
from allhands.engine import arguments, explain, plan, verdict
from allhands.engine.arguments import AnyArray
from allhands.engine.buffer import Array
from allhands.engine.call import Call
from allhands.engine.exchange import Exchange, named
from allhands.engine.executor import Part
from allhands.engine.group_engine import GroupEngine, Meeting, Operation
from allhands.engine.native import Native
from allhands.engine.order import Careful
from allhands.engine.persistent import PersistentCall, Queued
from allhands.engine.work import Result, Work
from allhands.reduction import ReduceOp, check, finish
from allhands.timeout import seconds

Timeout = float | None

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


class Group:
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
        """Whether reductions over links give the bits that they give over shared memory."""
        self.timeout = timeout

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
        return _Here(self._engine, self._thread, self.timeout, self._recovery)

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

    def explain(self) -> str:
        """Say how the latest call that shared memory helped was carried out; "": there was none."""
        lane = self._engine.order.lane
        last = None if lane is None else lane.last()
        return self._engine.explanation if last is None else explain.shared(last)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, rank {self.rank} of {self.size})"

    # ------------------------------------------------------------ whole arrays

    def broadcast(
        self, x: AnyArray, src: int, *, timeout: Timeout = None, label: str | None = None
    ) -> Work:
        """Overwrite `x` with that of rank `src`; equal dtypes and sizes."""
        array = arguments.target(x, "x")
        root = self._member(src, "src")
        native = Native("broadcast", array.dtype, array.size, targets=[array], root=root)
        return self._start(
            native,
            lambda rank, size: plan.broadcast(rank, size, array, root, self._engine.wire),
            x,
            timeout,
            label,
        )

    def all_reduce(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` on every rank with the combination of all, the same bits everywhere."""
        array = arguments.target(x, "x")
        check(op, array.dtype)
        native = Native("all_reduce", array.dtype, array.size, targets=[array], op=op)
        return self._start(
            native,
            lambda rank, size: plan.all_reduce(
                rank, size, array, self.deterministic, self._engine.wire
            ),
            x,
            timeout,
            label,
        )

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
        if native is None or type(x) is not np.ndarray:
            return Queued(make)
        call: PersistentCall = native.Persistent(self.order, x, op, make, own, label)
        return call

    def reduce(
        self,
        x: AnyArray,
        dst: int,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` on rank `dst` with the combination of all; elsewhere it is only read."""
        root = self._member(dst, "dst")
        is_root = root == self.rank
        array = arguments.target(x, "x") if is_root else arguments.source(x, "x")
        check(op, array.dtype)
        target = array if is_root else None
        native = Native(
            "reduce", array.dtype, array.size, [array], [array] if is_root else [], op, root
        )
        return self._start(
            native,
            lambda rank, size: plan.reduce(rank, size, array, target, root, self.deterministic),
            x if is_root else None,
            timeout,
            label,
        )

    # ------------------------------------------------------------ blocks

    def gather(
        self,
        x: AnyArray,
        gather_list: list[AnyArray] | None,
        dst: int,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Fill `gather_list` on rank `dst` with every rank's `x`; None elsewhere."""
        root = self._member(dst, "dst")
        targets = self._only_at(root, gather_list, "gather_list", arguments.targets)
        source = arguments.source(x, "x", targets)
        self._blocks(targets, "gather_list", source, "x")
        native = Native("gather", source.dtype, source.size, [source], targets, root=root)
        return self._start(
            native,
            lambda rank, size: plan.gather(rank, size, source, targets, root),
            gather_list,
            timeout,
            label,
        )

    def scatter(
        self,
        x: AnyArray,
        scatter_list: list[AnyArray] | None,
        src: int,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `x` with this rank's array of the `scatter_list` on `src`; None elsewhere."""
        root = self._member(src, "src")
        target = arguments.target(x, "x")
        sources = self._only_at(
            root,
            scatter_list,
            "scatter_list",
            lambda given, name, size: arguments.sources(given, name, size, [target]),
        )
        self._blocks(sources, "scatter_list", target, "x")
        native = Native("scatter", target.dtype, target.size, sources, [target], root=root)
        return self._start(
            native,
            lambda rank, size: plan.scatter(rank, size, sources, target, root),
            x,
            timeout,
            label,
        )

    def all_gather(
        self,
        outputs: list[AnyArray],
        x: AnyArray,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Fill `outputs`, one array for each rank, with every rank's `x`."""
        targets = arguments.targets(outputs, "outputs", self.size)
        source = arguments.source(x, "x", targets)
        self._blocks(targets, "outputs", source, "x")
        native = Native("all_gather", source.dtype, source.size, [source], targets)
        return self._start(
            native,
            lambda rank, size: plan.all_gather(rank, size, source, targets, self._engine.wire),
            outputs,
            timeout,
            label,
        )

    def all_gather_into_tensor(
        self, output: AnyArray, x: AnyArray, *, timeout: Timeout = None, label: str | None = None
    ) -> Work:
        """Fill `output`, `size` times as long as `x`, with every rank's `x`, by rank.

        Its shape may be that of `x` stacked or concatenated, or any other of that many elements.
        """
        target = arguments.target(output, "output")
        source = arguments.source(x, "x", [target])
        self._whole(target, "output", source, "x")
        native = Native("all_gather_into_tensor", source.dtype, source.size, [source], [target])
        return self._start(
            native,
            lambda rank, size: plan.all_gather(rank, size, source, [target], self._engine.wire),
            output,
            timeout,
            label,
        )

    def reduce_scatter(
        self,
        output: AnyArray,
        inputs: list[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `output` with the combination of what all ranks hold in `inputs[rank]`."""
        target = arguments.target(output, "output")
        sources = arguments.sources(inputs, "inputs", self.size, [target])
        self._blocks(sources, "inputs", target, "output")
        return self._reduce_scatter("reduce_scatter", output, target, sources, op, timeout, label)

    def reduce_scatter_tensor(
        self,
        output: AnyArray,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Overwrite `output` with this rank's share of the combination of every rank's `x`."""
        target = arguments.target(output, "output")
        source = arguments.source(x, "x", [target])
        self._whole(source, "x", target, "output")
        sources = [source[at * target.size : (at + 1) * target.size] for at in range(self.size)]
        return self._reduce_scatter(
            "reduce_scatter_tensor", output, target, sources, op, timeout, label
        )

    def all_to_all(
        self,
        outputs: list[AnyArray],
        inputs: list[AnyArray],
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Give `inputs[j]` to rank j and fill `outputs[j]` with what it gives; sizes may differ."""
        targets = arguments.targets(outputs, "outputs", self.size)
        sources = arguments.sources(inputs, "inputs", self.size, targets)
        for at, array in enumerate([*targets, *sources]):
            name = f"outputs[{at}]" if at < self.size else f"inputs[{at - self.size}]"
            arguments.same_dtype(targets[0], "outputs[0]", array, name)
        self._own_block(targets, sources)
        send, recv = [array.size for array in sources], [array.size for array in targets]
        return self._all_to_all("all_to_all", outputs, sources, targets, send, recv, timeout, label)

    def all_to_all_single(
        self,
        output: AnyArray,
        x: AnyArray,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        label: str | None = None,
    ) -> Work:
        """Give rank j its rows of `x` and fill this rank's rows of `output` with its own.

        Args:
            output_split_sizes: rows (of dimension 0) that come from each rank; None: equal shares.
            input_split_sizes: rows that go to each rank; None: equal shares.
        """
        if isinstance(x, np.ndarray) and not x.flags.c_contiguous:
            raise ValueError("Tensors must be contiguous: x is not C-contiguous")
        target = arguments.target(output, "output")
        source = arguments.source(x, "x", [target])
        arguments.same_dtype(target, "output", source, "x")
        recv = self._rows(output, output_split_sizes, "output_split_sizes")
        send = self._rows(x, input_split_sizes, "input_split_sizes")
        if send[self.rank] != recv[self.rank]:
            raise ValueError(
                f"this rank gives itself {send[self.rank]} elements and expects {recv[self.rank]}"
            )
        return self._all_to_all(
            "all_to_all_single", output, [source], [target], send, recv, timeout, label
        )

    def barrier(self, *, timeout: Timeout = None, label: str | None = None) -> Work:
        """End when every rank has called it; calls before it have ended by then."""
        return self._start(Native("barrier"), plan.barrier, None, timeout, label)

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
            operation = self._numbered(
                Native("barrier"), call, lambda rank, size: [], None, seconds, label
            )
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
        source = arguments.source(x, "x")
        peer = self._peer(dst, "dst")
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
        target = arguments.target(x, "x")
        peer = None if src is None else self._peer(src, "src")
        return self._exchange("recv", target, x, peer, tag, timeout, label)

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
        return self._recover().shrink(self.name, self._seconds(timeout), self.timeout)

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
        return self._recover().grow(self.name, count, self._seconds(timeout), self.timeout)

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

    def _reduce_scatter(
        self,
        operation: str,
        output: AnyArray,
        target: Array,
        sources: Sequence[Array],
        op: ReduceOp,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        check(op, target.dtype)
        native = Native(operation, target.dtype, target.size, sources, [target], op)
        return self._start(
            native,
            lambda rank, size: plan.reduce_scatter(rank, size, sources, target, self.deterministic),
            output,
            timeout,
            label,
        )

    def _all_to_all(
        self,
        operation: str,
        output: Result,
        sources: Sequence[Array],
        targets: Sequence[Array],
        send: Sequence[int],
        recv: Sequence[int],
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        dtype = targets[0].dtype
        native = Native(operation, dtype, 0, sources, targets, send=send, recv=recv)
        if self.size == 2:
            here, there = send[1 - self.rank], recv[1 - self.rank]
            crossing = (here, there) if self.rank == 0 else (there, here)
            native = replace(native, crossing=crossing)
        return self._start(
            native,
            lambda rank, size: plan.all_to_all(rank, size, sources, targets, send, recv, dtype),
            output,
            timeout,
            label,
        )

    def _start(
        self,
        native: Native,
        build: Callable[[int, int], list[Part]],
        result: Result,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        """Give a checked call its number and hand it to the loop, in one step."""
        seconds = self._seconds(timeout)
        call = native.call
        with self.order.lock:
            operation = self._numbered(native, call, build, result, seconds, label)
            if seconds <= 0:  # its number is used up, as on the other ranks
                operation.cancelled = True
                operation.work.fail(
                    verdict.over_before(repr(operation.work), operation.work, seconds)
                )
            self._hand_over(operation.work, self._engine.submit, self._engine.cancel, operation)
        return operation.work

    def _numbered(
        self,
        native: Native,
        call: Call,
        build: Callable[[int, int], list[Part]],
        result: Result,
        seconds: float,
        label: str | None,
    ) -> Operation:
        """Give a call its number, with the order's lock held."""

        work = Work(call, self.order.take(), label, self.name, self._thread.callbacks)
        work.entry = self._engine.recording.asked(
            call.operation, work.sequence, native.nbytes, call, label
        )

        def finish_links() -> None:
            if native.op is not None and native.targets and not self.deterministic:
                finish(native.op, native.targets[0], self.size)

        return Operation(
            work,
            call,
            native,
            lambda: build(self.rank, self.size),
            native.op or ReduceOp.SUM,
            finish_links,
            result,
            seconds,
            time.monotonic() + seconds,
        )

    def _exchange(
        self,
        operation: str,
        array: Array,
        result: AnyArray,
        peer: int | None,
        tag: int,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        if not 0 <= tag < 1 << 31:
            raise ValueError(f"tag must be from 0 to {(1 << 31) - 1}, not {tag}")
        seconds = self._seconds(timeout)
        call = Call("message", str(array.dtype), array.size)
        work = Work(Call(operation), 0, label, self.name, self._thread.callbacks)
        work.entry = self._engine.recording.message(operation, array.nbytes, call, peer, tag, label)
        if seconds <= 0:
            what = named(operation, self.ranks, peer, tag)
            work.fail(verdict.over_before(what, work, seconds))
            return work
        exchange = Exchange(
            work, call, array, result, peer, tag, seconds, time.monotonic() + seconds
        )
        if (mailing := self.order.mailing) is None or not mailing.begin(exchange):
            messages = self._engine.messages
            with self.order.lock:
                if (late := self.order.mailing) is None or late is mailing:
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

    def _member(self, rank: int, name: str) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(
                f"invalid root rank: {name}={rank} is not in {self.name!r}, "
                f"whose ranks go from 0 to {self.size - 1}"
            )
        return rank

    def _peer(self, rank: int, name: str) -> int:
        """Return the world's rank of another rank of the group."""
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{name}={rank} is not in {self.name!r}, whose ranks go from 0 to {self.size - 1}"
            )
        if rank == self.rank:
            raise ValueError(f"{name}={rank} is this rank itself: messages go to other ranks")
        return self._engine.ranks[rank]

    def _only_at(
        self,
        root: int,
        given: list[AnyArray] | None,
        name: str,
        check_list: Callable[[object, str, int], list[Array]],
    ) -> list[Array]:
        """Check a list of arrays that only the root gives."""
        if root == self.rank:
            if given is None:
                raise ValueError(f"{name} is needed on rank {root}, where it is used")
            return check_list(given, name, self.size)
        if given:
            raise ValueError(f"{name} is for rank {root} alone: pass None on rank {self.rank}")
        return []

    def _blocks(self, many: Sequence[Array], many_name: str, one: Array, one_name: str) -> None:
        """Check that every array of a list is like the single one."""
        names = [one_name, *(f"{many_name}[{at}]" for at in range(len(many)))]
        arguments.alike([one, *many], names)

    def _whole(self, long: Array, long_name: str, short: Array, short_name: str) -> None:
        arguments.same_dtype(long, long_name, short, short_name)
        if long.size != short.size * self.size:
            raise ValueError(
                f"{long_name} has {long.size} elements; {self.size} ranks times the "
                f"{short.size} of {short_name} are {short.size * self.size}"
            )

    def _own_block(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        send, recv = sources[self.rank].size, targets[self.rank].size
        if send != recv:
            raise ValueError(
                f"this rank gives itself {send} elements in inputs[{self.rank}] and expects "
                f"{recv} in outputs[{self.rank}]"
            )

    def _rows(self, array: AnyArray, given: Sequence[int] | None, name: str) -> list[int]:
        """Turn split sizes in rows into counts of elements."""
        if array.ndim == 0:
            raise ValueError("all_to_all_single splits dimension 0: a 0-d array has none")
        rows = arguments.splits(given, name, array.shape[0], self.size)
        width = array.size // array.shape[0] if array.shape[0] else 0
        return [count * width for count in rows]


def _checked(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    return timeout


class _Here(Group):
    """A group for callers that wait anyway."""

    def _start(
        self,
        native: Native,
        build: Callable[[int, int], list[Part]],
        result: Result,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        lane = self.order.lane
        seconds = self._seconds(timeout)
        if seconds <= 0:
            return super()._start(native, build, result, timeout, label)
        if lane is not None:
            if native.run(lane, 0, seconds, time.monotonic() + seconds, label):
                work = Work(native.call, self.order.taken, label, self.name)
                work.explained(self.explain())
                work.succeed(result)
                return work
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
            except BaseException:  # Ctrl-C came meanwhile
                for work in begun:
                    work.abandon()
                raise
        return super()._start(native, build, result, timeout, label)
