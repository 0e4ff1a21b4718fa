"""Polling for conditions without an event."""

import time
from collections.abc import Callable


def poll_until(claim: Callable[[], bool], seconds: float = 10.0) -> None:
    """Ask again and again, until the claim holds.

    Raises:
        AssertionError: it did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not come true in time"
