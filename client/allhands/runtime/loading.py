"""Loading: deferred imports, made while a program already runs."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def pause_gc() -> Iterator[None]:
    """Let a block of imports run without collections of garbage.

    What modules define is no garbage, and of so many new objects some collections look at all that
    the program has: beside PyTorch 0.1 s, a quarter of what the imports take.
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
        if len(sys.modules) > before:
            _trim_heap()


@contextmanager
def load_command() -> Iterator[None]:
    """Let a block of imports of a command run without collections of garbage, and later ones.

    Not for programs of users: collections never look at, nor free, what there is after the block.
    A launcher saves a twentieth of the CPU seconds of its job's start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _trim_heap() -> None:
    """Return freed heap of imports to the system: about 1 MiB that the C library would keep."""
    import ctypes  # not for a command that needs none of this

    with suppress(AttributeError, OSError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
