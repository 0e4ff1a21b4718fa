"""Loading: imports that are made when a program is under way already."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let a block of imports run without collections of garbage.

    What modules define is no garbage, and of so many new objects some collections look at all that
    the program has: beside PyTorch 0.1 s, a quarter of what the imports take.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
