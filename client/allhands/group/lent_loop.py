"""Submission of calls over links that borrow the event loop for their caller's thread."""

from collections.abc import Callable, Mapping

from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.engine.inline_limits import InlineLimits
from allhands.engine.operation import Operation
from allhands.engine.routes import Route
from allhands.engine.work.work import Work
from allhands.group.queued import Attempt, QueuedSubmitter, make_composite_primitive
from allhands.runtime.termination import get_cancel_reason


class LentLoopSubmitter(QueuedSubmitter):
    """Carries calls over links out on their callers' threads, as far as they go in a short time."""

    limits: InlineLimits

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Carry a composite call out here step by step over links, where that is possible."""
        if self.order.comm is None:
            seconds = self.order.clip_timeout(timeout)
            if (work := self._run_steps_on_lent_loop(composite, seconds, label)) is not None:
                return work
        return super().start_composite(composite, timeout, label)

    def _map_attempts(self) -> Mapping[Route, Attempt]:
        return {**super()._map_attempts(), Route.LENT_LOOP: self._run_on_lent_loop}

    def _settle(self, work: Work) -> None:
        """Do what the caller of a call wants done with its work, ended or not."""

    def _run_on_lent_loop(
        self, call: PrimitiveCall, seconds: float, label: str | None
    ) -> Work | None:
        """Carry a call out over links; None: too large, the loop is not lent, or expired."""
        if seconds <= 0 or not self.engine.can_run_inline(call.request, self.limits):
            return None
        return self._borrow_loop(
            lambda: self._create_operation(call, call.request.call, seconds, label)
        )

    def _run_steps_on_lent_loop(
        self, composite: CompositeCall, seconds: float, label: str | None
    ) -> Work | None:
        """Carry a composite call out likewise."""
        if seconds <= 0 or not self.engine.can_run_composite_inline(composite, self.limits):
            return None
        call, state = make_composite_primitive(composite), self._make_composite_state(composite)

        def create() -> Operation:
            operation = self._create_operation(call, composite.call, seconds, label)
            operation.composite_state = state
            return operation

        return self._borrow_loop(create)

    def _borrow_loop(self, create: Callable[[], Operation]) -> Work | None:
        """Carry out an operation over links, as far as it goes; None: the loop is not lent."""
        engine, executor, limits = self.engine, self.executor, self.limits
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
            return engine.queue.run_inline(
                operation,
                lambda request: engine.can_run_step_inline(request, limits),
                limits.seconds,
            )

        try:
            if not executor.run_on_caller_thread(begin):
                return None
            self._open_direct_calls()
            operation = begun[0]
            if operation.awaits_finish:
                _finish(operation)
            self._settle(operation.work)
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
