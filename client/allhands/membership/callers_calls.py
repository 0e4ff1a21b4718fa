"""Calls of a resilient group on their callers' threads, as its queue sees them.

They are made in the native core (`AtomicCalls`), over shared memory or over links, while nothing is
queued. One that fails comes to the queue, ahead of all others, and ends there.
"""

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from allhands.engine.group_engine import GroupEngine
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.membership.queued_call import FailedCall
from allhands.runtime import native_core
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason

if TYPE_CHECKING:
    from allhands._native import AtomicCalls, LinkCollectives, ShmComm


class CallersCalls:
    """The loop's side of a group's `AtomicCalls`, if there is a native core."""

    def __init__(
        self,
        timeout: float,
        confirm_timeout: float,
        make_barrier: Callable[[], Work],
        call_on_loop: Callable[[Callable[[], object]], object],
    ) -> None:
        """`make_barrier` begins the barrier behind a call, as the queue does it."""
        native, _ = native_core.find()
        self._call_on_loop = call_on_loop
        self.core: AtomicCalls | None = None
        """Takes calls on their callers' threads, while it has a communicator, or links."""
        if native is not None:
            self.core = native.AtomicCalls(
                on_failure=self._on_failure,
                on_ended=self._wait_taken_over,
                make_barrier=make_barrier,
                on_idle=self._on_idle,
                timeout=timeout,
                confirm_timeout=confirm_timeout,
            )
        self.make_again: Callable[[str, tuple[Any, ...]], Work] = _refuse
        """Makes a call once more by the group's method of that name, from a core's arguments."""
        self._failed: FailedCall | None = None
        self._thread = 0
        """Which is about to queue that."""
        self._taken_over = asyncio.Event()
        self._idle = asyncio.Event()
        """Set when a call over links is over, if that is awaited."""

    def offer(self, way: "ShmComm | LinkCollectives | None") -> None:
        """Let calls run over a communicator, or links, from now on; None: none begins."""
        if self.core is not None:
            self.core.set_way(way)

    def take_counts(self) -> tuple[int, int]:
        """Return how many calls had a result here, and on all ranks, since asked last."""
        return (0, 0) if self.core is None else self.core.take_counts()

    def find_failed(self) -> FailedCall | None:
        """Return the failed call that this thread is about to queue; None: it makes a new one."""
        return self._failed if self._thread == get_ident() else None

    def note_taken_over(self) -> None:
        """Note that the failed call is queued; on the loop."""
        if self.core is not None:
            self.core.take_over()
        self._taken_over.set()

    async def wait_idle(self, engine: GroupEngine) -> None:
        """Return when no call is under way, or the one that failed is queued; on the loop."""
        while self.core is not None and self.core.is_busy:
            self._taken_over.clear()
            if engine.order.comm is None:
                await self._wait_over_links(self.core)
            else:
                await engine.wait_inline()
            if self.core.has_failed:
                await self._taken_over.wait()

    async def _wait_over_links(self, core: "AtomicCalls") -> None:
        """Return when no call is under way over links."""
        self._idle.clear()
        core.is_awaited = True
        if core.is_busy and not core.has_failed:
            await self._idle.wait()

    def _on_idle(self) -> None:
        """Tell the loop, which waits for that, that a call is over; on the caller's thread."""
        assert self.core is not None, "which calls this"
        self.core.is_awaited = False
        self._call_on_loop(self._idle.set)

    def _on_failure(
        self,
        failure: int,
        name: str,
        arguments: tuple[Any, ...],
        error: BaseException,
        number: int,
        is_computed: bool,
        was_left: bool,
        backup: memoryview,
        confirming: Work | None,
    ) -> Work:
        """Queue a call that failed; on the caller's thread."""
        if self._failed is None or self._failed.failure != failure:
            self._failed = FailedCall(
                failure, number, error, is_computed, was_left, backup, confirming
            )
        self._thread = get_ident()
        try:
            return self.make_again(name, arguments)
        finally:
            self._thread = 0

    def _wait_taken_over(self, work: Work, error: BaseException) -> None:
        """Wait for the end of a failed call, or give it up where a signal's exception ended it."""
        try:
            if not isinstance(error, AllhandsError):
                work.abandon(get_cancel_reason(type(error).__name__))
                raise error
            work.waiting_thread = get_ident()
            try:
                work.wait()
            except INTERRUPTIONS as interruption:
                work.abandon(get_cancel_reason(type(interruption).__name__))
                raise
        finally:
            self._forget(work)

    def _forget(self, work: Work) -> None:
        """Keep nothing of a failed call: its error holds the group that it was made in."""
        failed = self._failed
        if failed is not None and failed.queued is not None and failed.queued.work is work:
            self._failed = None


def _refuse(name: str, arguments: tuple[Any, ...]) -> Work:
    raise AssertionError("nothing was offered yet")
