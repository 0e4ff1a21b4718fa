"""Plain collectives over links, on their callers' threads.

The native core borrows the event loop for each, as `runtime.loop_thread` has it, and carries out a
schedule that was compiled for arguments like these. A call that it declines goes the checked way; a
call that does not end there within moments goes on in the queue, from the round that it is in.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeState, Step, StepBuilder
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.two_level_plan import TwoLevelPlan, join_adjacent
from allhands.engine.context import EngineContext
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.hosts.two_level import TwoLevelCalls
from allhands.engine.link_calls import LinkCalls
from allhands.engine.links.native_calls import CompiledCall, NativeCall, NativeCalls, list_areas
from allhands.engine.links.output_guard import (
    STAGED_BYTES,
    EvenExchange,
    StagingBuffer,
    align,
    guard_outputs,
)
from allhands.engine.links.part_runner import ARRIVAL_PART
from allhands.engine.operation import Operation
from allhands.engine.queue import CallQueue
from allhands.engine.result_check import COMPARISON_PART, ResultCheck
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.work import Work
from allhands.runtime import native_core
from allhands.runtime.loop_thread import LoopThread
from allhands.runtime.termination import get_cancel_reason
from allhands.transport.lent_links import LentLinks
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import ComparisonRow, LinkCollectives, Piece, PlanRow

_STAGING, _SCRATCH = -1, -2
"""Memory of a piece, beside the arrays of the call; as the core numbers it."""

ComparisonProgress: TypeAlias = "tuple[CompiledCall, bool, NDArray[np.uint64], NDArray[np.uint64]]"
"""The exchange of digests, and whether it goes on; this rank's digest, and those that have come."""
CallProgress: TypeAlias = "tuple[CompiledCall, bytes | None, ComparisonProgress | None]"
"""A call's schedule; its staged outputs, None: it has ended; then the comparison, if it began."""


@dataclass(slots=True)
class FirstStep:
    """The first step of a composite call that the core makes as if it was the call."""

    state: CompositeState
    call: CallSignature
    """Of the composite call, with its label."""
    may_run: Callable[[CollectiveRequest], bool]
    """Whether a later step may run on this thread."""
    seconds: float
    """How long each of them may take there."""
    operation: Operation | None = None
    """The call, once it goes on elsewhere."""

    def has_more(self) -> bool:
        """Say whether there is a later step; asked once the first has ended."""
        return self.state.has_more()

    @property
    def has_ended(self) -> bool:
        """Whether all steps have ended, and the call is to be finished by its caller."""
        return self.operation is not None and self.operation.awaits_finish


_SOON_SECONDS = 0.0002
"""Between the begin of the last of some calls and the wait for one of them, where the thread does
nothing else meanwhile."""
_PREPARED_CALLS = 256
"""Calls whose messages are put back at once: peers may be thousands of calls ahead."""
_LAST_CALL = (1 << 63) - 1
"""Where nothing is left of later calls either: nothing comes to them as long as the loop does not
run. To prepare takes 0.3 ms, in which the other ranks wait."""


@dataclass(frozen=True, slots=True)
class DirectCallParts:
    """Parts of a group's engine that direct calls work with."""

    context: EngineContext
    link_calls: LinkCalls
    queue: CallQueue
    lent_links: LentLinks
    native_calls: NativeCalls
    is_plain: Callable[[], bool]
    """Whether calls go over links, and nothing speaks against that."""
    has_phases: Callable[[CollectiveRequest], bool]
    """Whether a call is made in phases, within hosts and between them."""
    find_failure: Callable[[int], ErrorFactory | None]
    """Why a call cannot succeed, if that is known."""
    result_check: ResultCheck | None
    """Of a group that verifies."""


