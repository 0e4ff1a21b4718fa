"""Stack dumps of late and of failing ranks."""

import gc
import sys
import threading
import traceback
from types import FrameType

MAX_BYTES = 4096


def format_main_thread() -> str:
    """Return where the main thread is now, innermost call last; any thread may ask."""
    return format_thread(threading.main_thread())


def format_thread(thread: threading.Thread) -> str:
    """Return the stack of another thread, in the same format; "" if ended."""
    ident = thread.ident
    frame = _get_frames().get(ident) if ident is not None else None
    return "" if frame is None else _truncate("".join(traceback.format_stack(frame)))


def _get_frames() -> dict[int, FrameType]:
    """Return where each thread is, without a collection of garbage meanwhile.

    CPython holds a lock over all threads then, which threads that begin or end wait for with the
    interpreter's: a finalizer that lets the latter go would never get it back.
    """
    if not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def format_error(error: BaseException) -> str:
    """Return the traceback of an exception, the exception's own text last."""
    return _truncate("".join(traceback.format_exception(error)))


def _truncate(text: str) -> str:
    """Return the last lines of a text, within the limit."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_BYTES:
        return text
    return data[-MAX_BYTES:].decode(errors="ignore").partition("\n")[2]
