"""Submission for callers that block: calls run on their own threads where possible."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.engine.operation import Operation
from allhands.engine.routes import Route
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.waiting import StartedWork, start_and_wait_for_end, wait_for_end
from allhands.engine.work.work import Work
from allhands.group.queued import Attempt, QueuedSubmitter, make_composite_primitive
from allhands.runtime.termination import get_cancel_reason


class InlineSubmitter(QueuedSubmitter):
    """Carries calls out on their callers' threads; those that cannot be are queued, and waited for.

    So handlers of signals find no call under way that nobody would end.
    """

    waits = True

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Carry a composite call out here, where possible and next in turn.

        As one call of the core over shared memory, else step by step over links.
        """
        core_call, comm = composite.core_call, self.order.comm
        seconds = self.order.clip_timeout(timeout)
        if comm is None:
            if (work := self._run_steps_on_lent_loop(composite, seconds, label)) is not None:
                return work
        elif core_call is not None and seconds > 0 and not self.engine.verifies:
            run = partial(core_call.run, comm, 0, seconds, time.monotonic() + seconds, label)
            staging = composite.staging
            if (ended := run() if staging is None else staging.carry_out(run)) is not None:
                return CompletedWork.from_comm(comm, label, self.engine.name, ended[0])
        return super().start_composite(composite, timeout, label)

    def _map_attempts(self) -> Mapping[Route, Attempt]:
        return {
            **super()._map_attempts(),
            Route.INLINE: self._run_over_comm,
            Route.LENT_LOOP: self._run_on_lent_loop,
        }

    def _run_over_comm(self, call: PrimitiveCall, seconds: float, label: str | None) -> Work | None:
        """Carry a call out over shared memory; None: it is not next in turn, or expired."""
        comm = self.order.comm
        if comm is None or seconds <= 0:
            return None
        run = partial(call.request.run, comm, 0, seconds, time.monotonic() + seconds, label)
        if not (run() if call.staging is None else call.staging.carry_out(run)):
            return None
        return CompletedWork.from_comm(comm, label, self.engine.name, call.result)

    def _begin(self, start: Callable[[], StartedWork]) -> StartedWork:
        """Start a call likewise, and wait for its end."""
        return start_and_wait_for_end(start)

    def _run_on_lent_loop(
        self, call: PrimitiveCall, seconds: float, label: str | None
    ) -> Work | None:
        """Carry a call out over links; None: too large, the loop is not lent, or expired."""
        if seconds <= 0 or not self.engine.can_run_inline(call.request):
            return None
        return self._borrow_loop(
            lambda: self._create_operation(call, call.request.call, seconds, label)
        )

    def _run_steps_on_lent_loop(
        self, composite: CompositeCall, seconds: float, label: str | None
    ) -> Work | None:
        """Carry a composite call out likewise."""
        if seconds <= 0 or not self.engine.can_run_composite_inline(composite):
            return None
        call, state = make_composite_primitive(composite), self._make_composite_state(composite)

        def create() -> Operation:
            operation = self._create_operation(call, composite.call, seconds, label)
            operation.composite_state = state
            return operation

        return self._borrow_loop(create)

    def _borrow_loop(self, create: Callable[[], Operation]) -> Work | None:
        """Carry out an operation over links, to its end; None: the loop is not lent."""
        engine, executor = self.engine, self.executor
        begun: list[Operation] = []

        def begin() -> bool:
            with self.order.lock:
                operation = create()
                work = operation.work
                begun.append(operation)
                work.own(lambda: executor.call(engine.queue.cancel, operation))
                if not engine.queue.is_next(work.sequence):
                    executor.call(engine.submit, operation)
                    return True
            if work.staging is not None:
                work.staging.load()
            return engine.queue.run_inline(operation, engine.can_run_step_inline)

        try:
            if not executor.run_on_caller_thread(begin):
                return None
            self._open_direct_calls()
            operation = begun[0]
            if operation.awaits_finish:
                _finish(operation)
            wait_for_end(operation.work)
            return operation.work
        except BaseException as error:  # Ctrl-C came meanwhile
            for operation in begun:
                operation.work.abandon(get_cancel_reason(type(error).__name__))
            raise


def _finish(operation: Operation) -> None:
    """Finish a composite call of which all steps have ended, and complete its work."""
    assert operation.composite_state is not None, "only they are left to their callers"
    try:
        result = operation.composite_state.finish()
    except BaseException as error:
        operation.work.fail(error)
        if not isinstance(error, Exception):
            raise
    else:
        operation.work.succeed(result)