class DirectCalls:
    """The owner of a group's `LinkCollectives`: what the core cannot do by itself."""

    def __init__(self, thread: LoopThread, parts: DirectCallParts) -> None:
        core, _ = native_core.find()
        assert core is not None, "links are lent to the native core only"
        context = parts.context
        self._thread = thread
        self._parts = parts
        self._links = parts.lent_links
        self._context = context
        self._link_cost = parts.link_calls.link_cost
        self.native: LinkCollectives = core.LinkCollectives(
            thread=thread,
            owner=self,
            order=context.order,
            progress=context.progress,
            group=context.hash,
            signatures=self._links.get_own_signatures(context.hash),
            calls=context.failures.own_calls,
            completed=self._links.completed_calls,
            note_duration=context.failures.durations.append,
            checksum=None if parts.result_check is None else parts.result_check.checksum,
            rank=context.rank,
            size=len(context.ranks),
            records=context.recorder.size,
        )

    # ------------------------------------------------------------ for the core

    def take_loop(self) -> bool:
        """Have the thread hand the loop over."""
        return self._thread.take_loop()

    def prepare(self) -> bool:
        """Say whether calls may go by the core until the loop runs again."""
        parts, context = self._parts, self._context
        with self._thread.enter():
            if (
                not parts.is_plain()
                or not parts.queue.is_idle
                or context.mesh.is_asked_for(context.hash)
                or not context.failures.is_quiet
                or not (parts.result_check is None or parts.result_check.is_quiet)
            ):
                return False
            if self._link_cost != parts.link_calls.link_cost:
                self._link_cost = parts.link_calls.link_cost
                self.native.forget_plans()
            self._links.lend_all(context.failures.has_left)
            last = context.progress.last_ended
            sequences = self._links.limit_early(
                context.hash, range(last + 1, last + 1 + _PREPARED_CALLS)
            )
            if not sequences or not self._links.take_calls(context.hash, sequences):
                return False
            has_later = self._links.has_early(context.hash)
            self.native.prepared = sequences.stop - 1 if has_later else _LAST_CALL
            return True

    def compile(self, kind: str, arguments: Sequence[object]) -> "PlanRow | Literal[False] | None":
        """Compile the plan of calls with such arguments; None: there is none. False: not yet."""
        with self._thread.enter():
            arguments = [*map(_take_apart, arguments)]
            # Written ones come first in the core.
            ordered = reversed(arguments[:2]) if kind == "gather" else arguments
            call = _CallArrays(list(_list_arrays(ordered)))
            if kind == "reduce_scatter":
                call.join_inputs()
                arguments[1] = list(call.joined)
            try:
                step = self._build(kind, arguments)
            except (TypeError, ValueError):
                return False  # the checked way says what is wrong
            if step.substeps is not None:
                return None
            check = self._parts.result_check
            if check is not None and len(call.arrays) > 2:
                return None  # the core compares one output
            row = self._compile_call(step, call)
            if not row or check is None:
                return row
            comparison = self._compile_comparison(check, step.request)
            return (*row[:-1], comparison) if comparison else comparison

    def _compile_call(self, step: Step, call: "_CallArrays") -> "PlanRow | Literal[False] | None":
        """Compile the plan of a call, without a comparison of results."""
        context, link_calls = self._context, self._parts.link_calls
        request, size = step.request, len(context.ranks)
        two_level = link_calls.two_level
        if two_level is not None and two_level.applies_to(request):
            return self._compile_two_level(two_level, request, call)
        if request.primitive.has_splits:
            return self._compile_exchange(step, call)
        if not link_calls.goes_unasked(request) or self._parts.has_phases(request):
            return None
        parts = step.build(context.rank, size)
        staging = StagingBuffer()
        guard = guard_outputs(request, context.rank, size, parts, staging, self._link_cost)
        if guard.arrival_check is not None or len(guard.parts) != 1:
            return None
        if not guard.parts[0].has_whole_spans:
            return None  # the core addresses memory by spans
        compiled = self._parts.native_calls.find(guard.parts[0], request.op, request.call.signature)
        if compiled is None:
            return False  # there may be a link later
        own, guarded = parts[0], guard.parts[0]
        return _make_row(
            _PlanSource(call, staging, compiled),
            request,
            guarded.input.arrays,
            guarded.output.arrays,
            guard.staged,
            link_calls.explain(own.name),
            loads=request.primitive.is_in_place and not request.primitive.is_rooted,
            divides=not request.is_ordered(size, context.deterministic),
            is_agreed=link_calls.is_agreed(request, request.call.signature),
        )

    def _compile_exchange(
        self, step: Step, call: "_CallArrays"
    ) -> "PlanRow | Literal[False] | None":
        """Compile the plan of an all_to_all of blocks of one size likewise."""
        request, size, rank = step.request, len(self._context.ranks), self._context.rank
        if request.nbytes > STAGED_BYTES or self._parts.has_phases(request):
            return None
        parts, number = step.build(rank, size), 0
        guard = guard_outputs(request, rank, size, parts, staging := StagingBuffer())
        exchange = None if guard.describe is None else guard.describe()
        if exchange is not None and guard.arrival_check is not None:
            moved, number = guard.arrival_check.part, ARRIVAL_PART
        elif guard.arrival_check is None:
            [moved] = guard.parts  # of two ranks, which agree on their sizes
        else:
            return None
        compiled = self._parts.native_calls.find(moved, None, request.call.signature, number)
        if compiled is None:
            return False  # there may be a link later
        return _make_row(
            _PlanSource(call, staging, compiled),
            request,
            moved.input.arrays,
            moved.output.arrays,
            () if exchange is None else exchange.taken,
            self._parts.link_calls.explain(parts[0].name),
            loads=False,
            divides=False,
            is_agreed=True,
            exchange=exchange,
        )

    def _compile_comparison(
        self, check: ResultCheck, request: CollectiveRequest
    ) -> "ComparisonRow | Literal[False] | None":
        """Compile the comparison of results; None: that is not possible. False: not yet."""
        native_calls, signature = self._parts.native_calls, request.call.signature
        exchange = check.plan_exchange()
        if isinstance(exchange.plan, TwoLevelPlan):
            calls = check.two_level
            assert calls is not None, "the exchange is planned with them"
            if not calls.is_in_memory:
                return False if calls.may_be_in_memory else None
            board = calls.board.native
            compiled = native_calls.find_two_level(exchange.plan, board, signature, COMPARISON_PART)
        else:
            compiled = native_calls.find(exchange.plan, None, signature, COMPARISON_PART)
        if compiled is None:
            return False  # there may be a link later
        is_same = request.primitive.has_same_result and bool(request.targets)
        return (
            compiled.call,
            compiled,
            compiled.peers,
            exchange.mine,
            exchange.digests,
            compiled.scratch,
            is_same,
        )

    def _compile_two_level(
        self,
        calls: TwoLevelCalls,
        request: CollectiveRequest,
        call: "_CallArrays",
    ) -> "PlanRow | Literal[False] | None":
        link_calls = self._parts.link_calls
        if not calls.is_in_memory:
            return False if calls.may_be_in_memory else None
        plan = calls.plan(request, (staging := StagingBuffer()).allocate_views, self._link_cost)
        compiled = self._parts.native_calls.find_two_level(
            plan, calls.board.native, request.call.signature
        )
        if compiled is None:
            return False  # there may be a link later
        return _make_row(
            _PlanSource(call, staging, compiled),
            request,
            *list_areas(plan),
            plan.staged,
            link_calls.explain_two_level(plan),
            loads=False,
            divides=True,
            is_agreed=link_calls.is_agreed(request, request.call.signature),
        )

    def deliver(self, rank: int, frame: bytes, compiled: CompiledCall) -> bool:
        """Pass a frame on that is not of the call; say whether the call may go on by the core."""
        with self._thread.enter():
            self._thread.turns += 1
            self._links.deliver(rank, frame)
            sequence = self._context.order.last_number
            is_well = self._parts.find_failure(sequence) is None
            return is_well and self._links.are_lendable(compiled.peers)

    def take_back(self, rank: int) -> None:
        """Look after the credit and what was read ahead of a rank of the world."""
        with self._thread.enter():
            self._thread.turns += 1
            self._links.take_back([rank])

    def send_rest(self, rank: int) -> None:
        """Send the rest of a frame to a rank of the world."""
        with self._thread.enter():
            self._thread.turns += 1
            self._links.send_kept_rest(rank)

    def hand_over(
        self,
        kind: str,
        arguments: Sequence[object],
        sequence: int,
        progress: "CallProgress",
        how: str,
        timeout: float,
        began: float,
        waits: bool,
        result: Result,
        label: str | None,
    ) -> Work:
        """Let the loop go on with a call; return its work, whose result is to be `result`.

        `waits` tells whether the caller waits for its end.
        """
        with self._thread.enter():
            self._thread.turns += 1
            first = result if isinstance(result, FirstStep) else None
            step = self._build(kind, arguments) if first is None else first.state.get_first()
            signature = step.request.call.with_label(label) if first is None else first.call
            context, queue = self._context, self._parts.queue
            callbacks = self._thread.callbacks
            work = Work(signature, sequence, label, context.name, callbacks)
            work.waiting_thread = threading.get_ident() if waits else 0
            work.entry = context.recorder.record_call(
                signature.operation, sequence, step.request.nbytes, signature, label
            )
            operation = Operation(
                work, signature, step.request, step.build, result, timeout, began + timeout
            )
            if first is not None:
                operation.result, operation.composite_state = None, first.state
                first.operation = operation
            work.explained(how)
            work.own(lambda: self._thread.call(queue.cancel, operation))
            context.order.adopt(work)
            self._go_on(operation, first, *progress)
            # After another borrower the thread may leave the loop alone for a while.
            wake = self._thread.help_waiting
            if waits or first is not None:
                work.helped(wake)
            else:
                hold_if_waiting(self.native, work, wake)
            return work

    def _go_on(
        self,
        operation: Operation,
        first: FirstStep | None,
        compiled: CompiledCall,
        staged: bytes | None,
        comparison: "ComparisonProgress | None",
    ) -> None:
        queue, links = self._parts.queue, self._links
        if staged is not None:
            queue.go_on(operation, NativeCall(links, compiled), staged)
            return
        links.take_back(compiled.peers)
        if first is not None:
            queue.run_later_steps(operation, first.may_run, first.seconds)
            return
        if comparison is None:
            queue.compare(operation)
            return
        exchange, goes_on, mine, digests = comparison
        if not goes_on:
            links.take_back(exchange.peers)
        left = NativeCall(links, exchange) if goes_on else None
        queue.go_on_comparing(operation, mine.copy(), digests.copy(), left)

    def is_on_event_loop(self) -> bool:
        """Say whether an event loop runs on this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def is_agreed(self, signature: int) -> bool:
        """Say whether a rooted composite call need not hear from all ranks beside its messages."""
        return signature in self._parts.link_calls.agreed_signatures

    def sign(self, call: CallSignature, label: str) -> tuple[CallSignature, int] | Literal[False]:
        """Return how a call travels under a label; False: a rooted one that is yet to be agreed."""
        signed, request = call.with_label(label), CollectiveRequest(call.operation)
        if not self._parts.link_calls.is_agreed(request, signed.signature):
            return False
        return signed, signed.signature

    def make_completed_work(self, result: Result, label: str | None) -> Work:
        """Return the work of the call that has just ended."""
        return CompletedWork.from_comm(self.native, label, self._context.name, result)

    def abandon(self, work: Work, interruption: type[BaseException]) -> None:
        """End a call that was handed over; the exception goes to its caller."""
        work.abandon(get_cancel_reason(interruption.__name__))

    def wait(self, work: Work) -> None:
        """Wait for a call that was handed over; any other exception than its own ends the call."""
        try:
            work.wait()
        except BaseException as error:
            if work.exception() is not error:
                self.abandon(work, type(error))
            raise

    def _build(self, kind: str, arguments: Sequence[object]) -> Step:
        context = self._context
        builder = StepBuilder(
            context.name,
            context.rank,
            len(context.ranks),
            context.deterministic,
            self._parts.link_calls.link_cost,
        )
        step: Step = getattr(builder, kind)(*arguments)
        return step


class _CallArrays:
    """The arrays of a call, the written ones first."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        self.joined: Array = np.empty(0)
        """Memory for all inputs of a list, end to end, from which the call reads them then."""

    def join_inputs(self) -> None:
        """Have the inputs behind the one output read from memory where they lie end to end."""
        first = self.arrays[1]
        self.joined = np.empty((len(self.arrays) - 1, *first.shape), first.dtype)

    def list_joined(self) -> list[tuple[Array, Array]]:
        """Return the places there, and the inputs that are to be copied to them."""
        inputs = self.arrays[1:] if len(self.joined) else ()
        return list(zip(self.joined, inputs, strict=True))


