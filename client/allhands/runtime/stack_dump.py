"""Stack dumps of late and of failing ranks."""

import gc
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

MAX_BYTES = 4096
_OWN = __name__.partition(".")[0]


def format_main_thread() -> str:
    """Return where the main thread is now, innermost call last; any thread may ask."""
    return format_thread(threading.main_thread())


def format_thread(thread: threading.Thread) -> str:
    """Return the stack of another thread, in the same format; "" if ended.

    Of a call of allhands it has the program's line and the call, and none of what is inside.
    """
    ident = thread.ident
    frame = _get_frames().get(ident) if ident is not None else None
    if frame is None:
        return ""
    walked = [*traceback.walk_stack(frame)][::-1]
    count = _count_shown([one.f_globals.get("__name__", "") for one, _ in walked])
    # Lines are read from files: only those of frames that are shown.
    return _truncate("".join(traceback.StackSummary.extract(iter(walked[:count])).format()))


def _count_shown(modules: Sequence[str]) -> int:
    """Return how many frames of a stack to show; they are given by module, outermost first."""
    packages = [one.partition(".")[0] for one in modules]
    for at in range(len(packages) - 1, -1, -1):
        if packages[at] != _OWN and packages[at] not in sys.stdlib_module_names:
            is_inside = packages[at + 1 : at + 2] == [_OWN]
            return at + 2 if is_inside else len(packages)
    return len(packages)


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
