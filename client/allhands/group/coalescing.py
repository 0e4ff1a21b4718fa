"""Coalescing: calls of a group are collected and submitted together."""

import bisect
import functools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from allhands.collectives import coalesced
from allhands.collectives.arguments import AnyArray, get_span
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.reduction import OPS, ReduceOp
from allhands.collectives.request import CollectiveRequest, name_dtype
from allhands.collectives.signature import CallSignature, CoalescedSignature, Result
from allhands.collectives.staging import Staging
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import CallNumbering, CollectingNumbering
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.explanations import CallSummary
from allhands.engine.work.work import Work
from allhands.futures import Future, add_inline_callback
from allhands.group.group import Group, make_view
from allhands.group.interfaces import Submitter
from allhands.runtime import native_core
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import CallCollector, ShmComm


class CallNotSubmitted(RuntimeError):
    """A wait inside a coalescing block for a call submitted at its end."""


class CoalescedWork(Work):
    """Work of a coalesced call, before and after submission."""

    is_submitted = False
    preset_result: Result = None
    """Its result; None: that of the work that carries it out."""
    on_success: Callable[[], None] | None = None
    """What is to be done when it has ended well, before anybody is told so who waits for all."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait as for any work, once the call has been made.

        Raises:
            NotMade: it would not be while this waits.
        """
        if not self.is_submitted:
            raise CallNotSubmitted(
                f"{self.operation} of group {self.group!r} is made at the end of the block of "
                "coalescing(): wait, or call what gives something back, outside of it"
            )
        return super().wait(timeout)

    def attach_to(self, work: Work) -> None:
        """Learn which work carries this call out."""
        self.is_submitted = True
        self.own(work.cancel)

    def complete_from(self, future: "Future[Result]") -> None:
        """Complete with the outcome of another work."""
        if (error := future.exception()) is not None:
            self.fail(error)
        else:
            self.succeed(future.result() if self.preset_result is None else self.preset_result)


@dataclass(slots=True)
class _CoalescedCall:
    """A call with its arguments checked."""

    work: CoalescedWork
    call: PrimitiveCall | CompositeCall
    request: CollectiveRequest
    """Of a composite call: without its arrays."""
    timeout: CallTimeout
    label: str | None

    @property
    def merge_key(self) -> tuple[object, ...]:
        """Key of calls that are merged into one; unique for a call that is not merged."""
        native = self.request
        if (
            isinstance(self.call, CompositeCall)
            or self.call.staging is not None  # which is loaded when the calls before have ended
            or not native.primitive.is_mergeable
        ):
            return (id(self),)
        return (native.kind, native.op, self.timeout, self.label)


