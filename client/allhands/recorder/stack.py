"""Where the program's main thread is now."""

import sys
import threading
import traceback

_LONGEST = 8 << 10
"""Characters: the innermost calls tell most."""


def main_thread_stack() -> str:
    """Return its Python stack, innermost call last; "": it has ended. Any thread may ask."""
    ident = threading.main_thread().ident
    frame = None if ident is None else sys._current_frames().get(ident)
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame))[-_LONGEST:]
