"""Submission with call hooks: `before` ahead of each call, `after` once its arrays are written."""

import concurrent.futures
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeAlias

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall, StepGenerator
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.staging import Staging
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import HookedNumbering
from allhands.engine.work.waiting import wait_or_abandon
from allhands.engine.work.work import Work
from allhands.futures import Future
from allhands.group.call_info import (
    CallInfo,
    CallPlace,
    describe_composite,
    describe_message,
    describe_primitive,
    list_outputs,
)
from allhands.group.interfaces import LoopExecutor, Submitter
from allhands.runtime.callbacks import Callbacks
from allhands_proto.quick_dataclass import dataclass

logger = logging.getLogger(__name__)

Before: TypeAlias = Callable[[CallInfo], object]
After: TypeAlias = Callable[[CallInfo, BaseException | None, float], object]


CALL_LABEL: "ContextVar[str | None]" = ContextVar("allhands_call_label", default=None)
"""Label of the calls of this thread or task that have none of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class CallHook:
    """A pair of functions around calls; either may be missing, both where calls get a label."""

    before: Before | None
    after: After | None


class HookState:
    """What the hooks of one world share: numbers of calls, and which threads are in a hook."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._thread_state = threading.local()

    def take_number(self) -> int:
        return next(self._numbers)

    @property
    def is_in_hook(self) -> bool:
        """Whether this thread is in a hook, whose own calls no hook sees."""
        return getattr(self._thread_state, "is_in_hook", False)

    @contextlib.contextmanager
    def mark_hook(self) -> Iterator[None]:
        before, self._thread_state.is_in_hook = self.is_in_hook, True
        try:
            yield
        finally:
            self._thread_state.is_in_hook = before


class HookedCall:
    """A call with the hooks that it began with."""

    def __init__(self, state: HookState, hooks: Sequence[CallHook], call: CallInfo) -> None:
        self._state = state
        self._hooks = hooks
        self._call = call
        self._begun = 0
        """Hooks that have seen the beginning: those see the end."""
        self._started = time.monotonic()

    def run_before(self) -> None:
        """Run `before` of each hook, in order; what one raises keeps the call from being made."""
        try:
            with self._state.mark_hook():
                for hook in self._hooks:
                    if hook.before is not None:
                        hook.before(self._call)
                    self._begun += 1
        except BaseException as error:
            self.run_after(error, None)
            raise
        self._started = time.monotonic()

    def run_after(self, error: BaseException | None, work: Work | None) -> None:
        """Run `after` of each hook, the latest first; raise what one raised, after the last.

        Where the call itself failed its error is the caller's, and those of hooks are logged.
        """
        seconds = time.monotonic() - self._started
        call = self._call if work is None else _complete(self._call, work, error)
        raised: BaseException | None = None
        with self._state.mark_hook():
            for hook in reversed(self._hooks[: self._begun]):
                if hook.after is None:
                    continue
                try:
                    hook.after(call, error, seconds)
                except BaseException as another:
                    if error is not None or raised is not None:
                        logger.exception("a hook after %s failed", call)
                    raised = raised or another
        if error is None and raised is not None:
            raise raised


class HookedWork(Work):
    """Work of a call with hooks; completed once they have run."""

    def __init__(self, work: Work, hooked: HookedCall, callbacks: Callbacks | None) -> None:
        signature = CallSignature(work.operation)
        super().__init__(signature, work.sequence, work.label, work.group)
        self._future = _HookedFuture(work, callbacks)
        self._future.set_running_or_notify_cancel()
        self._work = work
        self._hooked = hooked
        self.own(work.cancel)
        work.get_future().add_done_callback(self._finish)

    def abandon(self, why: str = "Ctrl-C") -> None:
        self._work.cancel_reason = why
        super().abandon(why)

    def _finish(self, future: "concurrent.futures.Future[Result]") -> None:
        # Not by the future's own methods: those tell that the program has got the error.
        error = concurrent.futures.Future.exception(future)
        try:
            self._hooked.run_after(error, self._work)
        except BaseException as raised:
            self.fail(raised)
            return
        if error is not None:
            self.fail(error)
            return
        self.explained(self._work.explain())
        if self.operation == "recv":
            self.received_from(self._work.source_rank())
        self.succeed(concurrent.futures.Future.result(future))


