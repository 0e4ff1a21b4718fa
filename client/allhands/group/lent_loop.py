"""Submission of calls over links that borrow the event loop for their caller's thread."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from allhands.collectives.composite_call import CompositeCall, CompositeState
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.request import CollectiveRequest
from allhands.engine.direct_calls import FirstStep
from allhands.engine.inline_limits import InlineLimits
from allhands.engine.operation import Operation
from allhands.engine.routes import Route
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.work import Work
from allhands.group.queued import Attempt, QueuedSubmitter, make_composite_primitive
from allhands.runtime.termination import get_cancel_reason

if TYPE_CHECKING:
    from allhands._native import LinkCollectives


class LentLoopSubmitter(QueuedSubmitter):
    """Carries calls over links out on their callers' threads, as far as they go in a short time."""

    @property
    @abstractmethod
    def limits(self) -> InlineLimits:
        """Sizes and times up to which calls are carried out so."""

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Carry a composite call out here step by step over links, where that is possible."""
        seconds = self.order.clip_timeout(timeout)
        if (
            self.order.comm is None
            and seconds > 0
            and self.engine.can_run_composite_inline(composite, self.limits)
        ):
            state = self._make_composite_state(composite)
            work = self._run_first_step(state, seconds, label)
            if work is None:
                work = self._run_steps_on_lent_loop(composite, state, seconds, label)
            return work or self._submit_composite(composite, state, seconds, label)
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

    def _run_first_step(
        self, state: CompositeState, seconds: float, label: str | None
    ) -> Work | None:
        """Have the core make the first step of a composite call, and run the others behind it.

        None: the core does not, and nothing has happened.
        """
        links, engine = self.order.links, self.engine
        if links is None or (found := _find_arguments(state.get_first().request)) is None:
            return None
        call, limits = state.call.with_label(label), self.limits
        step = FirstStep(
            state, call, lambda request: engine.can_run_step_inline(request, limits), limits.seconds
        )
        try:
            ended = links.run_step(*found, call, call.signature, seconds, label, step, self.waits)
            if ended is True:
                return self._finish_with_first_step(links, state, label)
            if ended is False:
                return None
            if step.has_ended:
                assert step.operation is not None
                _finish(step.operation)
            self._settle(ended)
        except BaseException as error:  # Ctrl-C came meanwhile
            if step.operation is not None:
                step.operation.work.abandon(get_cancel_reason(type(error).__name__))
            raise
        return ended

    def _finish_with_first_step(
        self, links: "LinkCollectives", state: CompositeState, label: str | None
    ) -> Work:
        """Finish a composite call that has ended with its first step; return its work."""
        name = self.engine.name
        try:
            result = state.finish()
        except Exception as error:
            summary = links.last_call()
            assert summary is not None, "it has just ended"
            work = Work(state.call, summary[0], label, name, self.executor.callbacks)
            work.fail(error)
            return work
        return CompletedWork.from_comm(links, label, name, result)

    def _run_steps_on_lent_loop(
        self, composite: CompositeCall, state: CompositeState, seconds: float, label: str | None
    ) -> Work | None:
        """Carry a composite call out likewise."""
        call = make_composite_primitive(composite)

        def create() -> Operation:
            operation = self._create_operation(call, composite.call, seconds, label)
            operation.composite_state = state
            return operation

        return self._borrow_loop(create)

    def _borrow_loop(self, create: Callable[[], Operation]) -> Work | None:
        """Carry out an operation over links, as far as it goes; None: the loop is not lent."""
        engine, executor, limits = self.engine, self.executor, self.limits
        # Nothing that is under way is to be held up for a call behind it.
        if not self.waits and self.order.latest_sequence != engine.progress.last_ended:
            return None
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
            self._open_links()
            operation = begun[0]
            if operation.awaits_finish:
                _finish(operation)
            self._settle(operation.work)
            return operation.work
        except BaseException as error:  # Ctrl-C came meanwhile
            for operation in begun:
                operation.work.abandon(get_cancel_reason(type(error).__name__))
            raise


def _find_arguments(request: CollectiveRequest) -> tuple[str, tuple[object, ...]] | None:
    """Return the kind and the arguments of a step as the core has them; None: it makes none."""
    match request.kind:
        case "all_gather_into_tensor" if len(request.targets) == 1:
            return request.kind, (request.targets[0], request.sources[0])
        case "broadcast":
            return request.kind, (request.targets[0], request.root)
        case _:
            return None


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
