"""Loading: deferred imports, made while a program already runs."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def pause_gc(*, trims_heap: bool = True) -> Iterator[None]:
    """Let a block of imports run without collections of garbage.

    What modules define is no garbage, and of so many new objects some collections look at all that
    the program has: beside PyTorch 0.1 s, a quarter of what the imports take. `trims_heap` costs 5
    ms, which a launcher does not spend on a mebibyte.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    before = len(sys.modules)
    try:
        yield
    finally:
        gc.enable()
        if trims_heap and len(sys.modules) > before:
            _trim_heap()


def _trim_heap() -> None:
    """Return freed heap of imports to the system: about 1 MiB that the C library would keep."""
    import ctypes  # not for a command that needs none of this

    with suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