class _HookedFuture(Future[Result]):
    """The future of a hooked work; who gets the call's error here has got it there."""

    def __init__(self, work: Work, callbacks: Callbacks | None) -> None:
        super().__init__(callbacks)
        self._work = work

    def result(self, timeout: float | None = None) -> Result:
        try:
            return super().result(timeout)
        except Exception:
            self._look()
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self._look()
        return error

    def _look(self) -> None:
        if self._work.is_completed():
            self._work.exception()


class HookedSubmitter:
    """Runs hooks around the calls of another submitter of a group, and gives the calls labels."""

    def __init__(
        self,
        submitter: Submitter,
        state: HookState,
        get_group_name: Callable[[], str],
        *,
        waits: bool,
    ) -> None:
        """With `waits` callers block on their calls, and hooks run on their threads."""
        self.submitter = submitter
        self.order = HookedNumbering(submitter.order)
        self.hooks: tuple[CallHook, ...] = ()
        """Those of the next calls; none: calls are as without."""
        self._state = state
        self._get_group_name = get_group_name
        self._waits = waits

    @property
    def engine(self) -> GroupEngine:
        return self.submitter.engine

    @property
    def executor(self) -> LoopExecutor:
        return self.submitter.executor

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        label = label or CALL_LABEL.get()
        return self._run(
            lambda number: describe_primitive(number, self._locate(), call, label),
            lambda: self.submitter.start(call, timeout, label),
        )

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        label = label or CALL_LABEL.get()
        return self._run(
            lambda number: describe_composite(number, self._locate(), composite, label),
            lambda: self.submitter.start_composite(composite, timeout, label),
        )

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        label = label or CALL_LABEL.get()
        barrier = CompositeCall(CallSignature("monitored_barrier"), _generate_no_steps)
        return self._run(
            lambda number: describe_composite(number, self._locate(), barrier, label),
            lambda: self.submitter.start_monitored_barrier(timeout, wait_all_ranks, label),
        )

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
        label = label or CALL_LABEL.get()
        rank = None if peer is None else self.engine.ranks.index(peer)
        return self._run(
            lambda number: describe_message(
                number, self._locate(), operation, array, rank, tag, label, result
            ),
            lambda: self.submitter.start_p2p(
                operation, array, result, peer, tag, timeout, label, staging
            ),
            waits=False,
        )

    def skip(self, reason: str) -> None:
        self.submitter.skip(reason)

    def _locate(self) -> CallPlace:
        engine = self.engine
        return CallPlace(self._get_group_name(), engine.rank, len(engine.ranks))

    def _run(
        self,
        describe: Callable[[int], CallInfo],
        begin: Callable[[], Work],
        *,
        waits: bool | None = None,
    ) -> Work:
        """Make a call between its hooks."""
        hooks = self.hooks
        if not hooks or self._state.is_in_hook:
            return begin()
        hooked = HookedCall(self._state, hooks, describe(self._state.take_number()))
        hooked.run_before()
        work: Work | None = None
        try:
            work = begin()
            if self._waits and waits is not False:
                wait_or_abandon(work)
        except BaseException as error:
            hooked.run_after(error, work)
            raise
        if self._waits and waits is not False:
            hooked.run_after(None, work)
            return work
        return HookedWork(work, hooked, self.executor.callbacks)


def _complete(call: CallInfo, work: Work, error: BaseException | None) -> CallInfo:
    """Return a call as it was at its end."""
    outputs = call.outputs
    if error is None and not outputs:
        outputs = list_outputs(concurrent.futures.Future.result(work.get_future()), ())
    return replace(call, sequence=work.sequence or None, outputs=outputs)


def _generate_no_steps(builder: object) -> StepGenerator:
    raise AssertionError("a description only")
