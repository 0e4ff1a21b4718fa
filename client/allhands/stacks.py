"""Where the program is, in words: what a rank that is late tells of itself, or one that fails."""

import sys
import threading
import traceback

LONGEST = 4096


def main_thread() -> str:
    """Return where the main thread is now, innermost call last; any thread may ask."""
    return of_thread(threading.main_thread())


def of_thread(thread: threading.Thread) -> str:
    """Return the same of another thread; "" where it has ended."""
    ident = thread.ident
    frame = sys._current_frames().get(ident) if ident is not None else None
    return "" if frame is None else _bounded("".join(traceback.format_stack(frame)))


def of_error(error: BaseException) -> str:
    """Return the traceback of an exception, what it is last."""
    return _bounded("".join(traceback.format_exception(error)))


def _bounded(text: str) -> str:
    """Keep the end of a text, whole lines of it."""
    data = text.encode(errors="replace")
    if len(data) <= LONGEST:
        return text
    return data[-LONGEST:].decode(errors="ignore").partition("\n")[2]
