"""Watchdog of the current call: pings, slow-call warnings, deadline and the coordinator's verdict.

Also the interruption of that call by events: a peer's failure, a mismatch, a cancellation.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from allhands.engine.context import EngineContext
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.failures.slow_calls import SlowCall
from allhands.engine.failures.tracker import (
    ASK_AFTER,
    VERDICT_GRACE,
    VerdictReply,
    cancel_and_wait,
    wait_first,
)
from allhands.engine.links.executor import MismatchFound
from allhands.engine.links.pings import PING_AFTER
from allhands.engine.operation import Operation
from allhands.engine.shm.host_group import CallAbandoned
from allhands.transport.frame import MessageKey

_REPORT_SECONDS = 5.0
"""How long the report of corrupt data may take, on a link that is opened for it."""


class Watchdog:
    """Guard of the group's current call; event loop only."""

    def __init__(self, context: EngineContext, *, verifies: bool) -> None:
        self._verifies = verifies
        self._ranks = context.ranks
        self._hash = context.hash
        self._mesh = context.mesh
        self._directory = context.directory
        self._recorder = context.recorder
        self._progress = context.progress
        self._failures = context.failures
        self._channel = context.channel
        self.current: Operation | None = None
        """Operation from the queue that is running."""
        self.interruption: asyncio.Future[ErrorFactory | None] | None = None
        """Resolved to end the current call: with the failure, or None for a mismatch."""

    def begin_matching(self, operation: Operation) -> bool:
        """Begin to accept the messages of a call; False: a peer is in another call."""
        sequence, signature = operation.work.sequence, operation.signature
        is_other = self._mesh.begin_call(self._hash, sequence, signature)
        return not (is_other or self._failures.has_mismatch(sequence))

    async def raise_mismatch(self, operation: Operation) -> NoReturn:
        sequence = operation.work.sequence
        await self._failures.raise_mismatch(self.name_call(operation), sequence, operation.call)

    async def guard(
        self,
        operation: Operation,
        running: "asyncio.Future[None]",
        list_awaited: Callable[[], Sequence[int]],
    ) -> None:
        """Wait until a running call is done, interrupted, or past its deadline."""
        work, signature = operation.work, operation.signature
        asking: asyncio.Task[VerdictReply] | None = None
        unwatch: Callable[[], None] | None = None
        stall: SlowCall | None = None
        self._recorder.list_awaited = list_awaited
        assert self.interruption is not None
        try:
            remaining = operation.deadline - time.monotonic()
            alone, unasked = min(PING_AFTER, remaining / 4), min(ASK_AFTER, remaining / 2)
            if await wait_first(running, self.interruption, timeout=alone):
                return await self._raise_outcome(operation, running)
            unwatch = self._directory.watch_links(
                lambda: [self._ranks[place] for place in list_awaited()]
            )
            if await wait_first(running, self.interruption, timeout=unasked - alone):
                return await self._raise_outcome(operation, running)
            for rank in list_awaited():
                # They may wait for this rank as well, in another call that sends nothing either.
                self._mesh.send_call(
                    self._ranks[rank], MessageKey(self._hash, work.sequence), signature
                )
            asking = self._failures.request_verdict(
                work.sequence, work.operation, list_awaited(), operation.deadline
            )
            stall = self._failures.watch(
                work.operation,
                work.sequence,
                work.label,
                list_awaited,
                self._progress.since,
                operation.deadline,
            )
            remaining = operation.deadline - time.monotonic()
            is_over = await wait_first(running, self.interruption, timeout=remaining)
            if not is_over:
                # The coordinator's word comes with the deadline, seldom later.
                await wait_first(running, self.interruption, asking, timeout=VERDICT_GRACE)
                is_over = running.done() or self.interruption.done()
            if is_over and not (
                not running.done()
                and await self._failures.is_timed_out_elsewhere(
                    work.sequence, asking, operation.deadline
                )
            ):
                return await self._raise_outcome(operation, running)
            raise self._failures.build_timeout_error(
                work.operation, work.sequence, work.label, operation.timeout, asking, list_awaited()
            )
        finally:
            if stall is not None:
                stall.end(has_succeeded=_has_succeeded(running))
            if unwatch is not None:
                unwatch()
            await cancel_and_wait(running)
            if asking is not None:
                await cancel_and_wait(asking)

    async def _raise_outcome(self, operation: Operation, running: "asyncio.Future[None]") -> None:
        """Raise the error that ended a call, if unsuccessful."""
        work = operation.work
        assert self.interruption is not None
        if running.done():
            try:
                running.result()
                return
            except MismatchFound:
                await self.raise_mismatch(operation)
            except CallAbandoned as left:
                await self._failures.await_failure_reason()
                if self._verifies:
                    # Those who gave it up may have heard of corrupt data before this rank does.
                    grace = max(operation.deadline - time.monotonic(), VERDICT_GRACE)
                    await wait_first(self.interruption, timeout=min(grace, _REPORT_SECONDS))
                if not self.interruption.done():
                    raise await self._failures.await_abandoned_error(
                        work.operation, work.sequence, work.label, left.ranks
                    ) from left
        failure = self.interruption.result()
        if failure is not None:
            raise failure(self.name_call(operation))
        await self.raise_mismatch(operation)

    def interrupt_call(self, sequence: int, failure: ErrorFactory) -> None:
        """End the call with that number if under way."""
        if self.current is not None and self.current.work.sequence == sequence:
            self.interrupt_current(failure)

    def interrupt_current(self, failure: ErrorFactory | None) -> None:
        """Interrupt the running queued call."""
        if self.interruption is None or self.interruption.done():
            return
        self.interruption.set_result(failure)
        if self.current is not None:
            self._channel.interrupt(self.current.work.sequence, failure)

    def name_call(self, operation: Operation) -> str:
        work = operation.work
        return self._failures.name_call(work.operation, work.sequence, work.label)


def _has_succeeded(task: "asyncio.Future[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