@dataclass(frozen=True, slots=True)
class _PlanSource:
    """The memory in which the areas of a plan lie."""

    call: _CallArrays
    staging: StagingBuffer
    compiled: CompiledCall

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging memory, inputs that are joined behind all else."""
        return align(self.staging.memory.nbytes) + self.call.joined.nbytes

    def locate(self, array: Array) -> "Piece":
        """Return where the bytes of an array are."""
        if array.nbytes == 0:
            return _STAGING, 0, 0
        staging, joined = self.staging.memory, self.call.joined
        for place, start, memory in (
            *((place, 0, one) for place, one in enumerate(self.call.arrays)),
            (_STAGING, 0, staging),
            (_STAGING, align(staging.nbytes), joined),
        ):
            offset = _address(array) - _address(memory)
            if offset >= 0 and offset + array.nbytes <= memory.nbytes:
                return place, start + offset, array.nbytes
        raise ValueError("an array of a plan is none of its call's")

    def locate_pairs(
        self, pairs: Iterable[tuple[Array, Array]]
    ) -> "tuple[tuple[Piece, Piece], ...]":
        """Return likewise where staged arrays are, and those that they stand for."""
        return tuple(
            (self.locate(room), self.locate(array)) for room, array in pairs if array.nbytes
        )


def _make_row(
    source: _PlanSource,
    request: CollectiveRequest,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    staged: Sequence[tuple[Array, Array]],
    how: str,
    *,
    loads: bool,
    divides: bool,
    is_agreed: bool,
    exchange: EvenExchange | None = None,
) -> "PlanRow":
    """Return the row of a plan without a comparison; `divides` where an average is to be divided.

    `is_agreed` tells of calls without a label, see `LinkCalls.is_agreed`.
    """
    scratch = source.compiled.scratch
    loaded, heads = source.locate_pairs(source.call.list_joined()), None
    if exchange is not None:
        loaded = source.locate_pairs(exchange.given)
        heads = exchange.head, tuple(map(source.locate, exchange.heads))
    return (
        source.compiled.call,
        source.compiled,
        request.call,
        request.call.signature,
        how,
        scratch,
        source.compiled.peers,
        tuple(map(source.locate, join_adjacent(inputs))),
        tuple(map(source.locate, outputs)),
        ((_SCRATCH, 0, scratch.nbytes),),
        source.staging_bytes,
        source.locate_pairs(staged),
        loaded,
        loads,
        divides and request.op is ReduceOp.AVG and bool(request.targets),
        is_agreed,
        heads,
        None,
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _take_apart(argument: object) -> object:
    """Return arrays like those of a list, no two of which are the same, as those may be.

    A plan is for any arrays like these, and knows each by its place in memory.
    """
    if not isinstance(argument, tuple):
        return argument
    return tuple(np.empty(one.shape, one.dtype) for one in argument)


def _list_arrays(arguments: Iterable[object]) -> Iterator[Array]:
    """Yield the arrays among arguments, those of lists too, in the order of the core."""
    for one in arguments:
        if isinstance(one, np.ndarray):
            yield one
        elif isinstance(one, tuple):
            yield from one


def hold_if_waiting(links: "LinkCollectives", work: Work, wait: Callable[[float], bool]) -> None:
    """Have a thread held in its next calls, if it waits for this one as soon as all are begun.

    It loses nothing by that, as long as it does nothing else between them. Who goes on with a call
    elsewhere comes later to the next one, for which its peers have gone on elsewhere by then: they
    would miss each other for ever.

    Args:
        wait: as `Work.helped` has it, for the work.
    """
    links.soon_waiting, links.begun_at = 0, time.monotonic()

    def note(seconds: float) -> bool:
        if seconds > 0:
            work.helped(wait)
            if time.monotonic() - links.begun_at < _SOON_SECONDS:
                links.soon_waiting = threading.get_ident()
        return wait(seconds)

    work.helped(note)