class CoalescingSubmitter:
    """Collector of one thread's calls on a group; made by `coalesce`."""

    def __init__(self, group: Group, thread_id: int) -> None:
        self._group, self._order = group, group.order
        self._submitter = group.submitter
        self.executor = self._submitter.executor
        self.order = self._submitter.order
        self._thread_id = thread_id
        self._inline = group.inline_submitter
        self._comm = group.order.comm if isinstance(group.order, CallNumbering) else None
        self.collector = self._make_collector(thread_id)
        """Collects what needs no second look; those calls come before the next of the others."""
        self._calls: list[_CoalescedCall] = []

    def _make_collector(self, thread_id: int) -> "CallCollector | None":
        """Return the native core's collector of plain calls; None: they take no such way."""
        order, (core, _) = self._group.order, native_core.find()
        if core is None or not isinstance(order, CallNumbering) or order.direct_calls is None:
            return None
        made: CallCollector = core.CallCollector(ops=OPS, thread=thread_id)
        return made

    @property
    def engine(self) -> GroupEngine:
        return self._submitter.engine

    @functools.cached_property
    def _view(self) -> Group:
        """The group as it was before, for calls that the collector does not take."""
        view = make_view(self._group, self)
        view.coalescer, view.order = None, self._order
        return view

    def redirect(self) -> Group | None:
        """Return the calling thread's coalescing group; None: not coalescing."""
        return self._view if threading.get_ident() == self._thread_id else None

    def end(self) -> None:
        """Let calls go their ways again."""
        group = self._group
        group.coalescer = None
        group.order = group.submitter.order  # hooks may have come or gone meanwhile

    def run_at_once(self) -> Callable[[], Sequence[Work]] | None:
        """Carry the collected calls out as one on this thread, if they are alike; else None.

        Returns a function that makes the work of each.
        """
        if self.collector is None or self._calls:
            return None
        shapes = self.collector.shapes()
        arrays, op, nbytes = self.collector.take()
        summary: CallSummary | None = None
        if len(arrays) > 1 and nbytes <= coalesced.BUCKET_BYTES:
            if self._comm is not None:
                summary = self._reduce_over_comm(self._comm, arrays, shapes, op)
            elif self._inline is not None and _are_apart(arrays):
                summary = self._reduce_over_links(self._inline, arrays, op)
        if summary is None:
            self._collect_all(arrays, op)
            return None
        made, name = summary, self.engine.name
        return lambda: [CompletedWork(made, None, name, array) for array in arrays]

    def _reduce_over_comm(
        self, comm: "ShmComm", arrays: list[Array], shapes: bytes, op: ReduceOp
    ) -> CallSummary | None:
        """Reduce arrays by one call of the core; None: it is not next in turn, or expired."""
        if (seconds := self.order.clip_timeout(None)) <= 0:
            return None
        due = time.monotonic() + seconds
        call = CoalescedSignature(name_dtype(arrays[0].dtype), shapes, op.name)
        if not comm.all_reduce_coalesced(
            0, arrays, None, op, call, call.operation, seconds, due, None
        ):
            return None
        summary = comm.last_call()
        assert summary is not None, "it has just ended"
        return summary

    def _reduce_over_links(
        self, inline: Submitter, arrays: list[Array], op: ReduceOp
    ) -> CallSummary:
        """Reduce arrays by one call over links, and wait for its end."""
        flat, shapes = [array.reshape(-1) for array in arrays], [array.shape for array in arrays]
        work = inline.start_composite(coalesced.all_reduce(flat, shapes, op, None), None, None)
        work.wait()
        return work.sequence, work.operation, sum(one.nbytes for one in flat), work.explain()

    def submit_all(self, *, waits: bool = False) -> Sequence[Work]:
        """Submit the collected calls; return a work for each, with `waits` ended or not."""
        self._collect_taken()
        batches: list[list[_CoalescedCall]] = []
        written: list[tuple[int, int]] = []
        for one in self._calls:
            is_like = bool(batches) and one.merge_key == batches[-1][0].merge_key
            if not is_like or _overlaps_any(written, one.request):
                batches.append([])
                written = []
            batches[-1].append(one)
            for array in one.request.targets:
                bisect.insort(written, get_span(array))
        submitter = self._submitter
        if waits and len(batches) == 1 and self._inline is not None:
            submitter = self._inline
        for batch in batches:
            self._submit_batch(batch, submitter)
        return [one.work for one in self._calls]

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        return self._collect(call, call.request.call, call.request, timeout, label)

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        request = CollectiveRequest(composite.call.operation)
        return self._collect(composite, composite.call, request, timeout, label)

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        raise RuntimeError("a monitored_barrier waits for all ranks: call it outside of the block")

    def start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        return self._submitter.start_p2p(
            operation, array, result, peer, tag, timeout, label, staging
        )

    def skip(self, reason: str) -> None:
        self._submitter.skip(reason)

    def _collect(
        self,
        call: PrimitiveCall | CompositeCall,
        signature: CallSignature,
        request: CollectiveRequest,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        self._collect_taken()
        self.order.resolve_timeout(timeout)
        name, callbacks = self.engine.name, self.executor.callbacks
        work = CoalescedWork(signature, 0, label, name, callbacks)
        if isinstance(call, PrimitiveCall):
            work.preset_result = call.result
        self._calls.append(_CoalescedCall(work, call, request, timeout, label))
        return work

    def _collect_taken(self) -> None:
        """Collect what the collector has taken, in its order."""
        if self.collector is not None:
            arrays, op, _ = self.collector.take()
            self._collect_all(arrays, op)

    def _collect_all(self, arrays: Sequence[AnyArray], op: ReduceOp) -> None:
        for array in arrays:
            self._view.all_reduce(array, op)

    def _submit_batch(self, batch: Sequence[_CoalescedCall], submitter: Submitter) -> None:
        first = batch[0]
        call: PrimitiveCall | CompositeCall = first.call if len(batch) == 1 else self._merge(batch)
        if isinstance(call, CompositeCall):
            made = submitter.start_composite(call, first.timeout, first.label)
        else:
            made = submitter.start(call, first.timeout, first.label)
        works = [one.work for one in batch]
        for work in works:
            work.attach_to(made)

        def end(future: "Future[Result]") -> None:
            for work in works:
                work.complete_from(future)

        add_inline_callback(made.get_future(), end)

    def _merge(self, batch: Sequence[_CoalescedCall]) -> CompositeCall:
        natives = [one.request for one in batch]
        targets = [native.targets[0] for native in natives]
        shapes = [native.shape or () for native in natives]
        op = natives[0].op or ReduceOp.SUM
        primitive = natives[0].primitive
        match primitive.algorithm:
            case "all_reduce":
                return coalesced.all_reduce(targets, shapes, op, None)
            case "reduce_scatter":
                blocks = [one.sources for one in natives]
                return coalesced.reduce_scatter(targets, blocks, shapes, op, None)
            case "all_gather":
                size = len(self.engine.ranks)
                places = [list(target.reshape(size, -1)) for target in targets]
                sources = [native.sources[0] for native in natives]
                name = f"{primitive.name}_coalesced"
                return coalesced.all_gather(places, sources, shapes, name, None)
        raise ValueError(f"calls of {primitive.name} are not merged")


def coalesce(group: Group, thread_id: int) -> CoalescingSubmitter:
    """Collect the calls that a thread makes on a group by name, until `end` is called.

    Raises:
        RuntimeError: they are collected already.
    """
    if group.coalescer is not None:
        raise RuntimeError(f"calls of group {group.name!r} are being collected already")
    collecting = CoalescingSubmitter(group, thread_id)
    group.coalescer = collecting
    # Nothing goes past it.
    group.order = CollectingNumbering(group.order, collecting.collector)
    return collecting


def _are_apart(arrays: Sequence[Array]) -> bool:
    """Return whether no two arrays share memory."""
    spans = sorted(map(get_span, arrays))
    return all(one[1] <= following[0] for one, following in pairwise(spans))


def _overlaps_any(written_spans: Sequence[tuple[int, int]], request: CollectiveRequest) -> bool:
    """Return whether a call's arrays overlap any of the sorted written memory ranges."""
    for array in (*request.targets, *request.sources):
        start, stop = get_span(array)
        at = bisect.bisect_left(written_spans, (start, start))
        if at < len(written_spans) and written_spans[at][0] < stop and start < stop:
            return True
        if at and written_spans[at - 1][1] > start and start < stop:
            return True
    return False
