"""Waiting for the work of a call on the thread that made it."""

import threading

from allhands.engine.work.work import Work
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason


def wait_or_abandon(work: Work) -> None:
    """Wait for a call; Ctrl-C ends the call, and its arrays are the caller's again."""
    work.waiting_thread = threading.get_ident()
    try:
        work.wait()
    except INTERRUPTIONS as interruption:
        work.abandon(get_cancel_reason(type(interruption).__name__))
        raise
