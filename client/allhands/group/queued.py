"""Submission of calls by number: each takes the next one, and runs when its turn comes."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from allhands.collectives import plan
from allhands.collectives.composite_call import CompositeCall, CompositeState, StepBuilder
from allhands.collectives.part import Part
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature
from allhands.engine.failures import call_errors
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import CallNumbering, Numbering, SingleCallNumbering
from allhands.engine.operation import MonitoredBarrierCall, Operation
from allhands.engine.routes import Caller, Route, list_starts
from allhands.engine.work.waiting import StartedWork
from allhands.engine.work.work import Work
from allhands.group.interfaces import LoopExecutor
from allhands.group.messages import MessageSubmitter
from allhands.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from allhands._native import ShmComm

Attempt: TypeAlias = Callable[[PrimitiveCall, float, str | None], Work | None]
"""Starts a call by one route, with the seconds that are left; None: not possible now."""


class QueuedSubmitter(MessageSubmitter):
    """Starts calls without waiting: in the communicator's queue, or in that on the loop."""

    caller: Caller

    def __init__(self, engine: GroupEngine, executor: LoopExecutor, order: Numbering) -> None:
        super().__init__(engine, executor, order)
        if order.comm is not None:  # else with the first call that is not waited for
            self._open_comm_queue(order.comm)
        attempts = self._map_attempts()
        self._starts_without_comm, self._starts_with_comm = (
            tuple(attempts[route] for route in list_starts(self.caller, has_comm=has_comm))
            for has_comm in (False, True)
        )

    @property
    def waits(self) -> bool:
        """Whether callers block on their calls."""
        return self.caller is Caller.BLOCKS

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        """Start a call by the first route of `routes` that takes it."""
        order = self.order
        seconds = order.clip_timeout(timeout)
        for attempt in self._starts_without_comm if order.comm is None else self._starts_with_comm:
            if (work := attempt(call, seconds, label)) is not None:
                return work
        raise AssertionError("the queue takes every call")

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Number a composite call, at the communicator where its core can, else for the loop."""
        seconds = self.order.clip_timeout(timeout)
        if (work := self._enqueue_composite_at_comm(composite, seconds, label)) is not None:
            return work
        return self._submit_composite(
            composite, self._make_composite_state(composite), seconds, label
        )

    def _submit_composite(
        self, composite: CompositeCall, state: CompositeState, seconds: float, label: str | None
    ) -> Work:
        """Number a composite call for the loop."""
        call = make_composite_primitive(composite)
        return self._submit(call, composite.call, seconds, label, composite_state=state)

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        return self._submit(
            PrimitiveCall(CollectiveRequest("barrier"), _build_no_parts, None),
            CallSignature("monitored_barrier"),
            self.order.clip_timeout(timeout),
            label,
            monitored_barrier=MonitoredBarrierCall(wait_all_ranks),
        )

    def skip(self, reason: str) -> None:
        call = PrimitiveCall(CollectiveRequest("barrier"), plan.barrier, None)
        with self.order.lock:
            operation = self._create_operation(call, call.request.call, self.order.timeout, None)
            self.executor.call(self.engine.skip, operation, reason)

    # ------------------------------------------------------------ attempts

    def _map_attempts(self) -> Mapping[Route, Attempt]:
        return {Route.COMM_QUEUE: self._enqueue_at_comm, Route.QUEUE: self._enqueue}

    def _enqueue_at_comm(
        self, call: PrimitiveCall, seconds: float, label: str | None
    ) -> Work | None:
        """Number a call over shared memory that needs nothing of the loop; None: not possible.

        The core's queue knows nothing of staged outputs.
        """
        comm = self.order.comm
        if comm is None or seconds <= 0 or call.staging is not None:
            return None
        if not self._open_comm_queue(comm):
            return None
        enqueue = call.request.enqueue
        return self._begin(partial(enqueue, comm, seconds, label, call.result, waits=self.waits))

    def _enqueue_composite_at_comm(
        self, composite: CompositeCall, seconds: float, label: str | None
    ) -> Work | None:
        """Number a composite call that the core makes as one likewise; None: not possible."""
        comm, core_call = self.order.comm, composite.core_call
        if (
            comm is None
            or core_call is None
            or self.engine.verifies
            or seconds <= 0
            or composite.staging is not None
            or not self._open_comm_queue(comm)
        ):
            return None
        return self._begin(partial(core_call.enqueue, comm, seconds, label, waits=self.waits))

    def _open_comm_queue(self, comm: "ShmComm") -> bool:
        """Let the communicator queue calls; False: completed calls have no thread to call back."""
        callbacks = self.executor.callbacks
        if callbacks is not None and comm.async_context is None:
            self.engine.open_comm_queue(comm, callbacks, self.executor.call)
        return callbacks is not None

    def _enqueue(self, call: PrimitiveCall, seconds: float, label: str | None) -> Work:
        """Number a call, and let it wait for its turn."""
        work = self._submit(call, call.request.call, seconds, label)
        if self.order.comm is None:
            self._open_links()
        return work

    def _open_links(self) -> None:
        """Let the next plain calls go over links without the interpreter, if they can."""
        order, executor = self.engine.order, self.executor
        if (
            order.direct_calls is None
            and isinstance(self.order, CallNumbering | SingleCallNumbering)
            and isinstance(executor, LoopThread)
        ):
            order.offer_links(self.engine.make_direct_calls(executor))

    # ------------------------------------------------------------ numbers and queues

    def _make_composite_state(self, composite: CompositeCall) -> CompositeState:
        engine = self.engine
        builder = StepBuilder(
            engine.name, engine.rank, len(engine.ranks), engine.deterministic, engine.link_cost
        )
        return CompositeState(composite, builder)

    def _submit(
        self,
        call: PrimitiveCall,
        signature: CallSignature,
        seconds: float,
        label: str | None,
        *,
        composite_state: CompositeState | None = None,
        monitored_barrier: MonitoredBarrierCall | None = None,
    ) -> Work:
        """Number a call and hand over to the loop, under one lock."""

        def submit() -> Work:
            with self.order.lock:
                operation = self._create_operation(call, signature, seconds, label)
                operation.composite_state = composite_state
                operation.monitored_barrier = monitored_barrier
                work = operation.work
                if seconds <= 0 and monitored_barrier is None:
                    operation.is_cancelled = True  # its number is used up, as on the other ranks
                    work.fail(call_errors.build_expired_error(repr(work), work, seconds))
                self._post_to_loop(work, self.engine.submit, self.engine.queue.cancel, operation)
            return work

        return self._begin(submit)

    def _begin(self, start: Callable[[], StartedWork]) -> StartedWork:
        """Start a call by a function that returns its work, or None where it is not possible."""
        return start()

    def _create_operation(
        self,
        call: PrimitiveCall,
        signature: CallSignature,
        seconds: float,
        label: str | None,
    ) -> Operation:
        """Give a call its number, with the order's lock held."""
        signature, engine = signature.with_label(label), self.engine
        if (clash := self.order.find_clash(label)) is not None:
            engine.refuse_clash(signature.operation, clash)
        work = Work(signature, self.order.take(), label, engine.name, self.executor.callbacks)
        work.waiting_thread = threading.get_ident() if self.waits else 0
        work.staging = call.staging
        self.order.set_latest(work)
        work.entry = engine.recorder.record_call(
            signature.operation, work.sequence, call.request.nbytes, signature, label
        )
        due = time.monotonic() + seconds
        return Operation(work, signature, call.request, call.build, call.result, seconds, due)


def make_composite_primitive(composite: CompositeCall) -> PrimitiveCall:
    """Return what a composite call is before its first step."""
    request = CollectiveRequest(composite.call.operation)
    return PrimitiveCall(request, _build_no_parts, None, composite.staging)


def _build_no_parts(rank: int, size: int) -> list[Part]:
    """Return no parts: the call is not a single collective over links."""
    return []
