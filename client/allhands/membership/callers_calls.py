"""Calls of a resilient group on their callers' threads, as its queue sees them.

They are made in the native core (`AtomicCalls`), where the ranks share memory and nothing is
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
    from allhands._native import AtomicCalls, ShmComm


class CallersCalls:
    """The loop's side of a group's `AtomicCalls`, if there is a native core."""

    def __init__(self, timeout: float, confirm_timeout: float) -> None:
        native, _ = native_core.find()
        self.core: AtomicCalls | None = None
        """Takes calls on their callers' threads, while it has a communicator."""
        if native is not None:
            self.core = native.AtomicCalls(
                on_failure=self._on_failure,
                on_ended=self._wait_taken_over,
                timeout=timeout,
                confirm_timeout=confirm_timeout,
            )
        self.make_again: Callable[[str, tuple[Any, ...]], Work] = _refuse
        """Makes a call once more by the group's method of that name, from a core's arguments."""
        self._failed: FailedCall | None = None
        self._thread = 0
        """Which is about to queue that."""
        self._taken_over = asyncio.Event()

    def offer(self, comm: "ShmComm | None") -> None:
        """Let calls run over a communicator from now on; None: none begins."""
        if self.core is not None:
            self.core.set_comm(comm)

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
            await engine.wait_inline()
            if self.core.has_failed:
                await self._taken_over.wait()

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
    ) -> Work:
        """Queue a call that failed; on the caller's thread."""
        if self._failed is None or self._failed.failure != failure:
            self._failed = FailedCall(failure, number, error, is_computed, was_left, backup)
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
    raise AssertionError("no communicator was offered yet")
