"""Waiting for the work of a call on the thread that made it."""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from allhands.engine.work.work import Work
from allhands.runtime.signal_mask import DelayedSignals
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason

StartedWork = TypeVar("StartedWork", Work, Work | None)


def wait_or_abandon(work: Work, delayed: DelayedSignals | None = None) -> None:
    """Wait for a call; Ctrl-C ends the call, and its arrays are the caller's again.

    The signals that are `delayed` end it too.
    """
    work.waiting_thread = threading.get_ident()
    try:
        with contextlib.nullcontext() if delayed is None else delayed.allow():
            work.wait()
    except INTERRUPTIONS as interruption:
        work.abandon(get_cancel_reason(type(interruption).__name__))
        raise


def wait_for_end(work: Work, delayed: DelayedSignals | None = None) -> None:
    """Wait for a call as `wait_or_abandon` does; the call's own error stays in its work."""
    try:
        wait_or_abandon(work, delayed)
    except Exception as error:
        if work.exception() is not error:  # a handler's
            raise


def start_and_wait_for_end(start: Callable[[], StartedWork]) -> StartedWork:
    """Start a call and wait for its end, if it was possible; Ctrl-C at any time ends it.

    `start` must not wait: handlers of signals run only once there is a work to abandon.
    """
    with DelayedSignals() as delayed:
        work = start()
        if work is not None:
            wait_for_end(work, delayed)
        return work
